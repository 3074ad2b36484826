"""Learned planes, clouds of points, sounds and noise predictors, as tutorials and papers write them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.visitor_images import labelled, pictures, sort


class Planes(nn.Module):
    """A learned picture is looked up where each record's points are."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Parameter(torch.randn(1, 4, 8, 8) * 0.3)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, points: Tensor) -> Tensor:
        grid = points[:, None]
        h = F.grid_sample(self.plane.expand(len(points), -1, -1, -1), grid, align_corners=True)
        return self.head(h.squeeze(2).transpose(1, 2)).squeeze(-1)


@entry("visitor", "learned-plane")
def planes() -> Case:
    def batch(n: int, g: torch.Generator) -> Batch:
        return torch.rand(n, 5, 2, generator=g) * 2 - 1, torch.randn(n, 5, generator=g)

    return Case(Planes(), batch, lambda m, b: F.mse_loss(m(b[0]), b[1]))


class HashGrid(nn.Module):
    """Corners of a cell are looked up in hashed tables, and interpolated."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(32, 2) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for level, table in enumerate(self.tables):
            p = x * 2 ** (level + 2)
            low = torch.floor(p).int()
            w = p - low
            value = 0
            for i in (0, 1):
                for j in (0, 1):
                    corner = low + torch.tensor([i, j])
                    key = torch.bitwise_xor(corner[..., 0] * 1, corner[..., 1] * 2654435761 % 2**31) % 32
                    weight = (w[..., 0] if i else 1 - w[..., 0]) * (w[..., 1] if j else 1 - w[..., 1])
                    value = value + table(key.long()) * weight.unsqueeze(-1)
            found.append(value)
        return torch.sigmoid(self.head(torch.cat(found, -1)))


@entry("visitor", "hash-grid")
def hash_grid() -> Case:
    return Case(HashGrid(), lambda n, g: (torch.rand(n, 2, generator=g), torch.rand(n, 3, generator=g)),
                lambda m, b: F.mse_loss(m(b[0]), b[1]))  # fmt: skip


class Equivariant(nn.Module):
    """E(n) layers on padded clouds of atoms."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(5, 6)
        self.edge = nn.Sequential(nn.Linear(13, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU())
        self.move, self.node, self.head = nn.Linear(8, 1, bias=False), nn.Linear(14, 6), nn.Linear(6, 1)

    def forward(self, kind: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        h = self.kinds(kind)
        n = h.shape[1]
        both = mask[:, :, None] & mask[:, None] & ~torch.eye(n, dtype=torch.bool)
        for _ in range(2):
            d = x[:, :, None] - x[:, None]
            far = d.square().sum(-1, keepdim=True)
            m = self.edge(torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), far], -1))
            m = m * both[..., None]
            x = x + (d / (far + 1e-6).sqrt() * self.move(m)).sum(2) / both.sum(2, keepdim=True).clamp(min=1)
            h = h + self.node(torch.cat([h, m.sum(2)], -1))
        return self.head((h * mask[..., None]).sum(1)).squeeze(1)


@entry("visitor", "equivariant-atoms")
def egnn() -> Case:
    def batch(n: int, g: torch.Generator) -> Batch:
        mask = torch.arange(6)[None] < torch.randint(3, 7, (n, 1), generator=g)
        return (
            torch.randint(0, 5, (n, 6), generator=g),
            torch.randn(n, 6, 3, generator=g),
            mask,
            torch.randn(n, generator=g),
        )

    return Case(Equivariant(), batch, lambda m, b: F.l1_loss(m(*b[:3]), b[3]))


class Cloud(nn.Module):
    """PointNet++: farthest points, balls around them, their largest features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward(self, xyz: Tensor) -> Tensor:
        b, n, _ = xyz.shape
        centres = torch.zeros(b, 4, dtype=torch.long)
        distance = torch.full((b, n), 1e10)
        farthest = torch.zeros(b, dtype=torch.long)
        rows = torch.arange(b)
        for i in range(4):
            centres[:, i] = farthest
            distance = torch.min(distance, (xyz - xyz[rows, farthest].view(b, 1, 3)).square().sum(-1))
            farthest = torch.max(distance, -1)[1]
        new = xyz.gather(1, centres.unsqueeze(-1).expand(-1, -1, 3))
        near = torch.cdist(new, xyz).topk(3, largest=False)[1]
        grouped = xyz[rows.view(b, 1, 1).expand_as(near), near] - new.unsqueeze(2)
        h = F.relu(self.second(F.relu(self.first(grouped.permute(0, 3, 2, 1)))))
        return self.head(h.max(2)[0].mean(-1))


@entry("visitor", "farthest-points")
def pointnet2() -> Case:
    return Case(Cloud(), lambda n, g: (torch.randn(n, 12, 3, generator=g), classes(n, 3, g)), sort)


@entry("visitor", "segmentation-with-void", token_mean=True)
def segment() -> Case:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2))

    def batch(n: int, g: torch.Generator) -> Batch:
        y = torch.randint(0, 4, (n, 12, 12), generator=g)
        return pictures(n, g), y.masked_fill(torch.rand(n, 12, 12, generator=g) < 0.2, 255)

    return Case(net, batch, lambda m, b: F.cross_entropy(m(b[0]), b[1], ignore_index=255))


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.ff, self.norm = (
            nn.Linear(6, 8),
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)),
            nn.LayerNorm(8),
        )
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.wide, self.depth, self.point = (
            nn.Conv1d(8, 16, 1),
            nn.Conv1d(8, 8, 5, padding=2, groups=8),
            nn.Conv1d(8, 8, 1),
        )
        self.group, self.head = nn.GroupNorm(1, 8), nn.Linear(8, 7)

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        out = torch.arange(x.shape[1])[None] >= count[:, None]
        h = self.into(x)
        h = h + 0.5 * self.ff(h)
        n = self.norm(h)
        h = h + self.attend(n, n, n, key_padding_mask=out, need_weights=False)[0]
        c = F.glu(self.wide(h.transpose(1, 2)), 1).masked_fill(out[:, None], 0)
        h = h + self.point(F.silu(self.group(self.depth(c)))).transpose(1, 2)
        return self.head(h).log_softmax(-1)


@entry("visitor", "conformer-ctc")
def conformer() -> Case:
    def batch(n: int, g: torch.Generator) -> Batch:
        return (torch.randn(n, 12, 6, generator=g), torch.randint(8, 13, (n,), generator=g),
                torch.randint(1, 7, (n, 3), generator=g), torch.randint(2, 4, (n,), generator=g))  # fmt: skip

    def loss(m: nn.Module, b: Batch) -> Tensor:
        return nn.CTCLoss(blank=0, zero_infinity=True)(m(b[0], b[1]).transpose(0, 1), b[2], b[1], b[3])

    return Case(Conformer(), batch, loss)


class Denoiser(nn.Module):
    """A small U-Net that is told the time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 16))
        self.down, self.mid, self.up = (
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.norm, self.qkv, self.out = nn.GroupNorm(4, 8), nn.Conv1d(8, 24, 1), nn.Conv2d(11, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        f = torch.exp(-math.log(10000) * torch.arange(4) / 4)
        e = t[:, None].float() * f[None]
        scale, shift = self.time(torch.cat([e.sin(), e.cos()], -1))[:, :, None, None].chunk(2, 1)
        h = self.norm(self.down(x)) * (1 + scale) + shift
        b, c, height, width = h.shape
        q, k, v = self.qkv(h.reshape(b, c, -1)).chunk(3, 1)
        a = torch.einsum("bct,bcs->bts", q * c**-0.5, k).softmax(-1)
        h = h + torch.einsum("bts,bcs->bct", a, v).reshape(b, c, height, width)
        h = F.interpolate(F.silu(self.mid(h)), scale_factor=2, mode="nearest")
        return self.out(torch.cat([self.up(h), x], 1))


@entry("visitor", "noise-predictor-min-snr")
def denoiser() -> Case:
    bars = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)

    def batch(n: int, g: torch.Generator) -> Batch:
        return pictures(n, g, 8), torch.randint(0, 50, (n,), generator=g), pictures(n, g, 8)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        x, t, noise = b
        a = bars.gather(-1, t).reshape(-1, 1, 1, 1)
        out = m(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        snr = bars[t] / (1 - bars[t])
        weight = torch.stack([snr, 5 * torch.ones_like(t)], 1).min(1)[0] / snr
        return (F.mse_loss(out, noise, reduction="none").mean(dim=list(range(1, 4))) * weight).mean()

    return Case(Denoiser(), batch, loss)


class Deformed(nn.Module):
    """A convolution at places that a convolution computed, by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.mix, self.head = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        theta = torch.eye(2, 3).unsqueeze(0).repeat(x.size(0), 1, 1)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False) + 0.1 * torch.tanh(self.offset(x)).permute(
            0, 2, 3, 1
        )
        return self.head(self.mix(F.grid_sample(x, grid, padding_mode="border", align_corners=False)).amax((2, 3)))


@entry("visitor", "deformed-places")
def deformed() -> Case:
    return Case(Deformed(), labelled, sort)


class Local(nn.Module):
    """Locally connected: a kernel of its own at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 6, 3, 4, 4, 9) * 0.2)
        self.bias, self.head = nn.Parameter(torch.zeros(1, 6, 4, 4)), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unfold(2, 3, 3).unfold(3, 3, 3)
        x = x.contiguous().view(*x.size()[:-2], -1)
        h = (x.unsqueeze(1) * self.weight).sum([2, -1]) + self.bias
        h = h.view(len(h), 3, 2, 4, 4).max(2).values  # maxout
        return self.head(h.flatten(1))


@entry("visitor", "locally-connected-maxout")
def local() -> Case:
    return Case(Local(), labelled, sort)
