"""Networks and losses of images and films, as tutorials and papers write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry


def pictures(size: int, g: torch.Generator, side: int = 12, channels: int = 3) -> Tensor:
    return torch.randn(size, channels, side, side, generator=g)


def labelled(size: int, g: torch.Generator) -> Batch:
    return pictures(size, g), classes(size, 3, g)


def sort(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


class Attended(nn.Module):
    """CBAM: attention over channels, then over places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.mlp, self.place = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8)), nn.Conv2d(2, 1, 7, padding=3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        b, c, _, _ = x.size()
        a = self.mlp(F.avg_pool2d(x, x.shape[2:]).view(b, c)) + self.mlp(F.max_pool2d(x, x.shape[2:]).view(b, c))
        x = x * torch.sigmoid(a).view(b, c, 1, 1).expand_as(x)
        s = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), 1)
        x = x * torch.sigmoid(self.place(s))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@entry("visitor", "cbam")
def cbam() -> Case:
    return Case(Attended(), labelled, sort)


class Gated(nn.Module):
    """gMLP with its spatial gate, whose weight is a matrix over places."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.up, self.down = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 16), nn.Linear(8, 8)
        self.weight, self.bias = nn.Parameter(torch.randn(9, 9) * 0.1), nn.Parameter(torch.ones(9))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        u, v = F.gelu(self.up(x)).chunk(2, dim=-1)
        v = torch.einsum("b n d, m n -> b m d", self.norm(v), self.weight) + self.bias[None, :, None]
        return self.head((x + self.down(u * v)).mean(1))


@entry("visitor", "gmlp")
def gmlp() -> Case:
    return Case(Gated(), labelled, sort)


class Shifted(nn.Module):
    """TSM: some channels come from the frame before and the frame after."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape[:2]
        h = self.conv(x.flatten(0, 1)).relu()
        h = h.view(b, t, *h.shape[1:])
        out = torch.zeros_like(h)
        out[:, :-1, :2] = h[:, 1:, :2]
        out[:, 1:, 2:4] = h[:, :-1, 2:4]
        out[:, :, 4:] = h[:, :, 4:]
        return self.head(out.mean((3, 4)).view(b * t, -1)).view(b, t, -1).mean(1)


@entry("visitor", "temporal-shift")
def tsm() -> Case:
    return Case(Shifted(), lambda n, g: (torch.randn(n, 4, 3, 8, 8, generator=g), classes(n, 3, g)), sort)


class Grid(nn.Module):
    """A detector's grid of boxes, confidences and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3, 2, 1), nn.LeakyReLU(0.1)
        )
        self.head = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x)).permute(0, 2, 3, 1)


@entry("visitor", "yolo-loss")
def yolo() -> Case:
    def batch(n: int, g: torch.Generator) -> Batch:
        has = (torch.rand(n, 3, 3, 1, generator=g) < 0.4).float()
        return pictures(n, g), torch.cat(
            [has, torch.rand(n, 3, 3, 4, generator=g), torch.randint(0, 3, (n, 3, 3, 1), generator=g).float()], -1
        )

    def loss(m: nn.Module, b: Batch) -> Tensor:
        out, t = m(b[0]), b[1]
        has = t[..., 0]
        box = (F.mse_loss(out[..., 1:5].sigmoid(), t[..., 1:5], reduction="none").sum(-1) * has).sum((1, 2))
        seen = F.binary_cross_entropy_with_logits(out[..., 0], has, reduction="none")
        kind = F.cross_entropy(out[..., 5:].permute(0, 3, 1, 2), t[..., 5].long(), reduction="none") * has
        return (5 * box + (seen * (has + 0.5 * (1 - has))).sum((1, 2)) + kind.sum((1, 2))).mean()

    return Case(Grid(), batch, loss)


@entry("visitor", "multibox-hard-negatives")
def multibox() -> Case:
    """SSD: hard negatives are mined among each picture's own boxes."""

    def batch(n: int, g: torch.Generator) -> Batch:
        return (
            pictures(n, g),
            torch.randn(n, 9, 4, generator=g),
            torch.randint(0, 3, (n, 9), generator=g) * (torch.rand(n, 9, generator=g) < 0.4),
        )

    def loss(m: nn.Module, b: Batch) -> Tensor:
        out = m(b[0]).flatten(1, 2)
        pos = b[2] > 0
        count = pos.sum(1, keepdim=True)
        where = F.smooth_l1_loss(out[..., :4], b[1], reduction="none").sum(-1) * pos
        ce = F.cross_entropy(out[..., 4:].reshape(-1, 4), b[2].view(-1), reduction="none").view(len(out), -1)
        rank = ce.masked_fill(pos, 0).argsort(1, descending=True).argsort(1)
        neg = rank < (3 * count).clamp(max=8)
        return ((where.sum(1) + (ce * (pos | neg)).sum(1)) / count.squeeze(1).clamp(min=1)).mean()

    return Case(Grid(), batch, loss)


class Heat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.net(x)
        b, k, height, width = h.shape
        p = F.softmax(h.view(b, k, -1), -1).view_as(h)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        return torch.stack([(p * xs).sum((2, 3)), (p * ys).sum((2, 3))], -1)


@entry("visitor", "soft-argmax-wing")
def heat() -> Case:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        d = (m(b[0]) - b[1]).abs()
        return torch.where(d < 0.5, 0.5 * torch.log(1 + d / 0.2), d - 0.2).mean()

    return Case(Heat(), lambda n, g: (pictures(n, g), torch.rand(n, 2, 2, generator=g) * 2 - 1), loss)


@entry("visitor", "gram-and-variation")
def style() -> Case:
    """A picture is made smooth and like another in the Gram matrices of a frozen network."""
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1))
    frozen = nn.Conv2d(3, 5, 3).requires_grad_(False)

    def gram(x: Tensor) -> Tensor:
        b, c, h, w = x.size()
        f = x.view(b, c, h * w)
        return torch.bmm(f, f.transpose(1, 2)) / (c * h * w)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        out = m(b[0])
        smooth = (out[:, :, 1:] - out[:, :, :-1]).abs().mean() + (out[..., 1:] - out[..., :-1]).abs().mean()
        return F.mse_loss(gram(frozen(out)), gram(frozen(b[1]))) + 0.1 * smooth

    return Case(net, lambda n, g: (pictures(n, g), pictures(n, g)), loss)


@entry("visitor", "structural-similarity")
def ssim() -> Case:
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1), nn.Sigmoid())
    line = torch.exp(-((torch.arange(5).float() - 2) ** 2) / 4.5)
    window = torch.outer(line, line)[None, None] / line.sum() ** 2

    def loss(m: nn.Module, b: Batch) -> Tensor:
        x, y = m(b[0]), b[1]
        mx, my = F.conv2d(x, window, padding=2), F.conv2d(y, window, padding=2)
        vx, vy = F.conv2d(x * x, window, padding=2) - mx**2, F.conv2d(y * y, window, padding=2) - my**2
        cov = F.conv2d(x * y, window, padding=2) - mx * my
        s = (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
        return 1 - s.mean()

    return Case(net, lambda n, g: (pictures(n, g, 8, 1), torch.rand(n, 1, 8, 8, generator=g)), loss)
