"""Architectures and shapes nobody thought of, by Hypothesis."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients.layout import Layout, owners
from tacit.gradients.traced import Traced

COMMON = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Time(nn.Module):
    """Turns [examples, time, features] into another arrangement, applies a layer, and turns it back."""

    def __init__(self, layer: nn.Module, how: str) -> None:
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        if self.how == "time major":
            return self.layer(x.transpose(0, 1)).transpose(0, 1)
        if self.how == "rows":
            return self.layer(x.reshape(n * t, -1)).view(n, t, -1)
        if self.how == "time-major rows":
            return self.layer(x.transpose(0, 1).reshape(n * t, -1)).view(t, n, -1).transpose(0, 1)
        if self.how == "twice":
            return self.layer(self.layer(x).tanh())
        if self.how == "residual":
            return x + self.layer(x)
        return self.layer(x)


class Conv(nn.Module):
    def __init__(self, kernel: int, groups: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, kernel, padding=kernel // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


class Rnn(nn.Module):
    def __init__(self, kind: type[nn.Module], batch_first: bool) -> None:
        super().__init__()
        self.rnn = kind(4, 2, bidirectional=True, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0] if self.rnn.batch_first else self.rnn(x.transpose(0, 1))[0].transpose(0, 1)


class Attend(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        if self.attention.batch_first:
            return self.attention(x, x, x)[0]
        x = x.transpose(0, 1)
        return self.attention(x, x, x, need_weights=False)[0].transpose(0, 1)


@st.composite
def networks(draw: Any) -> tuple[nn.Module, Tensor]:
    batch, steps, width = draw(st.integers(1, 5)), draw(st.integers(1, 5)), 4
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["linear", "norm", "rms", "prelu", "conv", "rnn", "attention", "tied"]))
        how = draw(st.sampled_from(["plain", "time major", "rows", "time-major rows", "twice", "residual"]))
        if kind == "linear":
            layers += [Time(nn.Linear(width, width, bias=draw(st.booleans())), how), nn.Tanh()]
        elif kind == "norm":
            layers.append(Time(nn.LayerNorm(width), how))
        elif kind == "rms":
            layers.append(Time(nn.RMSNorm(width), how))
        elif kind == "prelu":
            layers.append(nn.PReLU())
        elif kind == "conv":
            layers.append(Conv(draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2]))))
        elif kind == "rnn":
            layers.append(Rnn(draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN])), draw(st.booleans())))
        elif kind == "attention":
            layers.append(Attend(draw(st.booleans())))
        elif layers:
            layers.append(layers[draw(st.integers(0, len(layers) - 1))])
    layers.append(nn.Linear(width, 2))
    torch.manual_seed(draw(st.integers(0, 99)))
    model = nn.Sequential(*layers).double()
    for p in model.parameters():
        nn.init.normal_(p, 0.2, 0.5)
    return model, torch.randn(batch, steps, width, dtype=torch.float64)


@COMMON
@given(networks())
def test_any_network_equals_the_oracle(naive: Any, compare: Any, case: tuple[nn.Module, Tensor]) -> None:
    model, x = case

    def losses(v: Tensor) -> Tensor:
        return model(v).sin().sum((1, 2))

    each = naive(model, lambda i: losses(x[i : i + 1]).sum(), len(x))
    with gradients.record(model, isolate=False) as tape:
        losses(x).mean().backward()
    compare(tape, each)


@COMMON
@given(data=st.data())
def test_any_convolution(agree: Any, data: Any) -> None:
    def draw(lo: int, hi: int) -> int:
        return int(data.draw(st.integers(lo, hi)))

    rank, batch, kernel, stride, dilation, groups = (draw(1, n) for n in (3, 3, 3, 2, 2, 2))
    transposed, bias, padding = bool(draw(0, 1)), bool(draw(0, 1)), draw(0, 2)
    forward = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    backward = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    if transposed:
        padding = min(padding, dilation * (kernel - 1))
    size = 2 + dilation * (kernel - 1)
    kind: Any = (backward if transposed else forward)[rank - 1]
    module = kind(2, 4, kernel, stride, padding, dilation=dilation, groups=groups, bias=bias)
    x = torch.randn(batch, 2, *(size + d for d in range(rank)))
    agree(module, x, dtypes=(torch.float64,), reductions=("mean",))


@COMMON
@given(data=st.data())
def test_any_linear(agree: Any, data: Any) -> None:
    batch, inputs, outputs = (data.draw(st.integers(1, n)) for n in (4, 6, 6))
    middle = data.draw(st.lists(st.integers(1, 4), max_size=2))
    module = nn.Linear(inputs, outputs, bias=data.draw(st.booleans()))
    agree(module, torch.randn(batch, *middle, inputs), dtypes=(torch.float64,))


class Shuffle(nn.Module):
    """A random sequence of operations that move entries without changing them."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.data = data

    def forward(self, x: Tensor) -> Tensor:
        moves = ["transpose", "flatten", "split", "unsqueeze", "repeat", "interleave", "stack", "reverse", "mask"]
        for _ in range(self.data.draw(st.integers(1, 6))):
            x = self.moved(x, self.data.draw(st.sampled_from(moves)))
            if type(x) is Traced and not isinstance(x._tag, Layout):
                break
        return x

    def moved(self, x: Tensor, how: str) -> Tensor:
        rank, small = x.ndim, x.numel() < 500
        a, b = self.data.draw(st.integers(0, rank - 1)), self.data.draw(st.integers(0, rank - 1))
        if how == "transpose":
            return x.transpose(a, b)
        if how == "flatten" and rank > 1:
            return x.flatten(min(a, rank - 2), min(a, rank - 2) + 1)
        if how == "split":
            n = x.shape[a]
            factor = self.data.draw(st.sampled_from([f for f in range(1, n + 1) if n % f == 0]))
            return x.unflatten(a, (factor, n // factor))
        if how == "unsqueeze":
            return x.unsqueeze(a)
        if how == "repeat" and small:
            return x.repeat(*(2 if d == a else 1 for d in range(rank)))
        if how == "interleave" and small:
            return x.repeat_interleave(2, a)
        if how == "stack" and small:
            return torch.stack([x, x], a)
        if how == "reverse":
            return x.index_select(a, torch.arange(x.shape[a] - 1, -1, -1))
        if how == "mask" and rank > 1:
            kept = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2]) % 3 != 1
            return x[kept]
        return x


@settings(COMMON, max_examples=150)
@given(data=st.data())
def test_layouts_follow_examples_through_any_reshuffling(data: Any) -> None:
    """The engine's idea of who owns an entry, against entries that carry their owner's number."""
    batch = data.draw(st.integers(2, 4))
    ids = torch.arange(batch).view(-1, 1, 1).expand(batch, 2, batch).contiguous().double()
    model = Shuffle(data)
    with gradients.record(model, isolate=False):  # the model draws its operations while it runs
        moved: Any = model(ids)
        tag = moved._tag
    if isinstance(tag, Layout):
        shape = [1] * moved.ndim
        shape[tag.dim] = -1
        wanted = owners(tag, batch, moved.shape[tag.dim]).view(shape).expand(moved.shape)
        assert torch.equal(moved.as_subclass(Tensor).long(), wanted)
    else:
        # Only examples spread over two dimensions may be given up on.
        assert "merges" in tag.reason or "joins" in tag.reason
