"""However an operation is written down: it is refused, or nobody else's gradient moves.

Keywords that PyTorch takes from NumPy, dimensions one by one, numbers that are NumPy's, arrays as indices, writes that
no name shows. As many records as features, so that no shape gives anything away.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tacit import gradients

B = 4
Body = Callable[["Model", Tensor], Tensor]
REFUSED = (ValueError, RuntimeError)
ZERO, ONE = np.int64(0), np.int64(1)


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.scale, self.one = body, nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.tensor(0.7))
        self.slots, self.weight = nn.Parameter(torch.randn(B)), nn.Parameter(torch.randn(B, 3))
        self.rnn = nn.GRU(B, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.body(self, x) * self.scale)


def norms(body: Body, x: Tensor) -> Tensor:
    model = Model(body)
    engine = gradients.attach(model)
    try:
        model(x).sum().backward()
        return engine.norms().clone()
    finally:
        engine.detach()


def written(x: Tensor) -> Tensor:
    mean, variance = torch.zeros(B), torch.ones(B)
    F.batch_norm(x, mean, variance, training=True, momentum=1.0)
    return mean


def instances(x: Tensor) -> Tensor:
    mean, variance = torch.zeros(B), torch.ones(B)
    F.instance_norm(x.unsqueeze(2).expand(B, B, 2), mean, variance, use_input_stats=True, momentum=1.0)
    return mean


def copied(x: Tensor) -> Tensor:
    kept = torch.zeros(B, B)
    torch.ops.aten.copy_.default(kept.view(-1), x.reshape(-1))
    return kept


@torch.library.custom_op("tacit_test::keep", mutates_args=("kept",))
def keep(x: Tensor, kept: Tensor) -> None:
    kept.copy_(x)


def kept(x: Tensor) -> Tensor:
    found = torch.zeros(B, B)
    keep(x, found)
    return found


def cleared(x: Tensor, key: Callable[[Tensor], Any], value: Any = 0.0) -> Tensor:
    found = x * 1.0
    found[key(x)] = value
    return found


def marked(x: Tensor) -> Tensor:
    found = torch.zeros(B)
    found[(x[:, 0] > 0.5).long()] = 1.0
    return found


def assigned(x: Tensor) -> Tensor:
    found = torch.zeros(B, B)
    found.data = x
    return found


def parted(x: Tensor) -> Tensor:
    a, b = x.T.chunk(2, axis=1)  # type: ignore[call-arg]
    return torch.cat([a + b, a - b], 1)


def lengths(x: Tensor) -> Tensor:
    return (x[:, 0] > 0.5).long().cpu() + 1


MIDDLE = torch.tensor([0, 2, 1, 3])
ATTACKS: dict[str, Body] = {
    "cumsum axis": lambda m, x: x.cumsum(axis=0),
    "softmax axis": lambda m, x: torch.softmax(x, axis=0),  # type: ignore[call-overload]
    "log_softmax axis": lambda m, x: x.log_softmax(axis=0),  # type: ignore[call-overload]
    "sort axis": lambda m, x: torch.sort(x, axis=0)[0],  # type: ignore[call-overload]
    "topk axis": lambda m, x: torch.topk(x, 2, axis=0)[0].expand(2, B),  # type: ignore[call-arg]
    "argsort axis": lambda m, x: torch.argsort(x, axis=0) * x,  # type: ignore[call-overload]
    "cumsum of NumPy's": lambda m, x: x.cumsum(ZERO),
    "softmax of NumPy's": lambda m, x: F.softmax(x, dim=ZERO),
    "flip of NumPy's": lambda m, x: x.flip(ZERO),
    "cumprod of NumPy's": lambda m, x: x.cumprod(ZERO),
    "cumsum of a tensor": lambda m, x: x.cumsum(torch.tensor(0)),
    "flip one by one": lambda m, x: x.flip(1, 0),
    "diff by place": lambda m, x: torch.diff(x, 1, 0, prepend=torch.zeros(1, B)),
    "unfold by name": lambda m, x: x.unfold(dimension=0, size=2, step=1).sum(2),
    "count one by one": lambda m, x: (x > 0.5).count_nonzero(1, 0) * x,  # type: ignore[call-overload]
    "std of all": lambda m, x: x * x.std(True),
    "sum keepdims": lambda m, x: x.T.sum(axis=0, keepdims=True).expand(B, B),  # type: ignore[call-overload]
    "mean keepdims": lambda m, x: x.T.mean(axis=0, keepdims=True).expand(B, B),  # type: ignore[call-overload]
    "unbind axis": lambda m, x: torch.stack(x.unbind(axis=1)),  # type: ignore[call-arg]
    "select axis": lambda m, x: torch.stack([x.select(axis=1, index=i) for i in range(B)]),  # type: ignore[call-overload]
    "chunk axis": lambda m, x: parted(x),
    "permute by name": lambda m, x: torch.permute(input=x.unsqueeze(1), dims=(2, 1, 0)).expand(B, B, B).sum(2),
    "movedim by name": lambda m, x: torch.movedim(input=x.unsqueeze(1), source=0, destination=2).expand(B, B, B).sum(2),
    "index by array": lambda m, x: x.T[np.arange(B)],
    "index by tuple": lambda m, x: x.T[(0, 1, 2, 3),],
    "index by truths": lambda m, x: x.T[np.array([True] * B)],
    "index by lists": lambda m, x: x.T[:, :, None, None].expand(B, B, B, B)[[[0, 1, 2], [1, 0, 2]]],  # type: ignore[index]
    "index True": lambda m, x: x[True].expand(B, B, B).sum(1),
    "index by a byte": lambda m, x: x[torch.tensor(1, dtype=torch.uint8)].expand(B, B, B).sum(1),
    "assign to True": lambda m, x: cleared(x, lambda x: True, x.flip(1)),
    "assign by data": lambda m, x: x * marked(x),
    "assign to a slice": lambda m, x: cleared(x, lambda x: (slice(None), slice(None, (x.sum() * 3).long() % B))),
    "index_select without a dimension": lambda m, x: x.T.index_select(0, torch.tensor(1)).expand(B, B),
    "where alone": lambda m, x: x * torch.where(torch.cat([x[:, 0] > 0.5, x[:, 0] <= 0.5]))[0].unsqueeze(1),
    "scatter longer": lambda m, x: torch.zeros(B, B).scatter(1, (x > 0.5).long(), x.repeat_interleave(2, 0)),
    "einsum letters": lambda m, x: torch.einsum("...a,Zb->...Zab", x, x).sum((2, 3)),
    "rank": lambda m, x: x[x[:, 0].argsort()] * torch.arange(4.0).unsqueeze(1),
    "rank of those picked": lambda m, x: x[x[:, 0] > 0.4] * torch.arange(10.0)[: len(x[x[:, 0] > 0.4])].unsqueeze(1),
    "slots in order": lambda m, x: x * m.slots.index_select(0, x[:, 0].argsort()).unsqueeze(1),
    "one_hot": lambda m, x: F.one_hot((3 * x).long()).float().softmax(-1).sum(-1) + x * 0,
    "width of one_hot": lambda m, x: x * F.one_hot((3 * x).long()).shape[-1],
    "batch statistics": lambda m, x: x - written(x),
    "instance statistics": lambda m, x: x - instances(x),
    "written by overload": lambda m, x: x - copied(x).mean(0),
    "written by one's own": lambda m, x: x - kept(x).mean(0),
    "deepcopy": lambda m, x: x - copy.deepcopy(x).mean(0),
    "copy": lambda m, x: x - copy.copy(x).mean(0),
    "pickle": lambda m, x: x - pickle.loads(pickle.dumps(x)).mean(0),
    "new_tensor": lambda m, x: x - x.new_tensor(x).mean(0),
    "dlpack": lambda m, x: x - torch.from_dlpack(x).mean(0),
    "tensor": lambda m, x: x - torch.tensor(x).mean(0),
    "assigned": lambda m, x: x - assigned(x).mean(0),
    "full": lambda m, x: x * torch.full((B,), x.sum()),
    "full of truth": lambda m, x: x * torch.full((), x.sum() > 8.0),
    "arange": lambda m, x: x * torch.arange(x.sum()).sum(),
    "scalar_tensor": lambda m, x: x * torch.scalar_tensor(x.sum()),
    "alpha": lambda m, x: x * torch.add(torch.ones(B), torch.ones(B), alpha=x.sum()),
    "roll": lambda m, x: x * torch.roll(torch.arange(4.0), (3 * x.sum()).long()),
    "size": lambda m, x: x * torch.ones((3 * x.sum()).long()).sum(),
    "split": lambda m, x: x * torch.ones(B).split([(x.sum() > 8).long() + 1, 3 - (x.sum() > 8).long()])[0].sum(),
    "sparse": lambda m, x: x - torch.sparse_coo_tensor(torch.arange(B)[None], x[:, 0], (B,)).to_dense(),
    "vmap": lambda m, x: x - torch.vmap(lambda column: column.mean(), in_dims=1)(x),
    "vmap of a parameter": lambda m, x: x @ m.weight + torch.vmap(lambda row: row @ m.weight)(x).mean(0),
    "grad": lambda m, x: x * torch.func.grad(lambda t: t.mean(0).square().sum())(x),
    "take": lambda m, x: torch.take(x, torch.arange(16).view(B, B)[MIDDLE]),
    "index_put": lambda m, x: torch.index_put(x, (MIDDLE,), x),
    "take_along_dim": lambda m, x: torch.take_along_dim(x, MIDDLE[:, None].expand(B, B), 0),
    "masked_scatter": lambda m, x: x.masked_scatter(
        torch.tensor([[True], [False], [True], [False]]).expand(B, B), x * 2
    ),
    "repeat_interleave": lambda m, x: x.repeat_interleave(torch.tensor([1, 2, 0, 1]), dim=0),
    "packed as time": lambda m, x: (
        pack_padded_sequence(
            x.unsqueeze(1).expand(B, B, B) * torch.ones(B, 1), torch.full((B,), B), batch_first=False
        ).data
    ),
    "packed by hand": lambda m, x: m.rnn(PackedSequence(x[torch.tensor([0, 1, 3, 2])], torch.tensor([2, 2])))[0].data,
    "unpacked by hand": lambda m, x: pad_packed_sequence(
        PackedSequence(x[torch.tensor([0, 1, 3, 2])], torch.tensor([2, 2]))
    )[0].flatten(0, 1),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_record_moves_no_other_records_norm(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(B, B, generator=generator)
    try:
        before = norms(ATTACKS[name], x)
        for i in range(B):
            changed = x.clone()
            changed[i] = 1.5 - 2 * x[i]
            others = [j for j in range(B) if j != i]
            assert torch.allclose(norms(ATTACKS[name], changed)[others], before[others], rtol=1e-3, atol=1e-5), i
    except REFUSED:
        return


RIGHT: dict[str, Body] = {
    "cumsum axis": lambda m, x: x.cumsum(axis=1),
    "softmax of NumPy's": lambda m, x: torch.softmax(x, ONE),
    "sum keepdims": lambda m, x: x.sum(axis=1, keepdims=True) * x,  # type: ignore[call-overload]
    "max of two": lambda m, x: torch.max(x, other=torch.full((B,), 0.5)),
    "flip": lambda m, x: x.flip(1),
    "unfold": lambda m, x: x.unfold(1, 2, 1).prod(2),
    "alike in any order": lambda m, x: x[:, :1] * 0 + m.one.expand(9).index_select(0, x[:, 0].argsort()).unsqueeze(1),
    "diff": lambda m, x: torch.diff(x, 1, 1, prepend=x[:, :1]),
    "std": lambda m, x: x * x.std(1, True, keepdim=True),
    "unbind axis": lambda m, x: torch.stack(x.unbind(axis=1), 1),  # type: ignore[call-arg]
    "permute by name": lambda m, x: torch.permute(input=x.unsqueeze(1), dims=(0, 2, 1)).flatten(1),
    "index by array": lambda m, x: x[:, np.array([2, 0, 1])],
    "index by tuple": lambda m, x: x[:, (2, 0, 1)],
    "one_hot": lambda m, x: F.one_hot((3 * x).long(), 5).float().mean(-1) * x,
    "deepcopy": lambda m, x: x * copy.deepcopy(x),
    "einsum": lambda m, x: torch.einsum("...a,...b->...ab", x, x).flatten(1),
    "rows for a bias": lambda m, x: F.linear(x, torch.ones(3, B), x[:, :3]),
    "scatter": lambda m, x: torch.zeros(B, B).scatter(1, (x > 0.5).long(), x),
}


@pytest.mark.parametrize("name", RIGHT)
def test_operations_that_keep_examples_apart_give_correct_gradients(name: str, naive: Any, compare: Any) -> None:
    model, x = Model(RIGHT[name]), torch.rand(B, B)
    alone = lambda i: _alone(model, x, i)  # noqa: E731
    each = naive(model, alone, B)
    with gradients.record(model) as tape:
        model(x).flatten(1).sum(1).sum().backward()
    compare(tape, each)


def _alone(model: nn.Module, x: Tensor, i: int) -> Tensor:
    """The loss of record i; constants with a row for each record are cut by nobody, so all rows are given."""
    out: Tensor = model(x)
    return out[i].sum()


@pytest.mark.usefixtures("without_isolation")
def test_a_parameter_is_not_left_out_by_a_write() -> None:
    def body(model: Model, x: Tensor) -> Tensor:
        h = x * 1.0
        h.masked_fill_(x > 0.5, model.one)
        return h

    with pytest.raises(REFUSED, match="masked_fill_"):
        norms(body, torch.rand(B, B))
    assert float(norms(lambda m, x: x.masked_fill(x > 0.5, m.one), torch.rand(B, B)).min()) > 0


def test_rows_that_constants_picked_may_meet_constants(naive: Any, compare: Any) -> None:
    """Masked losses with labels and weights of the user's loop."""
    model, x = Model(lambda m, x: x @ m.weight), torch.rand(B, B)
    mask, labels = torch.tensor([[True, False, True], [False, False, True]] * 2), torch.randn(B, 3)

    def loss(out: Tensor, k: Tensor, t: Tensor) -> Tensor:
        return ((out[k] - t[k]) ** 2).sum()

    each = naive(model, lambda i: loss(model(x[i : i + 1]), mask[i : i + 1], labels[i : i + 1]), B)
    with gradients.record(model) as tape:
        loss(model(x), mask, labels).backward()
    compare(tape, each)
