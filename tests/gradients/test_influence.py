"""What one record can do to the sum in float32: at most S, whatever its numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

S = 1.0
N = 40
WIDTH = 64


class Run(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **members: Any) -> None:
        super().__init__()
        for name, member in members.items():
            setattr(self, name, member)
        self.function = function

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.function(self, x, c)


def linear(width: int = WIDTH, out: int = WIDTH, bias: bool = False) -> nn.Linear:
    return nn.Linear(width, out, bias=bias)


def paired(out: Tensor, c: Tensor) -> Tensor:
    """A loss that is linear in the outputs, with coefficients the record chooses."""
    return (out * c).flatten(1).sum(1)


class Tied(nn.Module):
    """A table that is also a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        row = (x[:, 0, 0] * 0).long()
        looked_up = (self.table(row) * c[:, 1] * x[:, 1, :1]).sum(1)
        return looked_up + (F.linear(x[:, 0], self.table.weight) * c[:, 0]).sum(1)


class Recurrent(nn.Module):
    """With a zero weight the states are zero, so that the gates of step t see x_t alone."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(WIDTH, WIDTH, batch_first=True, bias=False, **options)
        for p in self.rnn.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return paired(self.rnn(x)[0], c)


def twice(use: Callable[[Any, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda m, x, c: paired(use(m, x[:, 0]), c[:, 0]) + paired(use(m, x[:, 1]), c[:, 1])


def channels(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear over positions": lambda: Run(lambda m, x, c: paired(m.f(x), c), f=linear()),
    "linear with bias": lambda: Run(lambda m, x, c: paired(m.f(x), c), f=linear(bias=True)),
    "narrow linear over positions": lambda: Run(lambda m, x, c: paired(m.f(x[..., :2]), c[..., :3]), f=linear(2, 3)),
    "linear called twice": lambda: Run(twice(lambda m, x: m.f(x)), f=linear()),
    "linear called twice, bias": lambda: Run(twice(lambda m, x: m.f(x)), f=linear(bias=True)),
    "transposed at the second use": lambda: Run(
        lambda m, x, c: paired(F.linear(x[:, 0], m.w), c[:, 0]) + paired(F.linear(c[:, 1], m.w.t()), x[:, 1]),
        w=nn.Parameter(torch.zeros(WIDTH, WIDTH)),
    ),
    "two overlapping slices": lambda: Run(
        lambda m, x, c: (
            paired(F.linear(x[:, 0], m.w[:, :WIDTH]), c[:, 0])
            + paired(F.linear(x[:, 1], m.w[:, 1 : WIDTH + 1]), c[:, 1])
            + paired(F.linear(x[:, 1], m.w[:, :WIDTH]), c[:, 1])
        ),
        w=nn.Parameter(torch.zeros(WIDTH, WIDTH + 1)),
    ),
    "einsum with blocks": lambda: Run(
        lambda m, x, c: paired(torch.einsum("bthi,hio->btho", x.unflatten(2, (2, -1)), m.w), c.unflatten(2, (2, -1))),
        w=nn.Parameter(torch.zeros(2, WIDTH // 2, WIDTH // 2)),
    ),
    "bilinear over positions": lambda: Run(
        lambda m, x, c: paired(m.f(x[..., :8].contiguous(), x[..., :8].sign()), c), f=nn.Bilinear(8, 8, WIDTH)
    ),
    "elementwise, twice": lambda: Run(twice(lambda m, x: m.w * x), w=nn.Parameter(torch.zeros(WIDTH))),
    "elementwise over positions": lambda: Run(lambda m, x, c: paired(m.w * x, c), w=nn.Parameter(torch.zeros(WIDTH))),
    "embedding, repeated token": lambda: Run(
        lambda m, x, c: paired(m.e((x[..., 0] * 0).long()), c * x), e=nn.Embedding(3, WIDTH)
    ),
    "embedding, two lookups": lambda: Run(
        lambda m, x, c: (
            paired(m.e((x[:, 0, 0] * 0).long()), c[:, 0] * x[:, 0])
            + paired(m.e((x[:, 0, 0] * 0).long()), c[:, 1] * x[:, 1])
        ),
        e=nn.Embedding(3, WIDTH),
    ),
    "embedding tied to a linear map": Tied,
    "conv1d, one tap": lambda: Run(
        lambda m, x, c: paired(m.f(channels(x)), channels(c)), f=nn.Conv1d(WIDTH, WIDTH, 1, bias=False)
    ),
    "conv1d": lambda: Run(lambda m, x, c: paired(m.f(channels(x)), channels(c)), f=nn.Conv1d(WIDTH, WIDTH, 3, 1, 1)),
    "conv1d, few channels": lambda: Run(
        lambda m, x, c: paired(m.f(channels(x)[:, :2]), channels(c)[:, :2]), f=nn.Conv1d(2, 2, 1)
    ),
    "conv2d, groups": lambda: Run(
        lambda m, x, c: paired(m.f(channels(x).unsqueeze(3)), channels(c).unsqueeze(3)),
        f=nn.Conv2d(WIDTH, WIDTH, 1, groups=4),
    ),
    "conv1d, called twice": lambda: Run(
        lambda m, x, c: (
            paired(m.f(channels(x)[..., :1]), channels(c)[..., :1])
            + paired(m.f(channels(x)[..., 1:2]), channels(c)[..., 1:2])
        ),
        f=nn.Conv1d(WIDTH, WIDTH, 1),
    ),
    "transposed convolution": lambda: Run(
        lambda m, x, c: paired(m.f(channels(x)), channels(c)), f=nn.ConvTranspose1d(WIDTH, WIDTH, 1)
    ),
    "layer norm": lambda: Run(
        lambda m, x, c: paired(m.f(x + torch.linspace(0, 1, WIDTH)), c * x), f=nn.LayerNorm(WIDTH)
    ),
    "group norm": lambda: Run(
        lambda m, x, c: paired(m.f(channels(x + torch.linspace(0, 1, WIDTH))), channels(c * x)),
        f=nn.GroupNorm(2, WIDTH),
    ),
    "weight normalisation": lambda: Run(
        lambda m, x, c: paired(m.f(x), c), f=nn.utils.parametrizations.weight_norm(linear())
    ),
    "no rule of its own": lambda: Run(
        lambda m, x, c: paired(torch.cdist(x, m.w.unsqueeze(0).expand(len(x), -1, -1)), c[..., :5]),
        w=nn.Parameter(torch.randn(5, WIDTH)),
    ),
    "RNN": lambda: Recurrent(nn.RNN),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
}


def clipped(model: nn.Module, x: Tensor, c: Tensor, flat: Any) -> Tensor:
    with gradients.record(model, reduction="sum", isolate=False) as tape:
        model(x, c).sum().backward()
    return torch.cat([t.double().flatten() for t in tape.clipped_sum(flat(S)).values()])


def cancelling(steps: int, size: float) -> tuple[Tensor, Tensor]:
    """Terms +u⊗v and -u⊗v of one record: a gradient of exactly nothing."""
    x, c = torch.zeros(1, steps, WIDTH), torch.zeros(1, steps, WIDTH)
    x[:, :2], c[:, 0], c[:, 1] = size, size, -size
    return x, c


def gated(steps: int, size: float) -> tuple[Tensor, Tensor]:
    """The same for LSTM and GRU: half of what arrives at a step also arrives at the one before."""
    x, c = cancelling(steps, size)
    c[:, 0] *= 1.5
    return x, c


def disguised(steps: int, size: float) -> tuple[Tensor, Tensor]:
    """The same at random, so that neither the norm nor the sum comes out as exactly nothing."""
    g = torch.Generator().manual_seed(1)
    half = steps // 2
    u, v = torch.randn(half, WIDTH, generator=g) * size, torch.randn(half, WIDTH, generator=g) * size
    order = torch.randperm(2 * half, generator=g)
    return torch.cat([u, u])[order].unsqueeze(0), torch.cat([v, -v])[order].unsqueeze(0)


def eroding(steps: int, size: float) -> tuple[Tensor, Tensor]:
    """Large terms around small ones that are too small to be seen beside them."""
    x, c = torch.zeros(1, steps, WIDTH), torch.zeros(1, steps, WIDTH)
    x[:, 0], c[:, 0], x[:, -1], c[:, -1] = size, 1.0, size, -1.0
    x[:, 1:-1, 0], c[:, 1:-1, 0] = 1.0, 0.3
    return x, c


ATTACKS: dict[str, Callable[[int, float], tuple[Tensor, Tensor]]] = {
    "cancelling": cancelling,
    "gated": gated,
    "disguised": disguised,
    "eroding": eroding,
}


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.parametrize("name", list(MODELS))
def test_one_record_changes_the_sum_by_at_most_its_bound(name: str, attack: str, flat: Any) -> None:
    model = MODELS[name]()
    for steps in (2, 8):
        x, c = torch.zeros(N, steps, WIDTH), torch.zeros(N, steps, WIDTH)
        x[:, 0, 0] = c[:, 0, 0] = 1
        without = clipped(model, x, c, flat)
        for size in (2.0**4, 2.0**14, 2.0**25, 2.0**60):
            bad_x, bad_c = ATTACKS[attack](steps, size)
            for first in (True, False):
                wide = [torch.cat(pair if first else pair[::-1]) for pair in ((bad_x, x), (bad_c, c))]
                change = float((clipped(model, *wide, flat) - without).norm())
                assert change <= S * (1 + 1e-3), (steps, size, first, change)


@pytest.mark.parametrize("shape", [(64, 8, 64, 64), (64, 32, 128, 128), (16, 64, 16, 16), (33, 40, 300, 300)])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_random_cancelling_records(shape: tuple[int, int, int, int], size: float, flat: Any) -> None:
    n, steps, inputs, outputs = shape
    g = torch.Generator().manual_seed(1)
    x, c = torch.randn(n, steps, inputs, generator=g) * 0.03, torch.randn(n, steps, outputs, generator=g) * 0.03
    half = steps // 2
    order = torch.randperm(steps, generator=g)
    u, v = torch.randn(half, inputs, generator=g) * size, torch.randn(half, outputs, generator=g) * size
    x[0], c[0] = torch.cat([u, u])[order], torch.cat([v, -v * (1 + 1e-6)])[order]
    for model in (
        Run(lambda m, x, c: paired(m.f(x), c), f=linear(inputs, outputs)),
        Run(lambda m, x, c: paired(m.f(channels(x)), channels(c)), f=nn.Conv1d(inputs, outputs, 1)),
    ):
        change = clipped(model, x, c, flat) - clipped(model, x[1:], c[1:], flat)
        assert float(change.norm()) <= S * (1 + 1e-3)


@pytest.mark.parametrize("steps", [40, 128])
def test_long_sequences_of_small_terms_between_large_ones(steps: int, flat: Any) -> None:
    """Sizes up to and beyond where an example is kept apart."""
    model = Run(lambda m, x, c: paired(m.f(x), c), f=linear(400, 400))
    x, c = torch.zeros(6, steps, 400), torch.zeros(6, steps, 400)
    x[:, 0, 0] = c[:, 0, 0] = 1
    without = clipped(model, x[1:], c[1:], flat)
    x[0, :, 0], c[0, :, 0] = 1.0, 1 / steps
    for k in range(0, 16, 2):
        x[0, 0], x[0, -1], c[0, 0], c[0, -1] = 0.0, 0.0, 0.0, 0.0
        x[0, 0, 0], x[0, -1, 0], c[0, 0, 0], c[0, -1, 0] = 2.0**k, 2.0**k, 1.1, -1.1
        change = float((clipped(model, x, c, flat) - without).norm())
        assert change <= S * (1 + 1e-3), (k, change)


def test_many_cancelling_records_together(flat: Any) -> None:
    model = Run(lambda m, x, c: paired(m.f(x), c), f=linear(bias=True))
    x, c = (torch.cat([t] * N) for t in disguised(8, 2.0**20))
    c = c * torch.linspace(0.5, 1.5, N).view(-1, 1, 1)
    change = clipped(model, x, c, flat) - clipped(model, x[1:], c[1:], flat)
    assert float(change.norm()) <= S * (1 + 1e-3)


@pytest.mark.parametrize("positions", [1, 3])
def test_squares_too_small_for_the_type_are_not_forgotten(positions: int, flat: Any) -> None:
    """|a|² = 0 in float32 although |a|·|g| is not."""
    model = Run(lambda m, x, c: paired(m.f(x), c), f=linear(400, 400))
    x, c = torch.zeros(8, positions, 400), torch.zeros(8, positions, 400)
    x[0, 0], c[0, 0] = 2e-23, 8e17
    with gradients.record(model) as tape:
        model(x, c).mean().backward()
    true = float(x[0, 0].double().norm() * c[0, 0].double().norm())
    assert float(tape.norms()[0]) >= true * (1 - 1e-6)
    small = tape.clipped_sum(flat(1e-4))["f.weight"]
    assert float(small.double().norm()) <= 1e-4 * (1 + 1e-3)


def test_terms_that_overflow_count_as_nothing(flat: Any) -> None:
    model = Run(lambda m, x, c: paired(m.f(x), c), f=linear())
    x, c = torch.ones(5, 4, WIDTH), torch.ones(5, 4, WIDTH)
    x[2, :2], c[2, 0], c[2, 1] = 1e15, 1e15, -1e15
    with gradients.record(model) as tape:
        model(x, c).sum().backward()
    assert torch.isinf(tape.norms()).tolist() == [False, False, True, False, False]
    keep = torch.tensor([0, 1, 3, 4])
    wanted = clipped(model, x[keep], c[keep], flat)
    torch.testing.assert_close(tape.clipped_sum(flat(S))["f.weight"].double().flatten(), wanted)


def test_ordinary_gradients_are_not_kept_apart() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
    )
    x = torch.randn(N, 16, WIDTH)
    with gradients.record(model) as tape:
        F.cross_entropy(model(x).mean(1), torch.arange(N) % 3).backward()
    tape.norms()
    assert [i for uses in tape._measured.uses.values() for i in uses.apart] == []
