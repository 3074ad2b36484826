"""A record's own gradient is the same, to the last bit, in every place and beside however many others.

Everybody has the same terms of 2^30, which cancel up to their rounding: a sum over a record's positions that depends on
its place gives everybody in the last places another gradient when one record more joins, each of them clipped to S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients.factors.contribution import FEW, Dense, added, own_sums, row_squares
from tacit.gradients.factors.outer import Outer
from tacit.gradients.factors.sparse import Rows
from tacit.gradients.kernels import batch_invariant_matmul as alike
from tacit.gradients.layout import warn_of_lengths
from tacit.gradients.precision import MARGIN
from tacit.gradients.tap import simple_fraction, unscaled

MOST = 132


def cancelling(positions: int, width: int, seed: int = 0) -> Tensor:
    generator, half = torch.Generator().manual_seed(seed), positions // 2
    c = 2.0**30 * torch.randn(positions, width, generator=generator)
    c[half : 2 * half] = -c[:half][torch.randperm(half, generator=generator)]
    c[2 * half :] = 0
    return c


@pytest.mark.parametrize("width", [1, 3, 10])
@pytest.mark.parametrize("positions", [2, 7, 16, 50])
def test_a_records_own_sum_does_not_depend_on_its_place(positions: int, width: int) -> None:
    """For records first and time first in memory, and for channels before and after the places of an image."""
    c = cancelling(positions, width)
    whole = own_sums(c.expand(1, positions, width), 1)
    squares = row_squares(c.expand(1, positions, width))
    for n in range(1, MOST):
        first = c.expand(n, positions, width).contiguous()
        time_first = c.unsqueeze(1).expand(positions, n, width).contiguous().transpose(0, 1)
        features_first = c.unsqueeze(2).expand(positions, width, n).contiguous().movedim(2, 0)
        for x in (first, time_first, features_first):
            assert torch.equal(own_sums(x, 1), whole.expand(n, width)), n
            assert torch.equal(row_squares(x), squares.expand(n)), n


class Shift(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class FirstOutput(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        for name, parameter in layer.named_parameters():  # so that nothing but the biases acts
            nn.init.constant_(parameter, 1.0 if "bias" in name else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


LAYERS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "linear": (lambda width: nn.Linear(4, width), 1),
    "scales": (Shift, 1),
    "layer norm": (nn.LayerNorm, 1),
    "recurrent, time first": (lambda width: FirstOutput(nn.RNN(4, width, nonlinearity="relu")), 1),
    "recurrent, records first": (lambda width: FirstOutput(nn.RNN(4, width, nonlinearity="relu", batch_first=True)), 0),
}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("kind", LAYERS)
def test_one_record_more_leaves_what_the_others_add_as_it_was(kind: str, width: int, flat: Any) -> None:
    make, dim = LAYERS[kind]
    torch.manual_seed(0)
    model, positions = make(width), 17
    c = torch.cat([torch.zeros(1, width), cancelling(positions - 1, width, seed=width)])
    inputs = width if kind in ("scales", "layer norm") else 4

    def run(n: int) -> dict[str, Tensor]:
        shape = (positions, n) if dim else (n, positions)
        gradient = c.unsqueeze(dim).expand(*shape, width).clone()
        gradient.select(dim, n - 1).zero_()  # who came last
        with gradients.record(model, batch_dim=dim) as tape:
            (model(torch.ones(*shape, inputs)) * gradient).sum().backward()
        return tape.clipped_sum(flat(1.0))

    before = run(1)
    for n in range(2, MOST):
        after = run(n)
        moved = sum(float((after[name] - before[name]).double().square().sum()) for name in after) ** 0.5
        assert moved <= 1 + MARGIN, n
        before = after


def test_a_record_of_nan_leaves_the_memory_of_the_others_as_it_was(flat: Any) -> None:
    """Features first in memory: a kernel may round by that, and must not because somebody else is not a number."""
    torch.manual_seed(0)
    model = nn.Linear(10, 60)
    x, c = torch.randn(10, 40).t(), torch.randn(40, 60)

    def run(x: Tensor) -> dict[str, Tensor]:
        with gradients.record(model) as tape:
            (model(x) * c).sum().backward()
        return tape.clipped_sum(flat(1.0))

    nobody, nan = x.clone(), x.clone()
    nobody[-1], nan[-1] = 0, torch.nan
    c[-1] = 0
    assert nan.stride() == nobody.stride() == (1, 40)
    for name, total in run(nobody).items():
        assert torch.equal(run(nan)[name], total), name


def test_the_norms_of_many_parameters_are_added_alike_in_every_place() -> None:
    squares = [torch.rand(1).expand(MOST).clone() for _ in range(12)]
    for n in range(1, MOST):
        assert torch.equal(added(s[:n].clone() for s in squares), added(s[:1] for s in squares).expand(n))


@pytest.mark.parametrize("rows", [1, 3, 5, 7, 12])
def test_the_rows_of_a_microbatch_are_divided_by_alike_for_every_number_of_records(rows: int) -> None:
    """One record alone too: a batch may end with one."""
    found = {float(unscaled(torch.tensor(1.0) / (rows * n), "sum", "mean", n)) for n in range(1, 600)}
    assert found == {float(torch.tensor(1 / rows))}


def test_a_factor_that_cannot_be_told_from_its_rounding_is_refused() -> None:
    eps = torch.finfo(torch.float32).eps
    assert simple_fraction(0.0, eps) == 0
    assert simple_fraction(float(torch.tensor(-0.37)), eps) == -0.37
    with pytest.raises(ValueError, match=r"loss\.mean\(\)"):
        simple_fraction(0.7390851332151607, eps)
    model = nn.Linear(2, 1)
    with gradients.record(model, reduction="mean"), pytest.raises(ValueError, match=r"loss\.mean\(\)"):
        (model(torch.ones(3, 2)).sum() * 0.7390851332151607 / 3).backward()
    with gradients.record(model, reduction="mean") as tape:
        (model(torch.ones(3, 2)).mean() * 0.7390851332151607).backward()
    tape.norms()


class TimeFirst(nn.Module):
    """A map of a view in which the examples come first, and in memory second."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.line = nn.Parameter(torch.ones(6)), nn.Linear(6, 40)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return self.line(x * self.scale)  # type: ignore[no-any-return]
        return self.line((x.transpose(0, 1).contiguous() * self.scale).transpose(0, 1))  # type: ignore[no-any-return]


def factors(model: nn.Module, x: Tensor) -> list[Tensor]:
    with gradients.record(model) as tape:
        out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        out.square().sum().backward()
    tape.norms()
    parts = [use.parts[0].contribution for use in tape._measured.uses.values()]
    found = [t.flatten(1) for part in parts if isinstance(part, Outer) for t in (part.a, part.g)]
    found += [part.instantiate(0, len(x)) for part in parts if not isinstance(part, Outer)]
    return [out.detach().as_subclass(Tensor), *found]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(6, 1),
        lambda: nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 1)),
        lambda: nn.Sequential(nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, 20)),
        TimeFirst,
        lambda: nn.Linear(6, 7),
        lambda: nn.Sequential(nn.Linear(6, 60), nn.Tanh(), nn.Linear(60, 10)),
        lambda: nn.RNN(6, 7, batch_first=True),
        lambda: nn.GRU(6, 8, batch_first=True),
        lambda: nn.LSTM(6, 5, batch_first=True),
    ],
    ids=["one output", "one output, deep", "from one feature", "time first", "linear", "deep", "rnn", "gru", "lstm"],
)
@pytest.mark.parametrize("positions", [0, 5])
def test_a_records_factors_are_the_same_beside_any_number_of_others(make: Any, positions: int) -> None:
    """Part of the premise, as it is on this machine, for layers whose kernels the engine chooses the sizes of."""
    torch.manual_seed(0)
    model = make()
    if not positions and isinstance(model, nn.RNNBase):
        pytest.skip("a sequence has positions")
    x = torch.randn(70, positions, 6) if positions else torch.randn(70, 6)
    all_of_them = factors(model, x)
    for n in range(1, 70):
        for found, wanted in zip(factors(model, x[:n].clone()), all_of_them, strict=True):
            assert torch.equal(found, wanted[:n]), n


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 7, 8, 9, 11, 15, 50, 101, 785])
def test_a_linear_map_computes_a_row_alike_in_every_place(inputs: int, frozen: bool) -> None:
    """Everybody has the same record, forwards and backwards: one record more moves another to the last place."""
    torch.manual_seed(0)
    for outputs in (1, 2, 3, 4, 5, 7, 8, 10, 11, 16, 50):
        model = nn.Sequential(nn.Linear(inputs, outputs).requires_grad_(not frozen), Shift(outputs))
        x = torch.randn(1, 1, inputs).expand(203, 1, inputs).clone().requires_grad_()
        with gradients.record(model):
            out = model(x)
            (out * torch.randn(1, outputs)).sum().backward()
        plain = out.detach().as_subclass(Tensor)
        assert torch.equal(plain, plain[:1].expand_as(plain)), outputs
        assert x.grad is not None
        assert torch.equal(x.grad, x.grad[:1].expand_as(x.grad)), outputs


def test_a_map_that_is_trained_elsewhere_computes_a_row_alike_too() -> None:
    """As a target network does, without gradients; by position and by keyword."""
    model = nn.ModuleDict({"map": nn.Linear(7, 5), "last": nn.Linear(5, 2)})
    kept = []

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            kept.append(nn.functional.linear(input=x, weight=model["map"].weight, bias=model["map"].bias))
        return model["last"](kept[-1])  # type: ignore[no-any-return]

    model.forward = forward  # type: ignore[method-assign]
    with gradients.record(model):
        model(torch.randn(1, 7).expand(203, 7).clone())
    found = kept[0].as_subclass(Tensor)
    assert torch.equal(found, found[:1].expand_as(found))


def laid_out(rows: Tensor, how: str) -> Tensor:
    """The same rows as they may lie in memory."""
    n, width = rows.shape
    if how.startswith("from "):
        first = int(how.removeprefix("from "))
        return torch.empty(rows.numel() + first)[first:].view(n, width).copy_(rows)
    return {
        "one position": rows.view(n, 1, width),
        "one position, turned": rows.view(1, n, width).transpose(0, 1),
        "features first": rows.t().contiguous().t(),
        "rows": rows,
    }[how]


@pytest.mark.parametrize("how", ["rows", "one position", "one position, turned", "features first", "from 1", "from 3"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("inputs", [1, 3, 4, 8, 16, 20, 24, 33, 100])
def test_a_linear_map_computes_a_row_alike_however_it_lies_in_memory(inputs: int, turned: bool, how: str) -> None:
    """Beside any number of others, forwards and backwards: one more must not have all computed by another kernel."""
    torch.manual_seed(0)
    for outputs in (1, 2, 3, 4, 5, 7, 10, 16, 21, 34, 65):
        weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
        weight = weight.t().contiguous().t() if turned else weight
        calls = {
            "forwards": (inputs, lambda x, w=weight: alike.linear(x, w, None)),
            "with a bias": (inputs, lambda x, w=weight, b=bias: alike.linear(x, w, b)),
            "backwards": (outputs, lambda g, w=weight: alike.linear_backward(g, w)),
        }
        for direction, (width, call) in calls.items():
            row = torch.randn(width) * 2.0 ** torch.randint(-10, 10, (width,))
            wanted = call(row.view(1, width))
            for n in (2, 15, 16, 17, 31, 32, 64, 203):
                found = call(laid_out(row.expand(n, width).contiguous(), how))
                assert torch.equal(found.reshape(n, -1), wanted.expand(n, -1)), (direction, outputs, n)


class Whole:
    """All parameters together, clipped to 1."""

    def partition(self, shapes: Any) -> Any:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return (1 / norms.clamp_min(1e-30)).clamp_max(1)


def two_maps(width: int) -> tuple[nn.Sequential, Tensor]:
    """Linear maps, and a gradient of the second whose terms cancel on the way to the first but for their rounding."""
    torch.manual_seed(0)
    model, order = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 34)), torch.randperm(17)
    with torch.no_grad():
        model[0].bias.zero_()
        model[1].weight[17:] = model[1].weight[:17][order]
    model[1].bias.requires_grad_(False)
    large = 2.0**30 * torch.randn(34)
    large[17:] = -large[:17][order]
    return model, large


def test_one_record_more_does_not_change_how_gradients_are_brought_back() -> None:
    """From a batch with one position that was turned."""
    model, large = two_maps(33)

    def total(n: int) -> Tensor:
        given = large.expand(n, 34).clone()
        given[-1] = 0
        with gradients.record(model, reduction="sum") as tape:
            (model(torch.zeros(n, 1, 8)).transpose(0, 1) * given.view(1, n, 34)).sum().backward()
        return torch.cat([each.flatten() for each in tape.clipped_sum(Whole()).values()]).double()

    for n in range(2, 40):
        assert (total(n) - total(n + 1)).norm() <= 1.02


def test_one_record_more_does_not_change_how_gradients_pass_a_weight_that_is_turned() -> None:
    """Every second record has some; one more before them moves all by a place."""
    model, large = two_maps(4)
    model[1].weight = nn.Parameter(model[1].weight.detach().t().contiguous().t())

    def total(n: int, before: int) -> Tensor:
        given = torch.zeros(n + before, 34)
        given[before::2] = large
        with gradients.record(model, reduction="sum") as tape:
            (model(torch.zeros(n + before, 8)) * given).sum().backward()
        return torch.cat([each.flatten() for each in tape.clipped_sum(Whole()).values()]).double()

    for n in (20, 100, 401):
        assert (total(n, 0) - total(n, 1)).norm() <= 1.02


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_computes_a_record_alike_in_every_place(kind: Any) -> None:
    torch.manual_seed(0)
    for inputs, hidden in ((20, 5), (7, 8), (6, 5), (1, 1), (3, 11), (50, 10), (13, 17), (9, 30)):
        model = kind(inputs, hidden, batch_first=True)
        found = factors(model, torch.randn(1, 4, inputs).expand(67, 4, inputs).clone())
        assert all(torch.equal(each, each[:1].expand_as(each)) for each in found), (inputs, hidden)


def test_whether_a_sum_is_taken_in_float64_does_not_depend_on_how_many_are_summed() -> None:
    """One record more would change every call of the batch."""
    for width in (FEW, FEW + 1):
        kinds = {Dense(torch.zeros(n, width))._sum(torch.zeros(n), 1).dtype for n in (2, 100, 1900, 2048, 5000)}
        assert len(kinds) == 1
        first = Dense(torch.zeros(3, width))._sum(torch.zeros(3), 192).dtype
        assert first == (torch.float64 if width <= FEW else torch.float32)


def test_packed_sequences_are_warned_about_once_whatever_their_lengths(caplog: pytest.LogCaptureFixture) -> None:
    """A line that is logged only if lengths differ would tell something about the records."""
    model = nn.RNN(2, 3, batch_first=True)
    for lengths, warned in (([4, 4], 1), ([4, 2], 1), ([4, 3], 0)):  # once
        caplog.clear()
        if warned:
            warn_of_lengths.cache_clear()
        packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 4, 2), torch.tensor(lengths), batch_first=True)
        with gradients.record(model) as tape:
            model(packed)[0].data.sum().backward()
        tape.norms()
        assert sum("pad to a fixed length" in message for message in caplog.messages) == warned


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 7))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.type_as(x))


@pytest.mark.parametrize("records", [3, 5])
def test_a_parameter_cast_to_the_type_of_the_batch_is_the_parameter(records: int) -> None:
    """Whether or not their shapes fit together, which such a cast does not ask for."""
    model, x = Cast(), torch.randn(records, 7)
    with gradients.record(model) as tape:
        model(x).sum().backward()
    own = [torch.autograd.grad(model(x[i : i + 1]).sum(), list(model.parameters())) for i in range(records)]
    expected = torch.stack([torch.cat([g.flatten() for g in each]).norm() for each in own])
    torch.testing.assert_close(tape.norms(), expected, rtol=1e-3, atol=0)


def test_repeated_lookups_of_one_record_change_no_other_norm() -> None:
    """Four squares at a tie of float32, added in the order of their rows or of the lookups."""
    records = 50
    model = nn.Embedding(10, 1)
    words = torch.tensor([3, 1, 7, 5]).expand(records + 1, 4).clone()
    words[-1] = 2
    c = torch.tensor([1.0, 2.0**-12, 2.0**-27, 2.0**-27]).view(1, 4, 1).expand(records + 1, 4, 1).clone()
    c[-1] = 0

    def squares(n: int) -> Tensor:
        owner = torch.arange(n).repeat_interleave(4)
        return Rows(words[:n].flatten(), owner, c[:n].reshape(-1, 1), model.weight.shape, n).squares()

    settled = Rows(words[:2].flatten(), torch.tensor([0] * 4 + [1] * 4), c[:2].reshape(-1, 1), (10, 1), 2).settle()
    assert settled.index.tolist() == [1, 3, 5, 7] * 2
    assert torch.equal(squares(records), squares(records + 1)[:-1])


def test_gradients_stored_features_first_are_summed_as_others_are() -> None:
    torch.manual_seed(0)
    grads, weights = torch.randn(1001, 40), torch.rand(1001)
    by_columns = Dense(grads.t().contiguous().t())
    assert torch.equal(by_columns._sum(weights, 192), Dense(grads)._sum(weights, 192))
    assert by_columns.grads.is_contiguous()


class Constants(nn.Module):
    """A parameter meets the batch and a constant of more dimensions in one operation."""

    def __init__(self, constant: Tensor, how: str) -> None:
        super().__init__()
        self.q, self.constant, self.how = nn.Parameter(torch.randn(4)), constant, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "where":
            return torch.where(self.constant > 0, self.q, x)
        if self.how == "lerp":
            return torch.lerp(x, self.q, self.constant)
        return torch.addcmul(x, self.q, self.constant)


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 1, 4), (6, 1, 4), (1, 1, 1, 4), (3, 2, 1, 1)])
@pytest.mark.parametrize("how", ["where", "lerp", "addcmul"])
@pytest.mark.parametrize("positions", [0, 3])
def test_constants_of_more_dimensions_keep_examples_apart(shape: tuple[int, ...], how: str, positions: int) -> None:
    torch.manual_seed(0)
    shape = (*shape[:-2], 1, *shape[-2:]) if positions else shape
    model = Constants(torch.randn(shape), how)
    x = torch.randn(6, positions, 4) if positions else torch.randn(6, 4)
    with gradients.record(model) as tape:
        model(x).square().sum().backward()
    each = [torch.autograd.grad(model(x[i : i + 1]).square().sum(), model.q)[0].norm() for i in range(6)]
    torch.testing.assert_close(tape.norms(), torch.stack(each), rtol=1e-4, atol=1e-5)


def test_a_frozen_map_is_cast_as_pytorch_casts_it() -> None:
    model = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 2))
    kinds = []
    model[0].register_forward_hook(lambda module, args, out: kinds.append(out.dtype))
    x = torch.randn(9, 6, requires_grad=True)
    with gradients.record(model), torch.autocast("cpu", dtype=torch.bfloat16):
        model(x).float().sum().backward()
    assert kinds == [torch.bfloat16]
    assert x.grad is not None and x.grad.dtype == torch.float32
