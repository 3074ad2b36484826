"""Tables, series, memories and experts, as tutorials and papers write them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.visitor_flows import labelled, mlp, rows, sort


class Cross(nn.Module):
    """DCN-v2 with experts, xDeepFM's interactions, and a wide part."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({f"c{i}": nn.Embedding(7, 4) for i in range(3)})
        self.wide = nn.ModuleList(nn.Embedding(7, 1) for _ in range(3))
        self.u, self.v = nn.Parameter(torch.randn(2, 12, 3) * 0.3), nn.Parameter(torch.randn(2, 3, 12) * 0.3)
        self.bias, self.gate = nn.Parameter(torch.zeros(12)), nn.Linear(12, 2)
        self.cin, self.head = nn.Conv1d(9, 5, 1), nn.Linear(17, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.stack([self.tables[f"c{i}"](x[:, i]) for i in range(3)], 1)
        x0 = e.flatten(1)
        experts = torch.stack([x0 * (torch.tanh(x0 @ self.u[k]) @ self.v[k] + self.bias) for k in range(2)], -1)
        deep = torch.einsum("bde,be->bd", experts, self.gate(x0).softmax(-1)) + x0
        inter = torch.einsum("bhd,bmd->bhmd", e, e).reshape(len(x), 9, 4)
        wide = sum(w(x[:, i]) for i, w in enumerate(self.wide))
        return (self.head(torch.cat([deep, self.cin(inter).relu().sum(-1)], 1)) + wide).squeeze(-1)


@entry("visitor", "cross-network")
def cross() -> Case:
    return Case(Cross(), lambda n, g: (torch.randint(0, 7, (n, 3), generator=g), classes(n, 2, g).float()),
                lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]))  # fmt: skip


class Radial(nn.Module):
    """Distances to learned centres, and attention over learned patterns."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.width = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.zeros(5))
        self.patterns, self.beta = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        phi = torch.exp(-(torch.cdist(x, self.centres) ** 2) * torch.exp(self.width))
        q = F.normalize(x, dim=1)
        for _ in range(2):
            q = (self.beta * q @ self.patterns.T).softmax(-1) @ self.patterns
        return self.head(torch.cat([phi, q], 1))


@entry("visitor", "radial-and-hopfield")
def radial() -> Case:
    return Case(Radial(), labelled, sort)


class Decayed(nn.Module):
    """GRU-D: missing values decay towards a mean that training fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gx, self.gh, self.head = nn.GRUCell(6, 8), nn.Linear(3, 3), nn.Linear(3, 8), nn.Linear(8, 2)
        self.register_buffer("mean", torch.tensor([0.1, -0.2, 0.3]))

    def forward(self, x: Tensor, mask: Tensor, delta: Tensor) -> Tensor:
        h, last = x.new_zeros(len(x), 8), self.mean.expand(len(x), 3)
        for t in range(x.shape[1]):
            m, d = mask[:, t], delta[:, t]
            gamma = torch.exp(-torch.relu(self.gx(d)))
            last = torch.where(m > 0, x[:, t], last)
            seen = m * x[:, t] + (1 - m) * (gamma * last + (1 - gamma) * self.mean)
            h = self.cell(torch.cat([seen, m], 1), h * torch.exp(-torch.relu(self.gh(d))))
        return self.head(h)


@entry("visitor", "gru-d")
def grud() -> Case:
    def batch(n: int, g: torch.Generator) -> Batch:
        return (
            torch.randn(n, 5, 3, generator=g),
            (torch.rand(n, 5, 3, generator=g) < 0.6).float(),
            torch.rand(n, 5, 3, generator=g),
            classes(n, 2, g),
        )

    return Case(Decayed(), batch, lambda m, b: F.cross_entropy(m(*b[:3]), b[3]))


class Ponder(nn.Module):
    """Adaptive computation time, with a fixed number of steps at most."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.halt, self.head = nn.GRUCell(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, total, out, steps = x.new_zeros(len(x), 8), x.new_zeros(len(x)), 0.0, 0.0
        for k in range(4):
            h = self.cell(x, h)
            p = torch.sigmoid(self.halt(h)).squeeze(-1)
            running = (total < 0.99).float()
            p = torch.where(total + p > 0.99, 1 - total, p) * running if k < 3 else (1 - total) * running
            total, steps = total + p, steps + running
            out = out + p.unsqueeze(-1) * h
        return self.head(out), steps + total


@entry("visitor", "adaptive-computation")
def ponder() -> Case:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        out, cost = m(b[0])
        return F.cross_entropy(out, b[1]) + 0.01 * cost.mean()

    return Case(Ponder(), labelled, loss)


class Seasonal(nn.Module):
    """DLinear with reversible normalisation, and gated residuals as in the temporal fusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.average = nn.AvgPool1d(5, 1)
        self.season, self.trend = nn.Linear(16, 4), nn.Linear(16, 4)
        self.gate, self.norm = nn.Linear(4, 8), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(1, keepdim=True), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        z = (x - mean) / std
        padded = torch.cat([z[:, :1].repeat(1, 2, 1), z, z[:, -1:].repeat(1, 2, 1)], 1)
        trend = self.average(padded.permute(0, 2, 1))
        y = self.season(z.permute(0, 2, 1) - trend) + self.trend(trend)
        y = self.norm(y + F.glu(self.gate(y)))
        return y.permute(0, 2, 1) * std + mean


@entry("visitor", "decomposed-series")
def seasonal() -> Case:
    return Case(Seasonal(), lambda n, g: (torch.randn(n, 16, 2, generator=g), torch.randn(n, 4, 2, generator=g)),
                lambda m, b: F.mse_loss(m(b[0]), b[1]))  # fmt: skip


class Sparse(nn.Module):
    """Informer: only the queries that stand out attend."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        b, n, d = q.shape
        sample = torch.arange(0, n, 2)
        s = torch.matmul(q, k[:, sample].transpose(-2, -1))
        top = (s.max(-1)[0] - s.mean(-1)).topk(3, sorted=False)[1]
        reduced = q[torch.arange(b)[:, None], top]
        a = torch.softmax(reduced @ k.transpose(-2, -1) / math.sqrt(d), -1) @ v
        out = v.mean(1, keepdim=True).expand(b, n, d).clone()
        out[torch.arange(b)[:, None], top] = a
        return self.head(out).squeeze(-1)


@entry("visitor", "prob-sparse-attention")
def informer() -> Case:
    return Case(Sparse(), lambda n, g: (torch.randn(n, 9, 4, generator=g), torch.randn(n, 9, generator=g)),
                lambda m, b: F.mse_loss(m(b[0]), b[1]))  # fmt: skip


class Causal(nn.Module):
    """Linear attention with running sums, random features, and a long convolution by Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 24), nn.Linear(16, 3)
        self.kernel, self.decay = nn.Parameter(torch.randn(8, 10) * 0.2), nn.Parameter(torch.zeros(8))
        self.register_buffer("omega", torch.randn(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (torch.exp(t @ self.omega - t.square().sum(-1, keepdim=True) / 2) + 1e-3 for t in (q, k))
        kv = torch.einsum("btf,btd->btfd", k, v).cumsum(1)
        a = torch.einsum("btf,btfd->btd", q, kv) / torch.einsum("btf,btf->bt", q, k.cumsum(1))[..., None]
        t = x.shape[1]
        kernel = self.kernel * torch.exp(-F.softplus(self.decay)[:, None] * torch.arange(t))
        y = torch.fft.irfft(torch.fft.rfft(v.transpose(1, 2), n=2 * t) * torch.fft.rfft(kernel, n=2 * t), n=2 * t)
        return self.head(torch.cat([a, y[..., :t].transpose(1, 2)], -1)).mean(1)


@entry("visitor", "performer-and-hyena")
def causal() -> Case:
    return Case(Causal(), lambda n, g: (torch.randn(n, 10, 6, generator=g), classes(n, 3, g)), sort)


class Routed(nn.Module):
    """Experts in a loop: each takes the rows that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3, bias=False), nn.ModuleList(mlp(6, 8, 6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        weights, chosen = torch.topk(self.gate(flat), 2)
        weights = F.softmax(weights, dim=1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            row, nth = torch.where(chosen == i)
            out[row] += weights[row, nth, None] * expert(flat[row])
        return self.head(out.view_as(x).mean(1))


@entry("visitor", "experts-in-a-loop")
def routed() -> Case:
    return Case(Routed(), lambda n, g: (torch.randn(n, 4, 6, generator=g), classes(n, 3, g)), sort)


@entry("visitor", "deep-hit")
def deep_hit() -> Case:
    """Discrete times of events, some censored; its ranking between records is left out."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        p = F.softmax(m(b[0]), 1)
        event = p.gather(1, b[1].view(-1, 1)).squeeze(1)
        beyond = 1 - p.cumsum(1).gather(1, b[1].view(-1, 1)).squeeze(1)
        return -(b[2] * event.clamp_min(1e-7).log() + (1 - b[2]) * beyond.clamp_min(1e-7).log()).mean()

    return Case(mlp(6, 8, 6), lambda n, g: (rows(n, g), classes(n, 5, g), classes(n, 2, g).float()), loss)


@entry("visitor", "semi-supervised-rows")
def semi() -> Case:
    """Half of the records have a label, all of them have a reconstruction."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.head = mlp(6, 8, 4), mlp(4, 8, 6), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.encoder(x)
            return self.decoder(z), self.head(z)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        again, out = m(b[0])
        each = F.cross_entropy(out, b[1].clamp(min=0), reduction="none") * (b[1] >= 0)
        return F.mse_loss(again, b[0]) + each.mean()

    return Case(Both(), lambda n, g: (rows(n, g), classes(n, 4, g) - 1), loss)


@entry("visitor", "one-class")
def svdd() -> Case:
    centre = torch.ones(4)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        d = ((m(b[0]) - centre) ** 2).sum(1)
        return torch.where(b[1] == 0, d, (d + 1e-6) ** -1.0).mean()

    return Case(nn.Sequential(nn.Linear(6, 8, bias=False), nn.LeakyReLU(), nn.Linear(8, 4, bias=False)),
                lambda n, g: (rows(n, g), classes(n, 2, g)), loss)  # fmt: skip
