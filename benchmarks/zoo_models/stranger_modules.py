"""Modules that people write themselves: gates, scans, trees, mixtures, attention, points and frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes
from zoo_models.plain import classify, mlp, pictures, rows, sequences, series, texts
from zoo_models.stranger_nets import fit, points, stranger


class Conditioned(nn.Module):
    """FiLM: a table's row scales and shifts the channels of a picture's features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8, affine=False)
        self.film, self.head = nn.Linear(4, 16), nn.Linear(8, 3)

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        scale, shift = self.film(row).chunk(2, 1)
        h = self.norm(self.conv(x)) * (1 + scale[..., None, None]) + shift[..., None, None]
        return self.head(F.relu(h).mean((2, 3)))


def pictures_and_rows(size: int, generator: torch.Generator) -> Batch:
    x, y = pictures(size, generator)
    return x, torch.randn(size, 4, generator=generator), y


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 2, 1), nn.ReLU(), nn.Conv2d(2, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.gate(x))


class UNet(nn.Module):
    """With attention gates on the ways across, as segmentation tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.gate = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, 1, 1)
        self.squeeze, self.head = Squeeze(16), nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = F.relu(self.down(x))
        h = self.up(F.relu(self.deep(F.max_pool2d(across, 2))))
        across = across * torch.sigmoid(self.gate(torch.cat([across, h], 1)))
        return self.head(self.squeeze(torch.cat([across, h], 1))).squeeze(1)


def masks(size: int, generator: torch.Generator) -> Batch:
    x, _ = pictures(size, generator)
    return x, (torch.rand(size, 12, 12, generator=generator) < 0.3).float()


def dice_by_picture(model: nn.Module, batch: Batch) -> Tensor:
    p, t = torch.sigmoid(model(batch[0])), batch[1]
    dice = 1 - (2 * (p * t).sum((1, 2)) + 1) / (p.sum((1, 2)) + t.sum((1, 2)) + 1)
    return (dice + F.binary_cross_entropy(p, t, reduction="none").mean((1, 2))).mean()


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 1, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.into(x.transpose(1, 2)), 0
        for gate, skip in zip(self.gates, self.skips):
            a, b = gate(F.pad(h, (gate.dilation[0], 0))).chunk(2, 1)
            more, kept = skip(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, out = h + more, out + kept
        return self.head(F.relu(out)).transpose(1, 2)


class Fourier(nn.Module):
    """A Fourier neural operator in two dimensions, with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 1, 1)
        self.low, self.high = (nn.Parameter(torch.randn(6, 6, 3, 3, dtype=torch.cfloat) / 6) for _ in "ab")
        self.around = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        found = torch.fft.rfft2(h)
        out = torch.zeros_like(found)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", found[:, :, :3, :3], self.low)
        out[:, :, -3:, :3] = torch.einsum("bixy,ioxy->boxy", found[:, :, -3:, :3], self.high)
        return self.head(F.gelu(torch.fft.irfft2(out, s=h.shape[-2:]) + self.around(h))).squeeze(1)


class Runge(nn.Module):
    """A neural ODE with Runge-Kutta steps of its own, times given by the record."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.head = mlp(9, 8), nn.Linear(8, 3)

    def at(self, t: Tensor, h: Tensor) -> Tensor:
        return self.slope(torch.cat([h, t], 1))

    def forward(self, h: Tensor) -> Tensor:
        step = 0.1 + torch.sigmoid(h[:, :1]) / 4
        for i in range(3):
            t = i * step
            a = self.at(t, h)
            b = self.at(t + step / 2, h + step / 2 * a)
            c = self.at(t + step / 2, h + step / 2 * b)
            h = h + step / 6 * (a + 2 * b + 2 * c + self.at(t + step, h + step * c))
        return self.head(h)


class Observed(nn.Module):
    """GRU-ODE: the state decays between observations and jumps at those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.drift, self.head = nn.GRUCell(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        h = x.new_zeros(x.size(0), 8)
        for step in range(x.size(1)):
            h = h + 0.1 * torch.tanh(self.drift(h))
            seen = (step < long).unsqueeze(1)
            h = torch.where(seen, self.cell(x[:, step], h), h)
        return self.head(h)


class DeepSet(nn.Module):
    """Sums over the members that are there, their number, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.whole = mlp(8, 8), mlp(17)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        there = (torch.arange(x.shape[1], device=x.device) < long[:, None]).unsqueeze(-1)
        h = self.each(x)
        most = h.masked_fill(~there, -1e9).max(1)[0]
        return self.whole(torch.cat([(h * there).sum(1) / long[:, None], most, long[:, None] / 9], 1))


class Tabular(nn.Module):
    """TabTransformer: columns' words attend to each other, numbers come beside."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.column = nn.Embedding(20, 8), nn.Parameter(torch.randn(4, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.layers, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(5)
        self.head = mlp(37)
        self.register_buffer("first", torch.arange(4) * 5)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        h = self.layers(self.words(kinds + self.first) + self.column)
        return self.head(torch.cat([h.flatten(1), self.norm(numbers)], 1))


def table(size: int, generator: torch.Generator) -> Batch:
    kinds = torch.randint(0, 5, (size, 4), generator=generator)
    return kinds, torch.randn(size, 5, generator=generator), classes(size, 3, generator)


class Trees(nn.Module):
    """NODE: soft oblivious trees with learned features and thresholds."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.threshold = nn.Parameter(torch.randn(8, 4, 3)), nn.Parameter(torch.randn(4, 3))
        self.log_scale, self.response = nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.randn(4, 3, 8))
        self.register_buffer("codes", torch.tensor([[(leaf >> d) & 1 for d in range(3)] for leaf in range(8)]).float())

    def forward(self, x: Tensor) -> Tensor:
        value = torch.einsum("bi,itd->btd", x, self.choice.softmax(0))
        side = torch.sigmoid((value - self.threshold) * torch.exp(-self.log_scale))
        both = torch.stack([1 - side, side], -1)
        leaf = torch.einsum("btds,lds->btld", both, F.one_hot(self.codes.long(), 2).float()).prod(-1)
        return torch.einsum("btl,tcl->bc", leaf, self.response)


class Mixture(nn.Module):
    """A mixture density network with torch.distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8, 9)

    def forward(self, x: Tensor) -> torch.distributions.Distribution:
        weights, places, spreads = self.net(x).chunk(3, -1)
        each = torch.distributions.Normal(places, F.softplus(spreads) + 0.1)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weights), each)


class Rwkv(nn.Module):
    """Time mixing with exponential decay, as a loop with a running maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.k, self.v, self.r = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.decay, self.bonus, self.mix = (nn.Parameter(torch.randn(8) * 0.1) for _ in "abc")
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, words: Tensor, long: Tensor) -> Tensor:
        x = self.norm(self.words(words))
        x = x * self.mix + F.pad(x, (0, 0, 1, -1)) * (1 - self.mix)
        k, v, r = self.k(x), self.v(x), torch.sigmoid(self.r(x))
        top, below, most = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0]), torch.full_like(v[:, 0], -1e38)
        out = []
        for t in range(x.shape[1]):
            new = torch.maximum(most, self.bonus + k[:, t])
            a, b = torch.exp(most - new), torch.exp(self.bonus + k[:, t] - new)
            out.append((a * top + b * v[:, t]) / (a * below + b))
            new = torch.maximum(most - torch.exp(self.decay), k[:, t])
            a, b = torch.exp(most - torch.exp(self.decay) - new), torch.exp(k[:, t] - new)
            top, below, most = a * top + b * v[:, t], a * below + b, new
        h = torch.stack(out, 1) * r
        return self.head(h[torch.arange(len(h)), long - 1])


class Diagonal(nn.Module):
    """S4D: a diagonal state space as one long convolution in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.log_step, self.log_real = nn.Parameter(torch.randn(4) - 2), nn.Parameter(torch.zeros(4, 3))
        self.imaginary = nn.Parameter(math.pi * torch.arange(3).repeat(4, 1).float())
        self.c = nn.Parameter(torch.randn(4, 3, 2) * 0.5)
        self.skip, self.into, self.head = nn.Parameter(torch.randn(4)), nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        u, length = self.into(x).transpose(1, 2), x.shape[1]
        step, a = self.log_step.exp(), torch.complex(-self.log_real.exp(), self.imaginary)
        grown = (a * step[:, None]).unsqueeze(-1) * torch.arange(length)
        c = torch.view_as_complex(self.c) * (torch.exp(a * step[:, None]) - 1) / a
        kernel = 2 * torch.einsum("hn,hnl->hl", c, torch.exp(grown)).real
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        return self.head(F.gelu(y[..., :length] + u * self.skip[:, None]).transpose(1, 2))


class EdgeConv(nn.Module):
    """DGCNN: neighbours by distance within each cloud of points."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.head = nn.Conv2d(4, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        near = (-torch.cdist(x, x)).topk(4, dim=-1)[1]
        start = torch.arange(x.size(0), device=x.device).view(-1, 1, 1) * x.size(1)
        around = x.reshape(-1, 2)[(near + start).view(-1)].view(x.size(0), x.size(1), 4, 2)
        here = x.unsqueeze(2).expand(-1, -1, 4, -1)
        h = F.leaky_relu(self.edge(torch.cat([around - here, here], 3).permute(0, 3, 1, 2)))
        return self.head(h.amax(-1).amax(-1))


class Pruned(nn.Module):
    """A transformer that keeps the tokens that the class token attends to."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.token = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.score, self.attend = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        h = self.into(x)
        asked = (self.token.expand(len(h), -1, -1) @ self.score(h).mT).squeeze(1)
        kept = asked.topk(4, dim=1).indices
        h = torch.gather(h, 1, kept.unsqueeze(-1).expand(-1, -1, 8)) * asked.gather(1, kept).sigmoid().unsqueeze(-1)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        return self.head(self.attend(h, h, h, need_weights=False)[0][:, 0])


stranger("film")(lambda: Case(Conditioned(), pictures_and_rows, classify))
stranger("attention-unet")(lambda: Case(UNet(), masks, dice_by_picture))
stranger("wavenet-residual")(lambda: Case(WaveNet(), series, fit))
stranger("fourier-operator-2d")(lambda: Case(Fourier(), masks, fit))
stranger("runge-kutta")(lambda: Case(Runge(), rows, classify))
stranger("gru-ode")(lambda: Case(Observed(), sequences, classify))
stranger("deep-sets")(lambda: Case(DeepSet(), sequences, classify))
stranger("tab-transformer")(lambda: Case(Tabular(), table, classify))
stranger("oblivious-trees")(lambda: Case(Trees(), rows, classify))
stranger("mixture-distribution")(lambda: Case(Mixture(), rows, lambda m, b: -m(b[0]).log_prob(b[1].float()).mean()))
stranger("rwkv-loop")(lambda: Case(Rwkv(), texts, classify))
stranger("state-space-convolution")(lambda: Case(Diagonal(), series, fit))
stranger("edge-convolution")(lambda: Case(EdgeConv(), lambda n, g: (*points(n, g), classes(n, 3, g)), classify))
stranger("pruned-tokens")(lambda: Case(Pruned(), sequences, classify))
