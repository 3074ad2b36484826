"""Architectures as tutorials and papers write them: recommenders, flows, sets, capsules, fields, hypernetworks."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, entry
from zoo_models.plain import classify, mlp, pictures, rows

tutorial = partial(entry, "tutorial")


def clicks(size: int, generator: torch.Generator) -> Batch:
    dense = torch.randn(size, 4, generator=generator)
    return dense, torch.randint(0, 20, (size, 3), generator=generator), torch.rand(size, generator=generator).round()


def binary(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1])


class DLRM(nn.Module):
    """Dense features through an MLP, one table for each category, dot products of all pairs, a top MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.top = mlp(4, 6), mlp(6 + 6, 1)
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 6, mode="sum") for _ in range(3))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        ly = [table(sparse[:, k : k + 1]) for k, table in enumerate(self.tables)]
        T = torch.cat([x, *ly], dim=1).view(x.shape[0], -1, x.shape[1])
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        li, lj = torch.tril_indices(4, 4, offset=-1)
        return self.top(torch.cat([x, Z[:, li, lj]], dim=1)).squeeze(1)


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(60, 1), nn.Embedding(60, 4)
        self.deep, self.bias = mlp(12 + 4, 1), nn.Parameter(torch.zeros(1))
        self.register_buffer("offsets", torch.tensor([0, 20, 40]))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        index = sparse + self.offsets
        e = self.second(index)
        pairs = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        deep = self.deep(torch.cat([e.flatten(1), dense], 1))
        return (self.first(index).sum(1) + pairs + deep + self.bias).squeeze(1)


class FTTransformer(nn.Module):
    """Each feature is a token: learned weights times numbers, embeddings of categories, a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(4, 8))
        self.tables, self.cls = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3)), nn.Parameter(torch.randn(1, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        tokens = [self.cls.repeat(len(dense), 1, 1), self.weight * dense[:, :, None] + self.bias]
        tokens += [table(sparse[:, k])[:, None] for k, table in enumerate(self.tables)]
        return self.out(self.body(torch.cat(tokens, 1))[:, 0]).squeeze(-1)


class TwoTowers(nn.Module):
    """Logged pairs: the dot product of a user's and an item's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = mlp(4, 6), nn.Embedding(20, 6)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        return torch.einsum("bd,bd->b", F.normalize(self.user(dense)), F.normalize(self.item(sparse[:, 0])))


for kind in (DLRM, DeepFM, FTTransformer, TwoTowers):
    tutorial(kind.__name__.lower())(partial(lambda kind: Case(kind(), clicks, binary), kind))


class Coupling(nn.Module):
    """RealNVP's affine coupling and Glow's invertible matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.net = nn.Parameter(torch.linalg.qr(torch.randn(8, 8))[0]), mlp(4, 8)
        self.scale, self.shift = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = (x + self.shift) * self.scale.exp()
        x = x @ self.matrix
        a, b = x.chunk(2, 1)
        log_s, t = self.net(a).chunk(2, 1)
        volume = torch.slogdet(self.matrix)[1] + self.scale.sum()
        return torch.cat([a, b * torch.tanh(log_s).exp() + t], 1), torch.tanh(log_s).sum(1) + volume


class Glow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Coupling() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        volume = x.new_zeros(len(x))
        for step in self.steps:
            x, more = step(x)
            volume = volume + more
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(1) + volume


tutorial("glow")(lambda: Case(Glow(), rows, lambda m, b: -m(b[0]).mean()))


class MaskedLinear(nn.Linear):
    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


@tutorial("made")
def made() -> Case:
    inner = torch.arange(16) % 7
    net = nn.Sequential(MaskedLinear((inner[:, None] >= torch.arange(8)[None]).float()), nn.ReLU(),
                        MaskedLinear((torch.arange(8)[:, None] > inner[None]).float()))  # fmt: skip
    return Case(net, rows, lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), (b[0] > 0).float()))


class PixelCNN(nn.Conv2d):
    def __init__(self, inside: int, outside: int, first: bool) -> None:
        super().__init__(inside, outside, 3, padding=1)
        mask = torch.ones_like(self.weight)
        mask[:, :, 1, 1 + (not first) :], mask[:, :, 2:] = 0, 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data *= self.mask
        return super().forward(x)


class PixelNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(PixelCNN(3, 8, True), nn.ReLU(), PixelCNN(8, 8, False), nn.ReLU(), nn.Conv2d(8, 3, 1))


tutorial("pixelcnn")(lambda: Case(PixelNet(), pictures, lambda m, b: F.mse_loss(m(b[0]), b[0])))


class Capsules(nn.Module):
    """Capsules with three rounds of routing by agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = nn.Conv2d(3, 8, 5, 4), nn.Parameter(0.1 * torch.randn(1, 8, 3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.conv(x).flatten(2).transpose(1, 2).reshape(len(x), -1, 4))
        votes = (self.weight @ u[:, :8, None, :, None]).squeeze(-1)
        logits = torch.zeros(len(x), 8, 3)
        for _ in range(3):
            c = logits.softmax(2)
            v = self.squash((c[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return v.norm(dim=-1)

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        n2 = (s**2).sum(-1, keepdim=True)
        return n2 / (1 + n2) * s / torch.sqrt(n2 + 1e-8)


def margin(model: nn.Module, batch: Batch) -> Tensor:
    v, hot = model(batch[0]), torch.eye(3).index_select(0, batch[1])
    left, right = F.relu(0.9 - v) ** 2, F.relu(v - 0.1) ** 2
    return (hot * left + 0.5 * (1 - hot) * right).sum(1).mean()


tutorial("capsules")(lambda: Case(Capsules(), pictures, margin))


@tutorial("hypernetwork-by-example")
def hyper() -> Case:
    """The first network writes the second one's weights for each example."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hyper = nn.Linear(4, 4 * 5 + 5)
            self.out = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            made = self.hyper(x[:, 4:])
            w, b = made[:, :20].view(-1, 5, 4), made[:, 20:]
            return self.out(torch.relu(torch.baddbmm(b.unsqueeze(2), w, x[:, :4].unsqueeze(2)).squeeze(2)))

    return Case(Model(), rows, classify)


@tutorial("hypernetwork-by-layer")
def hyper_layer() -> Case:
    """The weights of all layers come from learned embeddings of the layers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.z, self.make, self.out = nn.Parameter(torch.randn(3, 4)), mlp(4, 64), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            for z in self.z:
                x = x + torch.tanh(F.linear(x, self.make(z).view(8, 8)))
            return self.out(x)

    return Case(Model(), rows, classify)


@tutorial("deep-equilibrium")
def equilibrium() -> Case:
    """A fixed number of steps without a graph, then one with it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inject, self.step, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def f(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.step(z) + x)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inject(x)
            with torch.no_grad():
                z = torch.zeros_like(x)
                for _ in range(30):
                    z = self.f(z, x)
            return self.out(self.f(z, x))

    return Case(Model(), rows, classify)


@tutorial("fixed-point-until-close")
def until_close() -> Case:
    """The same with a loop that ends when the step is small for every example of the batch."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inject, self.step, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x, z = self.inject(x), torch.zeros(len(x), 8)
            for _ in range(50):
                new = torch.tanh(0.2 * self.step(z) + x)
                if (new - z).norm() < 1e-6:
                    break
                z = new
            return self.out(z)

    return Case(Model(), rows, classify)
