"""Patterns of ordinary models that are followed as they are: exact, and without running one example at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tacit import gradients

B, T, WIDTH = 5, 6, 4

Body = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.second, self.token = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.rand(4))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.first(x))


def _asserts(m: Net, h: Tensor) -> Tensor:
    assert h.abs().max().item() < 1e6, "too large"
    if torch.isnan(h).any():
        raise ValueError("not a number")
    return m.second(h)


def _raises_another(m: Net, h: Tensor) -> Tensor:
    try:
        return _asserts(m, h)
    except ValueError as error:
        raise RuntimeError("a bad batch") from error


def _numbered(m: Net, h: Tensor) -> Tensor:
    """A mask made of every example's own length, as speech models do."""
    mask = torch.zeros(h.shape[:2], dtype=torch.long)
    lengths = (h[..., 0] > 0).sum(1).clamp(1, T)
    mask[(torch.arange(len(h)), lengths - 1)] = 1
    return m.second(h) * mask.flip(-1).cumsum(-1).flip(-1).unsqueeze(-1)


def _numbered_alike(m: Net, h: Tensor) -> Tensor:
    """Lengths that happen to be the examples' numbers, which decide nothing in the end."""
    mask = torch.zeros(h.shape[:2])
    mask[torch.arange(len(h)), torch.arange(len(h)) + (h[:, 0, 0] * 0).long()] = 1
    return m.second(h) * mask.sum(1)[:, None, None]


def _masked_by_a_parameter(m: Net, h: Tensor) -> Tensor:
    h = h.clone()
    h[h[..., 0] > 0] = m.token
    h[:, 0] = m.token * 2
    return m.second(h)


def _halves(m: Net, h: Tensor) -> Tensor:
    out = h.new_empty(*h.shape[:-1], 2 * WIDTH)
    out[..., :WIDTH].copy_(h)
    out[..., WIDTH:].copy_(m.second(h))
    return out


def _experts(m: Net, h: Tensor) -> Tensor:
    rows = h.reshape(-1, WIDTH)
    out, chosen = torch.zeros_like(rows), rows.argmax(1) % 2
    for expert in range(2):
        sent = chosen == expert
        out[sent] = out[sent] + m.second(rows[sent]) * (expert + 1)
    return out.view_as(h)


def _grid(m: Net, h: Tensor) -> Tensor:
    theta = torch.cat([m.second(h).mean(1), h.mean(1)[:, :2]], 1).view(-1, 2, 3)
    return F.affine_grid(theta, [len(h), 1, 2, 2], align_corners=False)


def _repeated(m: Net, h: Tensor) -> Tensor:
    """Two copies of every example, by an index, beside a mask that was repeated by a view."""
    rows = h[torch.arange(len(h)).repeat_interleave(2)]
    mask = (h[:, None, :, :1] > 0).expand(-1, 2, -1, -1).reshape(2 * len(h), T, 1)
    return (m.second(rows) * mask).view(len(h), -1)


def _copied_like(m: Net, h: Tensor) -> Tensor:
    other = h.to(h, False, True)
    other[:, 0] = 0
    return m.second(h) + other


PATTERNS: dict[str, Body] = {
    "padding the last dimensions only": lambda m, h: m.second(F.pad(h, [0, 0, 1, 2, 0, 0])),
    "a cast to another tensor's type": lambda m, h: m.second(h.double().type_as(h[:, :1, :1])),
    "a copy of another tensor's type": _copied_like,
    "asserts and errors": _asserts,
    "errors that become others": _raises_another,
    "rows by their numbers": _numbered,
    "rows by numbers like their own": _numbered_alike,
    "a parameter assigned by a mask": _masked_by_a_parameter,
    "halves of a fresh tensor": _halves,
    "experts by masks": _experts,
    "an affine grid": _grid,
    "einsum of a list": lambda m, h: torch.einsum("bti,bsi->bts", [m.second(h), h]),
    "rows repeated by an index": lambda m, h: _repeated(m, h),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_of_ordinary_models_is_exact_without_isolation(agree: Any, name: str, monkeypatch: Any) -> None:
    planned = []
    original = gradients.passes.make_plan
    monkeypatch.setattr("tacit.gradients.passes.make_plan", lambda *a: planned.append(original(*a)) or planned[-1])
    agree(Net(PATTERNS[name]), torch.randn(B, T, 3))
    assert planned and not any(planned)


def test_reentrant_checkpointing_runs_as_the_other_kind(naive: Any, compare: Any) -> None:
    model, x = Net(lambda m, h: m.second(h)).double(), torch.randn(B, T, 3, dtype=torch.float64)
    each = naive(model, lambda i: model(x[i : i + 1]).sin().sum(), B)
    model.body = lambda m, h: checkpoint(m.second, h, use_reentrant=True)
    engine = gradients.attach(model)
    model(x).sin().sum().backward()
    compare(engine, each)
    assert engine.isolated == ()
    engine.detach()


def _caught(m: Net, h: Tensor) -> Tensor:
    try:
        assert h[:, 0, 0].sum().item() > 0
        return m.second(h)
    except AssertionError:
        return m.second(h) * 2


def _check(h: Tensor) -> None:
    if h[:, 0, 0].sum() > 0:
        raise ValueError


def _caught_by_the_caller(m: Net, h: Tensor) -> Tensor:
    try:
        _check(h)
    except ValueError:
        return m.second(h) * 2
    return m.second(h)


def _suppressed(m: Net, h: Tensor) -> Tensor:
    factor = 2.0
    with contextlib.suppress(AssertionError):
        assert h[:, 0, 0].sum() > 0
        factor = 1.0
    return m.second(h) * factor


def _both_ways(m: Net, h: Tensor) -> Tensor:
    if h[:, 0, 0].sum() > 0:
        raise ValueError
    else:
        return m.second(h) * float(h[:, 0, 0].sum() > -1)


def _assigned(m: Net, h: Tensor) -> Tensor:
    assert (total := h.sum().item()) < 1e6  # noqa: RUF018
    return m.second(h) * total


def _numbered_backwards(m: Net, h: Tensor) -> Tensor:
    mask = torch.zeros(h.shape[:2])
    mask[(torch.arange(len(h)).flip(0), (h[..., 0] > 0).sum(1).clamp(1, T) - 1)] = 1
    return m.second(h) * mask.unsqueeze(-1)


def _added_elsewhere(m: Net, h: Tensor) -> Tensor:
    return m.second(torch.zeros_like(h).index_add(0, torch.arange(len(h)).roll(1), h))


MIXING: dict[str, Body] = {
    "an assert that is caught": _caught,
    "an error that the caller catches": _caught_by_the_caller,
    "an assert that is suppressed": _suppressed,
    "a condition that goes on": _both_ways,
    "a condition that assigns": _assigned,
    "rows by other numbers": _numbered_backwards,
    "rows added to others": _added_elsewhere,
    "padding among examples": lambda m, h: m.second(F.pad(h, [0, 0, 0, 0, 1, 0]))[:B],
}


def _written_into_parameters(m: Net, h: Tensor) -> Tensor:
    out = (m.token * 2).repeat(*h.shape[:2], 1)
    out[:, :2] = m.second(h)[:, :2]
    return m.second(out)


def test_data_written_into_a_tensor_of_parameters_runs_one_example_at_a_time(naive: Any, compare: Any) -> None:
    model, x = Net(_written_into_parameters).double(), torch.randn(B, T, 3, dtype=torch.float64)
    each = naive(model, lambda i: model(x[i : i + 1]).sin().sum(), B)
    engine = gradients.attach(model)
    model(x).sin().sum().backward()
    compare(engine, each)
    assert engine.isolated == ("",)
    engine.detach()


@pytest.mark.parametrize("name", MIXING)
def test_lookalikes_of_ordinary_patterns_that_mix_are_refused(name: str) -> None:
    torch.manual_seed(1)
    with pytest.raises((ValueError, RuntimeError)), gradients.record(model := Net(MIXING[name])):
        model(torch.randn(B, T, 3)).flatten(1).sum(1).mean().backward()


@pytest.mark.parametrize("floor", [lambda n: n, lambda n: n.clamp(min=1), lambda n: n + 1e-5])
def test_a_masked_mean_is_the_mean_of_the_examples_own_means(naive: Any, compare: Any, floor: Any) -> None:
    model, x = nn.Linear(3, 1).double(), torch.randn(B, T, 3, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        mask = (x[..., 0] > -0.5).double()
        return (model(x).squeeze(-1).square() * mask).sum() / floor(mask.sum())

    each = naive(model, lambda i: loss(x[i : i + 1]), B)
    engine = gradients.attach(model)
    loss(engine.trace(x, B)).backward()
    compare(engine, each)
    engine.detach()


def test_a_count_of_what_is_left_is_each_examples_own(naive: Any, compare: Any) -> None:
    """As label smoothing counts: all places, less those that are ignored, times the number of classes."""
    model, x = nn.Linear(3, 1).double(), torch.randn(B, T, 3, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        ignored = x[..., 0] < -0.5
        counted = ignored.numel() - ignored.long().sum()
        return model(x).squeeze(-1).square().masked_fill(ignored, 0).sum() / (counted * 7)

    each = naive(model, lambda i: loss(x[i : i + 1]), B)
    engine = gradients.attach(model)
    loss(engine.trace(x, B)).backward()
    compare(engine, each)
    engine.detach()


COUNTS: list[Any] = [
    lambda n: n / B, lambda n: n * B, lambda n: n * (B * T), lambda n: n.view(1), lambda n: n.sum(),
    lambda n: n + B * T, lambda n: B - n, lambda n: n - B * T,
]  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_that_may_hold_the_number_of_examples_is_refused(count: Any) -> None:
    model, x = nn.Linear(3, 1), torch.randn(B, T, 3)
    engine = gradients.attach(model)
    mask = (engine.trace(x, B)[..., 0] > -0.5).float()
    with pytest.raises(ValueError, match="quantity of the whole batch"):
        ((model(x).squeeze(-1).square() * mask).sum() / count(mask.sum())).sum().backward()
    engine.detach()


def test_a_weight_for_each_example_is_not_lost_in_a_mean_of_its_own() -> None:
    model, x = nn.Linear(3, 1), torch.randn(B, 3)
    engine = gradients.attach(model)
    given = engine.trace(x, B)
    weight = given[:, 0].abs()
    with pytest.raises(ValueError, match="no per-example gradients"):
        ((model(given).squeeze(-1).square() * weight).sum() / weight.sum()).backward()
    engine.detach()


def _ctc(model: nn.Module, x: Tensor, labels: Tensor, order: Callable[[Tensor], Tensor]) -> Tensor:
    scores = model(x).log_softmax(-1).transpose(0, 1)
    lengths = torch.full((len(x),), T)
    mask = labels >= 0
    return F.ctc_loss(scores, order(labels).masked_select(order(mask)), lengths, mask.sum(-1), reduction="sum")


def test_ctc_targets_may_come_one_after_the_other(naive: Any, compare: Any) -> None:
    model, x = nn.Linear(3, WIDTH).double(), torch.randn(B, T, 3, dtype=torch.float64)
    labels = torch.tensor([[1, 2, -1], [3, -1, -1], [1, 1, 2], [2, 3, -1], [3, 1, -1]])
    each = naive(model, lambda i: _ctc(model, x[i : i + 1], labels[i : i + 1], lambda t: t), B)
    engine = gradients.attach(model)
    _ctc(model, *engine.trace((x, labels), B), lambda t: t).backward()
    compare(engine, each)
    with pytest.raises(ValueError, match="no per-example gradients"):
        _ctc(model, *engine.trace((x, labels), B), lambda t: t.flip(0)).backward()
    engine.detach()


def test_ctc_targets_of_one_length_may_be_flattened(naive: Any, compare: Any) -> None:
    model, x = nn.Linear(3, WIDTH).double(), torch.randn(B, T, 3, dtype=torch.float64)
    labels = torch.tensor([[1, 2], [3, 1], [1, 2], [2, 3], [3, 1]])

    def loss(x: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.full((2, len(x)), T)
        lengths[1] = labels.shape[1]
        return F.ctc_loss(model(x).log_softmax(-1).transpose(0, 1), targets, lengths[0], lengths[1])

    each = naive(model, lambda i: loss(x[i : i + 1], labels[i : i + 1], labels[i]), B)
    engine = gradients.attach(model)
    given, own = engine.trace((x, labels), B)
    loss(given, own, own.flatten()).backward()
    compare(engine, each)
    engine.discard()
    given, own = engine.trace((x[:0], labels[:0]), 0)
    loss(given, own, own.flatten()).backward()
    assert engine.ready and not engine.norms().numel()
    engine.discard()
    given, own = engine.trace((x, labels), B)
    with pytest.raises(ValueError, match="not the examples' own"):
        loss(given, own, own.t().flatten()).backward()
    engine.detach()


class Complex(nn.Module):
    """Complex parameters, whole, in part and conjugated."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex128))
        self.matrix = nn.Parameter(torch.randn(5, 5, dtype=torch.complex128))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        f = torch.fft.rfft(x)
        if self.how == "reading" and not bool(f.abs().max() < 1e9):
            raise AssertionError(self.how)
        if self.how == "isolated":
            f = f * (1.0 if float(f.abs().max()) < 1e9 else 2.0)
        f = torch.cat([f[:, :2] * self.filter[:2].conj(), f[:, 2:] * self.filter[2:]], 1) if self.how == "parts" else f
        return torch.fft.irfft((f * self.filter) @ self.matrix, 8)


@pytest.mark.parametrize("how", ["whole", "parts", "reading", "isolated"])
def test_a_complex_parameter_is_pairs_of_real_numbers(compare: Any, how: str) -> None:
    model, x = Complex(how), torch.randn(B, 8, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    rows = [torch.autograd.grad(model(x[i : i + 1]).sin().sum(), list(parameters.values())) for i in range(B)]
    each = {name: torch.stack([torch.view_as_real(row[k]) for row in rows]) for k, name in enumerate(parameters)}
    engine = gradients.attach(model)
    model(x).sin().sum().backward()
    compare(engine, each)
    assert bool(engine.isolated) == (how == "isolated")
    engine.detach()
