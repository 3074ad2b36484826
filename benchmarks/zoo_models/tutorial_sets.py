"""Models of sets and point clouds, as papers write them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.plain import classify

tutorial = partial(entry, "tutorial")


class SetTransformer(nn.Module):
    """Learned inducing points and seeds attend to a set."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(3, 8), nn.Linear(8, 3)
        self.inducing, self.seed = nn.Parameter(torch.randn(1, 4, 8)), nn.Parameter(torch.randn(1, 1, 8))
        self.one, self.two, self.three = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h, _ = self.one(self.inducing.repeat(x.size(0), 1, 1), x, x)
        x, _ = self.two(x, h, h)
        return self.out(self.three(self.seed.expand(x.size(0), -1, -1), x, x)[0].squeeze(1))


class PointNet(nn.Module):
    """A learned transformation of each cloud, and the greatest value over its points."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.body, self.out = nn.Conv1d(3, 9, 1), nn.Conv1d(3, 16, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        iden = torch.eye(3).view(1, 9).repeat(x.size(0), 1)
        t = (torch.max(self.turn(x.transpose(2, 1)), 2)[0] + iden).view(-1, 3, 3)
        x = torch.bmm(x, t).transpose(2, 1)
        return self.out(torch.max(F.relu(self.body(x)), 2, keepdim=True)[0].view(-1, 16))


def clouds(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 10, 3, generator=generator), classes(size, 3, generator)


tutorial("set-transformer")(lambda: Case(SetTransformer(), clouds, classify))
tutorial("pointnet")(lambda: Case(PointNet(), clouds, classify))
