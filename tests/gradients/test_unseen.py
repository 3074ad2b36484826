"""What lies beside a tensor's values: sizes that they decided, the plain tensor, text, scripted modules, functions."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tacit import gradients

B = 4
X = torch.rand(B, 5, 3, generator=torch.Generator().manual_seed(3))
X[:, 0, 0] = torch.tensor([0.9, 0.7, 0.5, 0.1])  # from the longest to the shortest
Body = Callable[["Model", Tensor], Any]


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.line, self.rnn = body, nn.Linear(3, 3), nn.GRU(3, 3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return torch.sin(self.line(self.body(self, x)))


def refusal(body: Body, size: int = B) -> str:
    """What is said of a model, when it is run, or its loss differentiated."""
    model = Model(body)
    with pytest.raises((ValueError, RuntimeError)) as error, gradients.record(model):
        model(X[:size]).sum().backward()
    return str(error.value)


def rows(x: Tensor) -> Tensor:
    return x[x[:, :, 0] > 0.4]


def lengths(x: Tensor) -> Tensor:
    return (5 * x[:, 0, 0]).long().cpu() + 1


def longest(x: Tensor) -> Tensor:
    return lengths(x).max()


def packed(model: Model, x: Tensor) -> PackedSequence:
    out = model.rnn(pack_padded_sequence(x, lengths(x), batch_first=True))[0]
    assert isinstance(out, PackedSequence)
    return out


def unpacked(model: Model, x: Tensor, **options: Any) -> Tensor:
    return pad_packed_sequence(packed(model, x), batch_first=True, **options)[0]


def same_size(x: Tensor) -> Tensor:
    return x if rows(x).is_same_size(rows(-x)) else -x


def rows_of(h: Tensor) -> int:
    n, _ = h.shape
    return n


SIZES: dict[str, Body] = {
    "len of nonzero": lambda m, x: x * len(x.nonzero()),
    "shape of rows of a mask": lambda m, x: x * rows(x).shape[0],
    "lengths told": lambda m, x: x * x.new_ones(pad_packed_sequence(packed(m, x))[1].max()).shape[0],
    "torch.numel by name": lambda m, x: x * torch.numel(input=rows(x)),
    "same size by name": lambda m, x: x if x[:3, 0].is_same_size(other=rows(x)) else -x,
    "repeats alone": lambda m, x: x * torch.repeat_interleave(lengths(x)).shape[0],
    "topk": lambda m, x: x * x.topk(longest(x), 1)[0].shape[1],
    "topk by name": lambda m, x: x * x.topk(k=longest(x), dim=1)[0].shape[1],
    "unfold": lambda m, x: x * x.unfold(1, longest(x), 1).shape[1],
    "chunk": lambda m, x: x * len(x.chunk(longest(x), 1)),
    "split into sizes": lambda m, x: x * x.split([longest(x), 5 - longest(x)], 1)[0].shape[1],
    "tensor_split": lambda m, x: x * len(torch.tensor_split(x, longest(x), 1)),
    "pad": lambda m, x: x * F.pad(x, (0, longest(x))).shape[2],
    "reshape": lambda m, x: x * x.repeat(1, 4, 1).reshape(-1, longest(x)).shape[0],
    "unflatten": lambda m, x: x * x.repeat(1, 1, 20).unflatten(2, (longest(x), -1)).shape[3],
    "broadcast_to": lambda m, x: x * torch.broadcast_to(x[:, :1], (len(x), longest(x), 3)).shape[1],
    "view of a constant": lambda m, x: x * torch.ones(60).view(longest(x), -1).shape[1],
    "interpolate": lambda m, x: x * F.interpolate(x, size=longest(x)).shape[2],
    "adaptive pooling": lambda m, x: x * F.adaptive_avg_pool1d(x, longest(x)).shape[2],
    "unpacked shape": lambda m, x: x * rows_of(rows(x)),
    "numel": lambda m, x: x * rows(x).numel(),
    "numel of the shape": lambda m, x: x * rows(x).shape.numel(),
    "torch.numel": lambda m, x: x * torch.numel(rows(x)),
    "size of one dimension": lambda m, x: x * rows(x).size(0),
    "size by name": lambda m, x: x * rows(x).size(dim=-2),
    "nbytes": lambda m, x: x * rows(x).nbytes,
    "stride": lambda m, x: x * rows(x).t().contiguous().stride(0),
    "same size": lambda m, x: same_size(x),
    "comparison of shapes": lambda m, x: x if rows(x).shape == (3, 3) else -x,
    "iteration": lambda m, x: x * sum(1 for _ in rows(x)),
    "parts": lambda m, x: x * len(rows(x).split(1)),
    "unique": lambda m, x: x * len(torch.unique(x)),
    "counts of unique": lambda m, x: x * x.unique(return_counts=True)[1].shape[0],
    "unique_consecutive": lambda m, x: x * torch.unique_consecutive(x).shape[0],
    "masked_select": lambda m, x: x * x.masked_select(x > 0.4).shape[0],
    "argwhere": lambda m, x: x * torch.argwhere(x > 0.4).shape[0],
    "where": lambda m, x: x * torch.where(x > 0.4)[0].shape[0],
    "repeat_interleave": lambda m, x: x * x.repeat_interleave(lengths(x), 0).shape[0],
    "bincount": lambda m, x: x * torch.bincount(lengths(x)).shape[0],
    "one_hot": lambda m, x: x * F.one_hot(lengths(x)).shape[1],
    "new_zeros": lambda m, x: x * x.new_zeros(lengths(x).sum()).shape[0],
    "bounds of a slice": lambda m, x: x * x[:, : lengths(x).max()].shape[1],
    "what is computed from it": lambda m, x: x * (2 * rows(x)).exp().unsqueeze(1).transpose(0, 2).shape[2],
    "what a layer gives": lambda m, x: x * m.line(rows(x)).shape[0],
    "zeros of as many rows": lambda m, x: x * torch.zeros(len(rows(x))).numel(),
    "arange": lambda m, x: x * torch.arange(rows(x).shape[0]).sum(),
    "of a copy": lambda m, x: x * copy.deepcopy(rows(x)).shape[0],
    "of an alias": lambda m, x: x * rows(x).as_subclass(torch.Tensor).shape[0],
    "rows of a packed sequence": lambda m, x: x * packed(m, x).data.shape[0],
    "the longest sequence": lambda m, x: x * unpacked(m, x).shape[1],
    "the longest, in picked rows": lambda m, x: x * unpacked(m, x)[x[:, 0, 1] > -1].shape[1],
    "the longest, after a layer": lambda m, x: x * m.line(unpacked(m, x)).softmax(-1).transpose(0, 1).size(0),
    "a shape given to zeros": lambda m, x: torch.zeros(rows(x).shape),
    "a shape given to reshape": lambda m, x: x.reshape(rows(x).shape),
    "a shape given one by one": lambda m, x: torch.empty(*rows(x).shape),
}


@pytest.mark.parametrize("size", [1, B])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.usefixtures("without_isolation")
def test_sizes_that_data_decided(name: str, size: int) -> None:
    said = refusal(SIZES[name], size)
    assert "a size that data of the batch decided" in said or "reads values" in said or "largest class" in said


def test_the_check_names_the_remedy_for_sizes() -> None:
    with pytest.raises(ValueError, match=r"flatten\(1\).*total_length="):
        gradients.check(Model(lambda m, x: x * len(rows(x))), X)


def test_sizes_read_by_another_library_whose_name_begins_as_pytorchs_does() -> None:
    source = "def count(h):\n    return h.shape[0]\n"
    beside = Path(torch.__file__).parent.with_name("torchelse") / "ops.py"
    namespace: dict[str, Any] = {}
    exec(compile(source, str(beside), "exec"), namespace)
    assert "a size that data of the batch decided" in refusal(lambda m, x: x * namespace["count"](rows(x)))


def test_sizes_of_a_packed_input() -> None:
    class Packed(Model):
        def forward(self, x: PackedSequence) -> Tensor:
            return self.line(x.data) * x.data.shape[0]  # type: ignore[no-any-return]

    given = pack_padded_sequence(X, lengths(X), batch_first=True, enforce_sorted=False)
    with (
        pytest.raises(RuntimeError, match="a size that data of the batch decided"),
        gradients.record(Packed(lambda m, x: x)) as tape,
    ):
        tape._recorder.model(given)


LONGEST: dict[str, Body] = {
    "mean": lambda m, x: unpacked(m, x).mean(1),
    "max": lambda m, x: unpacked(m, x).max(1).values,
    "amax": lambda m, x: unpacked(m, x).amax(dim=1),
    "std": lambda m, x: unpacked(m, x).std(1),
    "softmax": lambda m, x: (unpacked(m, x).softmax(1) * unpacked(m, x)).sum(1),
    "logsumexp": lambda m, x: unpacked(m, x).logsumexp(1),
    "norm": lambda m, x: unpacked(m, x).norm(dim=1),
    "last position": lambda m, x: unpacked(m, x)[:, -1],
    "but the last": lambda m, x: unpacked(m, x)[:, :-1].sum(1),
    "flip": lambda m, x: unpacked(m, x).flip(1)[:, 0],
    "roll": lambda m, x: unpacked(m, x).roll(1, 1)[:, 0],
    "sum of what a bias fills": lambda m, x: m.line(unpacked(m, x)).sum(1),
    "sum after a write": lambda m, x: unpacked(m, x).add_(1.0).sum(1),
    "sum after a write to a view": lambda m, x: after_writing(unpacked(m, x)).sum(1),
    "last position written": lambda m, x: without_last(unpacked(m, x))[:, 0],
    "sum of a sum": lambda m, x: (unpacked(m, x) + 1.0).sum(1),
    "sum of exponentials": lambda m, x: unpacked(m, x).exp().sum(1),
    "padding of ones": lambda m, x: unpacked(m, x, padding_value=1.0).sum(1),
    "convolution": lambda m, x: F.conv1d(unpacked(m, x).transpose(1, 2), torch.ones(3, 3, 1)).sum(2),
    "pooling": lambda m, x: F.adaptive_avg_pool1d(unpacked(m, x).transpose(1, 2), 1).squeeze(2),
    "attention": lambda m, x: F.scaled_dot_product_attention(*[unpacked(m, x)] * 3)[:, 0],
    "another layer": lambda m, x: m.rnn(unpacked(m, x))[1][0],
    "a view for a transpose": lambda m, x: unpacked(m, x).reshape(len(x), 3, -1).sum(2),
    "a view for a transpose, its first": lambda m, x: unpacked(m, x).contiguous().view(len(x), 3, -1)[:, :, 0],
    "a view of parts": lambda m, x: unpacked(m, x).reshape(len(x), 3, -1, 1).sum(2).flatten(1),
    "a view back of a transpose": lambda m, x: unpacked(m, x).transpose(1, 2).reshape(len(x), -1, 3).sum(1),
    "flatten": lambda m, x: unpacked(m, x).flatten(1)[:, :3],
    "matmul": lambda m, x: unpacked(m, x).transpose(1, 2) @ torch.ones(5, 3),
    "matmul from the left": lambda m, x: torch.ones(2, 5) @ unpacked(m, x),
    "linear": lambda m, x: F.linear(unpacked(m, x).transpose(1, 2), torch.ones(3, 5)),
    "layer_norm": lambda m, x: F.layer_norm(unpacked(m, x).transpose(1, 2), (5,))[:, :, :3],
    "layer_norm of both": lambda m, x: F.layer_norm(unpacked(m, x), (5, 3))[:, 0],
    "assigned": lambda m, x: assigned(torch.zeros_like(x), unpacked(m, x))[:, 0],
    "sum of what has another's type": lambda m, x: (
        (unpacked(m, x) + 1.0).type_as(unpacked(m, x).double()).sum(1).float()
    ),
    "sum of a quotient": lambda m, x: torch.div(torch.ones(3), unpacked(m, x)).sum(1),
    "sum of shares": lambda m, x: (unpacked(m, x) / unpacked(m, x).abs().sum(-1, keepdim=True)).sum(1),
    "sum of products with infinity": lambda m, x: (unpacked(m, x) * (1 / unpacked(m, x))).sum(1),
    "sum of infinity times": lambda m, x: ((1 / unpacked(m, x)) * unpacked(m, x)).sum(1),
    "sum of constant infinities": lambda m, x: (unpacked(m, x) * torch.tensor([1.0, 2.0, torch.inf])).sum(1),
    "sum divided by zero": lambda m, x: (unpacked(m, x) / torch.tensor([1.0, 2.0, 0.0])).sum(1),
    "sum divided by the number zero": lambda m, x: (unpacked(m, x) / 0).sum(1),
    "sum of infinite steps": lambda m, x: torch.add(h := unpacked(m, x), h, alpha=float("inf")).sum(1),
    "sum of everything": lambda m, x: x + (unpacked(m, x) + 1.0).sum(),
    "positions twice": lambda m, x: unpacked(m, x)[:, torch.tensor([[0, -1], [0, 1]])].flatten(1)[:, :3],
    "mean of fewer dimensions": lambda m, x: (torch.ones(1, 1, 1, 1) * unpacked(m, x)).mean(2)[0],
    "sum of roots": lambda m, x: (unpacked(m, x).abs() * m.line.bias).sqrt().sum(1),
}


def assigned(into: Tensor, h: Tensor) -> Tensor:
    into[:, 0:5] = h
    return into


def after_writing(h: Tensor) -> Tensor:
    h[:, :, :2].add_(1.0)
    return h


def without_last(h: Tensor) -> Tensor:
    h[:, -1] = 0.0
    return h


@pytest.mark.parametrize("name", LONGEST)
@pytest.mark.usefixtures("without_isolation")
def test_results_that_depend_on_the_longest_sequence_are_refused(name: str) -> None:
    assert "total_length=" in refusal(LONGEST[name])


HONEST: dict[str, Body] = {
    "other sizes of rows": lambda m, x: x * rows(x).shape[-1] * rows(x).size(1) * rows(x).ndim,
    "parts of rows, by name": lambda m, x: x + put_back(m, x, Parts()),
    "selected by a mask, by name": lambda m, x: x + scattered(x, torch.masked_select(x, mask=x > 0.4)),
    "selected by names": lambda m, x: x + scattered(x, torch.masked_select(input=x, mask=x > 0.4)),
    "made as large as rows": lambda m, x: x + put_back(m, x, Shifted()),
    "rows put back": lambda m, x: x + torch.zeros(x.shape).masked_scatter(x > 2, x) + put_back(m, x),
    "layers with checks of sizes": lambda m, x: x + put_back(m, x, nn.LayerNorm(3, elementwise_affine=False)),
    "steps one by one": lambda m, x: unpacked(m, x, total_length=5),
    "as_subclass": lambda m, x: x.as_subclass(torch.Tensor) * 2,
    "copies": lambda m, x: copy.deepcopy(x) * nn.Parameter(x, requires_grad=False),
    "own length": lambda m, x: unpacked(m, x)[torch.arange(len(x)), lengths(x) - 1],
    "own length by gather": lambda m, x: unpacked(m, x).gather(1, lengths(x).view(-1, 1, 1).expand(-1, -1, 3) - 1),
    "own length of another order": lambda m, x: last(m, x.flip(1)),
    "first position": lambda m, x: m.line(unpacked(m, x))[:, 0],
    "sum of zeros in another order": lambda m, x: summed(m, x.flip(1)),
    "sum of zeros": lambda m, x: unpacked(m, x).relu().sum(1) / lengths(x).unsqueeze(1),
    "sum of zeros with factors": lambda m, x: (
        2 * unpacked(m, x) * m.line.bias / torch.tensor([1.0, 2.0, 3.0]) * (unpacked(m, x) > 0) / 3
    ).sum(1),
    "sum of squares": lambda m, x: (unpacked(m, x) * torch.add(h := unpacked(m, x), h, alpha=3)).sum(1),
    "parts of each position": lambda m, x: unpacked(m, x).unflatten(2, (3, 1)).sum(1).flatten(1),
    "mean of a given length": lambda m, x: unpacked(m, x, total_length=5).mean(1),
    "state": lambda m, x: m.rnn(packed_input(x))[1][0],
    "packed again": lambda m, x: packed_again(m, x.flip(1)),
    "state beside the input": lambda m, x: m.rnn(packed_input(x.flip(1)))[1][0] * x.mean(1),
    "checkpoint": lambda m, x: checkpoint(m.line, x, use_reentrant=False),
    "own function of the input": lambda m, x: Doubled.apply(x),  # type: ignore[no-untyped-call]
    "own function that gives its input": lambda m, x: Same.apply(x),  # type: ignore[no-untyped-call]
    "sizes in text": lambda m, x: x * len(f"{tuple(x.shape)}"),
}


def summed(model: Model, x: Tensor) -> Tensor:
    out, own = pad_packed_sequence(model.rnn(packed_input(x))[0], batch_first=True)
    return out.sum(1) / own.unsqueeze(1) + x.mean(1)


def last(model: Model, x: Tensor) -> Tensor:
    """By the lengths that `pad_packed_sequence` tells."""
    out, own = pad_packed_sequence(model.rnn(packed_input(x))[0], batch_first=True)
    steps = torch.arange(5) < own.unsqueeze(1)
    assert steps.shape == (len(x), 5)
    return out[torch.arange(len(x)), own - 1] * steps.sum(1, keepdim=True)


def packed_again(model: Model, x: Tensor) -> Tensor:
    out, own = pad_packed_sequence(model.rnn(packed_input(x))[0], batch_first=True)
    again = pack_padded_sequence(F.layer_norm(out, (3,)), own, batch_first=True, enforce_sorted=False)
    state: Tensor = model.rnn(again)[1][0]
    return state


def packed_input(x: Tensor) -> PackedSequence:
    return pack_padded_sequence(x, lengths(x), batch_first=True, enforce_sorted=False)


class Parts(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        first = torch.squeeze(input=torch.unbind(input=h.unsqueeze(2), dim=1)[0], dim=1)
        return torch.stack([first, *torch.split(tensor=h, split_size_or_sections=1, dim=1)[0].unbind(dim=1), first], 1)


class Shifted(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.add(*torch.broadcast_tensors(torch.tensor([[1.0, 2.0, 3.0]]), h)).sin()


def scattered(x: Tensor, entries: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    found[x > 0.4] = entries * 2
    return found


def put_back(model: Model, x: Tensor, layer: nn.Module | None = None) -> Tensor:
    found, mask = torch.zeros_like(x), x[:, :, 0] > 0.4
    h = model.line(rows(x))
    found[mask] = h if layer is None else layer(h)
    assert found.shape == x.shape
    return found


@pytest.mark.parametrize("name", HONEST)
def test_honest_forms_are_accepted_and_right(name: str, naive: Any, compare: Any) -> None:
    model = Model(HONEST[name])
    each = naive(model, lambda i: model(X[i : i + 1]).sum(), B)
    with gradients.record(model) as tape:
        model(X).flatten(1).sum(1).sum().backward()
    compare(tape, each)


def test_outputs_as_wide_as_the_longest_sequence_are_refused_with_the_remedy(naive: Any, compare: Any) -> None:
    """In the model and in the loss: a mean over them would depend on the longest example."""

    class Packed(Model):
        def forward(self, x: Tensor) -> Any:
            return packed(self, x)

    with pytest.raises(RuntimeError, match="total_length="), gradients.record(model := Model(unpacked)):
        model(X)
    model = Packed(lambda m, x: x)
    with pytest.raises(RuntimeError, match="total_length="), gradients.record(model):
        pad_packed_sequence(model(X))[0].square().mean().backward()

    def loss(x: Tensor) -> Tensor:
        return pad_packed_sequence(model(x), total_length=5)[0].square().mean()

    each = naive(model, lambda i: loss(X[i : i + 1]), B)
    with gradients.record(model) as tape:
        loss(X).backward()
    compare(tape, each)


aten = torch.ops.aten
NUMBERS: dict[str, Body] = {
    "item": lambda m, x: x * aten.item.default(x.sum()),
    "item, whatever it is called": lambda m, x: x * aten._local_scalar_dense(x.sum()),
    "a number": lambda m, x: x * aten.Float.Tensor(x.sum()),
    "truth": lambda m, x: x * aten.is_nonzero.default(x.sum()),
    "equal": lambda m, x: x * aten.equal.default(x, x + 1),
    "item, by keyword": lambda m, x: x * aten.item(self=x.sum()),
    "truth, by keyword": lambda m, x: x * torch.is_nonzero(input=x.sum()),
    "equal, by keywords": lambda m, x: x * torch.equal(input=x, other=x + 1),
    "equal to a constant, by keyword": lambda m, x: x * torch.ones(3).equal(other=x),
    "size": lambda m, x: x * aten.size.int(rows(x), 0),
    "sizes": lambda m, x: x * aten.size.default(rows(x))[0],
    "symbolic size": lambda m, x: x * aten.sym_size.int(rows(x), 0),
    "symbolic sizes": lambda m, x: x * aten.sym_size.default(rows(x))[0],
    "symbolic number": lambda m, x: x * aten.sym_numel(rows(x)),
    "symbolic stride": lambda m, x: x * aten.sym_stride.default(rows(x).t())[0],
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.usefixtures("without_isolation")
def test_numbers_by_the_names_below_pytorchs_own(name: str) -> None:
    assert "into Python inside the model" in refusal(NUMBERS[name])


def test_detached_by_keyword() -> None:
    model = Model(lambda m, x: x + torch.detach(input=m.line(x)))
    with gradients.record(model) as tape:
        model(X).sum().backward()
    assert len(tape.norms()) == B


def test_reading_metadata_of_the_batch_without_its_values_is_allowed() -> None:
    model = Model(lambda m, x: x * (1 + hash(x) * 0) * (2 - x.is_signed()) * aten.size.int(x, 0) * x.dense_dim())
    with gradients.record(model) as tape:
        model(X).sum().backward()
    assert len(tape.norms()) == B


def from_storage(x: Tensor) -> Tensor:
    return torch.empty(0).set_(x.untyped_storage(), 0, x.shape)


def saved(x: Tensor) -> Any:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)


def nested(x: Tensor, **options: Any) -> Tensor:
    return torch.nested.nested_tensor([x[i] for i in range(len(x))], **options)


PLAIN: dict[str, Body] = {
    "untyped_storage": lambda m, x: from_storage(x),
    "storage": lambda m, x: torch.tensor(x.storage().tolist()).view(x.shape),
    "dlpack": lambda m, x: torch.from_dlpack(x),  # type: ignore[attr-defined]
    "array": lambda m, x: torch.tensor(np.asarray(x)),
    "numbers": lambda m, x: x * torch.Tensor([x.mean(), x.max()])[0],
    "pickle": lambda m, x: pickle.loads(pickle.dumps(x)),
    "save": lambda m, x: saved(x),
    "as another class": lambda m, x: x.as_subclass(nn.Parameter),
    "as_subclass, mixed": lambda m, x: x - x.as_subclass(torch.Tensor).mean(0),
    "nested": lambda m, x: x - nested(x).to_padded_tensor(0.0).mean(0),
    "jagged": lambda m, x: x - nested(x, layout=torch.jagged).values()[0],
    "repr": lambda m, x: x * len(repr(x)),
    "str": lambda m, x: x * len(str(x)),
    "format": lambda m, x: x * float(f"{x.mean():.3f}"),
    "text": lambda m, x: x * len(f"{x}"),
    "print": lambda m, x: (print(x), x)[1],
    "own function": lambda m, x: Centred.apply(x),  # type: ignore[no-untyped-call]
    "own function that reads": lambda m, x: Read.apply(x),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.usefixtures("without_isolation")
def test_ways_to_the_plain_tensor(name: str) -> None:
    said = refusal(PLAIN[name])
    assert "reads values of the batch" in said or "no per-example gradients" in said


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


class Same(Doubled):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x


class Centred(Doubled):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Read(Doubled):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x.mean().item()


def test_scripted_modules() -> None:
    model = Model(lambda m, x: x)
    model.part = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match=r"part \(RecursiveScriptModule\) is scripted") as error:
        gradients.record(model)
    assert str(error.value).count("is scripted") == 1


def test_text_of_a_batch_after_the_model_failed() -> None:
    kept: list[Tensor] = []
    model = Model(lambda m, x: kept.append(2 * x) or x @ x)  # type: ignore[func-returns-value]
    engine = gradients.attach(model)
    with pytest.raises(RuntimeError, match="size"):
        model(X)
    assert "tensor" in repr(kept[-1])
    engine.detach()


def test_text_of_a_batch_in_the_users_loop() -> None:
    model = Model(lambda m, x: x)
    with gradients.record(model):
        out = model(X)
        assert "tensor" in repr(out)
        assert f"{out.sum().detach():.1f}"
        assert len(rows(out)) == rows(out).shape[0]


class Centring(TorchFunctionMode):
    """Somebody's own mode around the model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tanh:
            args = (args[0] - args[0].mean(0),)
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            args = (2 * args[0], *args[1:])
        return func(*args, **(kwargs or {}))


def test_modes_around_the_model_see_what_is_followed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with gradients.record(model), Centring(), pytest.raises(ValueError, match="whole batch"):
        model(X).sum().backward()
    expected, found = [], []
    with Doubling():
        for each in (X[i : i + 1] for i in range(len(X))):
            with gradients.record(model) as tape:
                model(each).sum().backward()
            expected += tape.norms().tolist()
        with gradients.record(model) as tape:
            model(X).sum().backward()
        found = tape.norms().tolist()
    model(2 * X[:1]).sum().backward()
    own = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert found == pytest.approx(expected, rel=1e-5) and found[0] == pytest.approx(float(own), rel=1e-2)


CLOSED_OVER: dict[str, Callable[[Tensor], Tensor]] = {
    "vmap": lambda x: torch.vmap(lambda c: (c * x).mean(0))(torch.ones(3, 4))[0],
    "vmap, of nothing else": lambda x: torch.vmap(lambda c: x.mean(0))(torch.ones(3, 4))[0],
    "jvp": lambda x: torch.func.jvp(lambda w: (w * x).mean(0), (torch.ones(4),), (torch.ones(4),))[1],
    "jacfwd": lambda x: torch.func.jacfwd(lambda w: (w * x).sum(0))(torch.ones(4)).sum(0),
    "grad": lambda x: torch.func.grad(lambda w: (x @ w).sum())(torch.ones(4)),
    "functionalize": lambda x: torch.func.functionalize(lambda w: (w * x).mean(0))(torch.ones(4)),
}


@pytest.mark.parametrize("name", CLOSED_OVER)
def test_transforms_of_constants_by_functions_that_know_the_batch(name: str) -> None:
    class Closing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * CLOSED_OVER[name](x))

    model = Closing(4, 2)
    with gradients.record(model), pytest.raises(ValueError, match="hide operations on the batch"):
        model(torch.randn(8, 4))


def test_transforms_inside_isolated_modules_may_not_read_the_batch_from_elsewhere() -> None:
    whole: list[Tensor] = []

    class Reading(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            rows = super().forward(torch.masked_scatter(x, x > 0, x))  # no batch rule: the module is isolated
            return rows * torch.func.grad(lambda t: t.square().sum())(whole[0]).sum()

    class Outer(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            whole[:] = [x]
            return super().forward(x)  # type: ignore[no-any-return]

    model = Outer(Reading(4, 2), nn.Linear(2, 1))
    with gradients.record(model), pytest.raises(ValueError, match="hide operations on the batch"):
        model(torch.randn(6, 4)).sum().backward()
