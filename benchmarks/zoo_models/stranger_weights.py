"""Changed weights, forecasts and norms that the engine was not developed with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from zoo_models.cases import Batch, Case
from zoo_models.plain import classify, mlp, pictures, rows, series
from zoo_models.stranger_nets import stranger


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return torch.matrix_exp(w.triu(1) - w.triu(1).T)


class Cut(nn.Module):
    """Weights and activations of one bit and eight, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    @staticmethod
    def bits(layer: nn.Linear, x: Tensor) -> Tensor:
        w = layer.weight
        scale = w.abs().mean().clamp_min(1e-5)
        quantised = (w / scale).round().clamp(-1, 1) * scale
        reach = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp_min(1e-5)
        rounded = (x * reach).round().clamp(-128, 127) / reach
        return F.linear(x + (rounded - x).detach(), w + (quantised - w).detach(), layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.bits(self.last, F.layer_norm(F.relu(self.bits(self.first, x)) ** 2, (16,)))


def changed(change: Callable[[nn.Sequential], object]) -> Case:
    model = mlp()
    change(model)
    return Case(model, rows, classify)


stranger("rotation")(lambda: Case(nn.Sequential(nn.Linear(8, 8), parametrize.register_parametrization(
    nn.Linear(8, 8), "weight", Symmetric()), nn.Tanh(), nn.Linear(8, 3)), rows, classify))  # fmt: skip
stranger("bit-linear")(lambda: Case(Cut(), rows, classify))
stranger("masked-gradient")(lambda: changed(lambda m: m[0].weight.register_hook(lambda g: g * (g.abs() < 1))))


class Blocks(nn.Module):
    """N-BEATS: each block explains a part of the past and hands over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([mlp(16, 20) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x, found = x.squeeze(-1), 0
        for block in self.blocks:
            back, ahead = block(x).split([16, 4], dim=-1)
            x, found = x - back, found + ahead
        return found


class Reversible(nn.Module):
    """Every series normalised by itself, decomposed, forecast, and brought back; the affine part is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.trend, self.season = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(1, keepdim=True).detach(), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = (x - mean) / std * self.scale + self.shift
        front, end = x[:, :1].repeat(1, 2, 1), x[:, -1:].repeat(1, 2, 1)
        trend = F.avg_pool1d(torch.cat([front, x, end], dim=1).permute(0, 2, 1), 5, stride=1)
        y = self.trend(trend) + self.season(x.permute(0, 2, 1) - trend)
        return ((y.permute(0, 2, 1) - self.shift) / (self.scale + 1e-10) * std + mean).squeeze(-1)


def forecast(model: nn.Module, batch: Batch) -> Tensor:
    return F.l1_loss(model(batch[0]), batch[1][:, -4:, 0])


stranger("n-beats")(lambda: Case(Blocks(), series, forecast))
stranger("reversible-norm")(lambda: Case(Reversible(), series, forecast))
stranger("instance-norm")(lambda: Case(nn.Sequential(
    nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect"), nn.InstanceNorm2d(8, affine=True), nn.PReLU(8),
    nn.LocalResponseNorm(3), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 3)), pictures, classify))  # fmt: skip
