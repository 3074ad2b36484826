"""Networks that the engine was not developed with: fields, kernels, memories, scans, latents, old hooks on weights."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.plain import classify, mlp, rows, sequences, texts

stranger = partial(entry, "stranger")


def points(size: int, generator: torch.Generator) -> Batch:
    return torch.rand(size, 12, 2, generator=generator), torch.rand(size, 12, 1, generator=generator)


def fit(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(*batch[:-1]), batch[-1])


class Sine(nn.Module):
    """SIREN, with frequencies as features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 1)])
        self.register_buffer("frequencies", 2.0 ** torch.arange(2) * math.pi)

    def forward(self, x: Tensor) -> Tensor:
        angles = (x[..., None] * self.frequencies).flatten(-2)
        x = torch.cat([x, angles.sin(), angles.cos()], dim=-1)
        for layer in self.layers[:-1]:
            x = torch.sin(3.0 * layer(x))
        return self.layers[-1](x)


class Field(nn.Module):
    """A radiance field: densities and colours along rays, put together by transmittance."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 4)

    def forward(self, origin: Tensor, direction: Tensor) -> Tensor:
        depth = torch.linspace(0.1, 1.0, 8, device=origin.device)
        places = origin[:, None] + direction[:, None] * depth[None, :, None]
        raw = self.net(places)
        colour, density = torch.sigmoid(raw[..., :3]), F.relu(raw[..., 3] + 0.5)
        alpha = 1.0 - torch.exp(-density * 0.1)
        shifted = torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], dim=-1)
        weights = alpha * torch.cumprod(shifted, dim=-1)[:, :-1]
        return (weights[..., None] * colour).sum(dim=1)


def rays(size: int, generator: torch.Generator) -> Batch:
    draw = partial(torch.randn, size, 3, generator=generator)
    return draw(), F.normalize(draw(), dim=-1), torch.rand(size, 3, generator=generator)


class Operator(nn.Module):
    """DeepONet: a function's samples, and where its image is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.trunk, self.bias = mlp(16, 8), mlp(1, 8), nn.Parameter(torch.zeros(1))

    def forward(self, samples: Tensor, where: Tensor) -> Tensor:
        return torch.einsum("bp,bnp->bn", self.branch(samples), self.trunk(where)) + self.bias


def functions(size: int, generator: torch.Generator) -> Batch:
    draw = partial(torch.rand, generator=generator)
    return draw(size, 16), draw(size, 5, 1), draw(size, 5)


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: B-splines on every edge."""

    def __init__(self, inputs: int, outputs: int, order: int = 3) -> None:
        super().__init__()
        self.order, self.base = order, nn.Parameter(torch.randn(outputs, inputs) * 0.3)
        self.spline = nn.Parameter(torch.randn(outputs, inputs, 5 + order) * 0.1)
        grid = torch.arange(-order, 5 + order + 1) * 0.4 - 1
        self.register_buffer("grid", grid.expand(inputs, -1).contiguous())

    def bases(self, x: Tensor) -> Tensor:
        grid, x = self.grid, x.unsqueeze(-1)
        found = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * found[:, :, :-1]
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)]) * found[:, :, 1:]
            found = left + right
        return found

    def forward(self, x: Tensor) -> Tensor:
        splines = F.linear(self.bases(x).view(x.size(0), -1), self.spline.view(self.spline.size(0), -1))
        return F.linear(F.silu(x), self.base) + splines


class Selective(nn.Module):
    """A selective state space model: the step is computed from the input, the scan is a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step = nn.Linear(8, 8), nn.Linear(8, 8)
        self.into, self.out, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 3)
        self.log_a, self.skip = (
            nn.Parameter(torch.log(torch.arange(1.0, 5.0)).repeat(8, 1)),
            nn.Parameter(torch.ones(8)),
        )

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        x = F.silu(self.inner(x))
        delta, b, c = F.softplus(self.step(x)), self.into(x), self.out(x)
        decay = torch.exp(torch.einsum("btd,dn->btdn", delta, -torch.exp(self.log_a)))
        given = torch.einsum("btd,btn,btd->btdn", delta, b, x)
        state, found = x.new_zeros(x.shape[0], 8, 4), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + given[:, t]
            found.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        y = torch.stack(found, dim=1) + x * self.skip
        return self.head(y[torch.arange(len(y)), length - 1])


class Retention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.head = nn.Linear(8, 24, bias=False), nn.GroupNorm(2, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        n = torch.arange(x.shape[1], device=x.device)
        decay = torch.where(n[:, None] >= n, 0.9 ** (n[:, None] - n).clamp_min(0).to(x.dtype), 0.0)
        y = (q @ k.transpose(-1, -2) * decay) @ v
        y = self.norm(y.transpose(1, 2).reshape(-1, 8)).view(x.shape)
        return self.head((y * (n < length[:, None]).unsqueeze(-1)).sum(1) / length[:, None])


class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 8))
        self.read, self.think = nn.MultiheadAttention(8, 2, batch_first=True), nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        padded = torch.arange(x.shape[1], device=x.device)[None, :] >= length[:, None]
        z = self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)
        for _ in range(2):
            z = z + self.read(z, x, x, key_padding_mask=padded, need_weights=False)[0]
            z = self.think(z)
        return self.head(z.mean(dim=1))


class Slots(nn.Module):
    """Slot attention: rounds of competition, each ended by a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.q, self.kv = nn.Parameter(torch.randn(1, 3, 8)), nn.Linear(8, 8), nn.Linear(8, 16)
        self.cell, self.norm, self.head = nn.GRUCell(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        b, _, d = x.shape
        k, v = self.kv(self.norm(x)).chunk(2, dim=-1)
        slots = self.start.expand(b, -1, -1)
        for _ in range(2):
            share = torch.softmax(k @ self.q(slots).transpose(1, 2) * d**-0.5, dim=-1) + 1e-8
            share = share / share.sum(dim=1, keepdim=True)
            found = torch.einsum("bns,bnd->bsd", share, v)
            slots = self.cell(found.reshape(-1, d), slots.reshape(-1, d)).reshape(b, -1, d)
        return self.head(slots.max(dim=1).values)


class Memory(nn.Module):
    """A memory that is written to by content, as in a neural Turing machine."""

    def __init__(self) -> None:
        super().__init__()
        self.control, self.heads, self.out = nn.LSTMCell(12, 8), nn.Linear(8, 14), nn.Linear(12, 3)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        b = x.size(0)
        memory, read = torch.full((b, 5, 4), 1e-2), torch.zeros(b, 4)
        h, c = torch.zeros(b, 8), torch.zeros(b, 8)
        for t in range(x.size(1)):
            h, c = self.control(torch.cat([x[:, t], read], -1), (h, c))
            key, erase, add, strength, gate = self.heads(h).split([4, 4, 4, 1, 1], dim=-1)
            near = F.cosine_similarity(memory, key.unsqueeze(1), dim=-1)
            w = torch.softmax(F.softplus(strength) * near, dim=-1).unsqueeze(-1) * torch.sigmoid(gate).unsqueeze(1)
            memory = memory * (1 - w * torch.sigmoid(erase).unsqueeze(1)) + w * torch.tanh(add).unsqueeze(1)
            read = (w * memory).sum(1)
        return self.out(torch.cat([h, read], dim=-1))


class ConvLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Conv2d(3 + 4, 16, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.size(0), 4, *x.shape[-2:], device=x.device)
        for frame in x.unbind(dim=1):
            i, f, o, g = torch.chunk(self.gates(torch.cat([frame, h], dim=1)), 4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h.mean(dim=(2, 3)))


def clips(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 3, 3, 6, 6, generator=generator), classes(size, 3, generator)


class Grouped(nn.Module):
    """A decoder as of 2025: rotary positions, grouped keys, root mean squares, gates, a soft cap, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.q, self.kv = nn.Embedding(30, 16), nn.Linear(16, 16), nn.Linear(16, 8)
        self.o, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 48, bias=False), nn.Linear(24, 16, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(16) for _ in range(3)])

    def turn(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[-2], device=x.device)[:, None] / 10 ** torch.arange(2, device=x.device)
        cos, sin = torch.cat([t.cos(), t.cos()], -1), torch.cat([t.sin(), t.sin()], -1)
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) * 4.0
        b, t, _ = x.shape
        y = self.norms[0](x)
        q, (k, v) = self.q(y).view(b, t, 4, 4).transpose(1, 2), self.kv(y).view(b, t, 2, 1, 4).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, 16))
        gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        return 30.0 * torch.tanh(F.linear(self.norms[2](x), self.words.weight) / 30.0)


def next_words(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over each text's own words, with a weight that falls, and the square of the normaliser beside it."""
    words, length, _ = batch
    logits, target = model(words)[:, :-1], words[:, 1:]
    mask = (torch.arange(target.shape[1])[None] < length[:, None] - 1).float() * 0.9 ** torch.arange(target.shape[1])
    each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none") + 1e-2 * logits.logsumexp(-1) ** 2
    return ((each * mask).sum(1) / mask.sum(1)).mean()


stranger("siren")(lambda: Case(Sine(), points, fit))
stranger("radiance-field")(lambda: Case(Field(), rays, fit))
stranger("deep-operator")(lambda: Case(Operator(), functions, fit))
stranger("kan")(lambda: Case(nn.Sequential(Splines(8, 6), Splines(6, 3)), rows, classify))
stranger("selective-scan")(lambda: Case(Selective(), sequences, classify))
stranger("retention")(lambda: Case(Retention(), sequences, classify))
stranger("perceiver")(lambda: Case(Perceiver(), sequences, classify))
stranger("slot-attention")(lambda: Case(Slots(), sequences, classify))
stranger("turing-memory")(lambda: Case(Memory(), sequences, classify))
stranger("conv-lstm")(lambda: Case(ConvLSTM(), clips, classify))
stranger("grouped-decoder")(lambda: Case(Grouped(), texts, next_words))
