"""Honest mistakes: examples influence each other, as in code that people share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, add, classes


def rows(n: int, g: torch.Generator) -> Batch:
    return torch.randn(n, 6, generator=g), classes(n, 3, g)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def mistake(
    name: str,
    loss: Callable[[nn.Module, Batch], Tensor],
    model: Callable[[], nn.Module] = mlp,
    batch: Callable[[int, torch.Generator], Batch] = rows,
    sizes: tuple[int, ...] = (6, 5, 1),
) -> None:
    add("visitor", f"mistake-{name}", lambda: Case(model(), batch, loss, sizes=sizes), honest=False)


def ce(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


class Inside(nn.Module):
    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.f = nn.Linear(6, 8), nn.Linear(8, 3), f

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.f(torch.relu(self.a(x))))


def inside(name: str, f: Callable[[Tensor], Tensor]) -> None:
    mistake(name, ce, lambda: Inside(f))


mistake(
    "loss-minus-batch-mean",
    lambda m, b: (lambda each: (each - each.mean()).square().mean())(F.cross_entropy(m(b[0]), b[1], reduction="none")),
)
mistake(
    "loss-minus-detached-mean",
    lambda m, b: (lambda each: (each * (each.detach() > each.detach().mean())).mean())(
        F.cross_entropy(m(b[0]), b[1], reduction="none")
    ),
)


def mixup(m: nn.Module, b: Batch) -> Tensor:
    lam, index = 0.3, torch.randperm(len(b[0]))
    out = m(lam * b[0] + (1 - lam) * b[0][index])
    return lam * F.cross_entropy(out, b[1]) + (1 - lam) * F.cross_entropy(out, b[1][index])


mistake("mixup", mixup)


def manifold(m: nn.Module, b: Batch) -> Tensor:
    h = m[1](m[0](b[0]))
    return F.cross_entropy(m[2](0.6 * h + 0.4 * h.flip(0)), b[1])


mistake("manifold-mixup", manifold)
mistake("labels-of-neighbours", lambda m, b: F.cross_entropy(m(b[0]), b[1].roll(1)) + F.cross_entropy(m(b[0]), b[1]))
mistake(
    "batch-norm-frozen-affine",
    ce,
    lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)),
)
mistake(
    "batch-norm-without-statistics",
    ce,
    lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)),
)
mistake("sync-batch-norm", ce, lambda: nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8), nn.Linear(8, 3)))


class Renorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.training:
            self.mean.lerp_(h.detach().mean(0), 0.1)
        return self.b(h - self.mean)


mistake("running-mean-lerp", ce, Renorm)


class GroupOverBatch(nn.Module):
    """The sequence is folded the wrong way: `view` in the place of `transpose`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LSTM(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.view(-1, len(x), 6))[0][-1])


mistake(
    "view-in-place-of-transpose", ce, GroupOverBatch, lambda n, g: (torch.randn(n, 4, 6, generator=g), classes(n, 3, g))
)


class FirstSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.score, self.b = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        w = F.softmax(self.score(h), dim=0)
        return self.b((h * w).sum(1))


mistake(
    "softmax-over-batch-sequence", ce, FirstSoftmax, lambda n, g: (torch.randn(n, 4, 6, generator=g), classes(n, 3, g))
)


def simclr(m: nn.Module, b: Batch) -> Tensor:
    z = F.normalize(torch.cat([m(b[0]), m(b[0] + 0.1)]), dim=1)
    s = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    n = len(b[0])
    return F.cross_entropy(s, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


mistake("simclr", simclr)


def triplets(m: nn.Module, b: Batch) -> Tensor:
    z = m(b[0])
    d = torch.cdist(z, z)
    same = b[1][:, None] == b[1][None]
    far, near = (d * same).max(1)[0], (d + 1e3 * same).min(1)[0]
    return F.relu(far - near + 0.3).mean()


mistake("batch-hard-triplets-cdist", triplets)


def in_batch(m: nn.Module, b: Batch) -> Tensor:
    q, d = m(b[0]), m(b[0].flip(1))
    scores = torch.einsum("id,jd->ij", q, d)
    return -torch.diagonal(F.log_softmax(scores, 1)).mean()


mistake("in-batch-negatives-einsum", in_batch)


def negatives_rolled(m: nn.Module, b: Batch) -> Tensor:
    z = m(b[0])
    other = torch.cat([z[1:], z[:1]])
    return F.triplet_margin_loss(z, z.detach() + 0.1, other)


mistake("negatives-from-the-next-row", negatives_rolled)
inside("sorted-rows", lambda h: h.sort(0)[0])
inside("ranks-in-the-batch", lambda h: h * h.argsort(0).argsort(0))
inside("unique-rows", lambda h: h[torch.unique(h.detach().argmax(1), return_inverse=True)[1] % len(h)])
inside("scaled-by-the-largest", lambda h: h / h.abs().max())
inside("top-rows-kept", lambda h: h * (h.sum(1) >= h.sum(1).topk(2)[0][-1]).unsqueeze(1))
inside("decorrelated", lambda h: h @ torch.linalg.inv(h.T @ h / len(h) + torch.eye(8)))
inside("standardised-over-all", lambda h: F.layer_norm(h.flatten(), (h.numel(),)).view_as(h))
inside("instance-norm-of-a-turned-batch", lambda h: F.instance_norm(h.T.unsqueeze(0)).squeeze(0).T)
inside("cumulative-over-rows", lambda h: h.cumsum(0) / torch.arange(1, len(h) + 1)[:, None])
inside(
    "padded-to-the-largest-value",
    lambda h: h[:, : int(h.detach().sum(1).argmax()) + 2].mean(1, keepdim=True).expand(-1, 8),
)


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.b, self.state = nn.GRUCell(6, 8), nn.Linear(8, 3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.state is None or len(self.state) != len(x):
            self.state = torch.zeros(len(x), 8)
        self.state = self.cell(x, self.state.detach())
        return self.b(self.state)


mistake("state-kept-between-batches", ce, Memory, sizes=(6, 6, 6))


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = mlp(), [0.0]

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x)
        self.seen[0] = 0.9 * self.seen[0] + 0.1 * out.detach().mean()
        return out - self.seen[0]


mistake("average-kept-in-a-list", ce, Average)
mistake(
    "weights-by-class-counts",
    lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=1.0 / torch.bincount(b[1], minlength=3).clamp(min=1).float()),
)
mistake(
    "effective-weights",
    lambda m, b: (
        F.cross_entropy(m(b[0]), b[1], reduction="none") * (1.0 / torch.bincount(b[1], minlength=3).clamp(min=1))[b[1]]
    ).sum(),
)
mistake(
    "f1-loss",
    lambda m, b: (lambda p, y: 1 - (2 * (p * y).sum(0) / ((p + y).sum(0) + 1e-6)).mean())(
        m(b[0]).softmax(1), F.one_hot(b[1], 3).float()
    ),
)
mistake(
    "r-squared-loss",
    lambda m, b: (lambda o, y: (y - o).square().sum() / (y - y.mean()).square().sum())(m(b[0])[:, 0], b[0][:, 0]),
)
mistake("pairwise-ranks", lambda m, b: (lambda s: F.relu(1 - (s[:, None] - s[None])).mean())(m(b[0])[:, 0]))
mistake(
    "log-of-the-mean-likelihood", lambda m, b: -torch.logsumexp(-F.cross_entropy(m(b[0]), b[1], reduction="none"), 0)
)
mistake("adaptive-scale-by-loss", lambda m, b: (lambda each: each * (1 / each.detach()))(ce(m, b)))
mistake("variance-floor", lambda m, b: ce(m, b) + F.relu(1 - m(b[0]).std(0)).mean())
mistake(
    "label-smoothing-to-the-batch",
    lambda m, b: F.kl_div(
        m(b[0]).log_softmax(1), F.one_hot(b[1], 3).float().mean(0).expand(len(b[0]), 3), reduction="batchmean"
    ),
)
mistake(
    "picked-mean-as-a-baseline", lambda m, b: (lambda o, k: ((o[k] - o[k].mean()) ** 2).mean())(m(b[0])[:, 0], b[1] > 0)
)
mistake(
    "own-count-weights",
    lambda m, b: (lambda each, w: (each * w).sum() / w.sum())(
        F.cross_entropy(m(b[0]), b[1], reduction="none"), b[0][:, 0].abs()
    ),
)
mistake(
    "mean-of-correct-only",
    lambda m, b: (lambda o: F.cross_entropy(o, b[1]) * (o.argmax(1) == b[1]).float().mean())(m(b[0])),
)
