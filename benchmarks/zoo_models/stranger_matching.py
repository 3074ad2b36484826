"""Matching, spectra and unusual ways to run a batch that the engine was not developed with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint_sequential

from zoo_models.cases import Batch, Case, classes
from zoo_models.plain import classify, mlp, rows
from zoo_models.stranger_losses import inside, own
from zoo_models.stranger_nets import stranger


class Sources(nn.Module):
    """Separation of two voices, in whichever order fits better: each example's own permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(1, 8, 4, stride=2), nn.ConvTranspose1d(8, 2, 4, stride=2)

    def forward(self, mixed: Tensor) -> Tensor:
        return self.out(F.relu(self.into(mixed.unsqueeze(1))))


def quality(found: Tensor, wanted: Tensor) -> Tensor:
    found, wanted = found - found.mean(-1, keepdim=True), wanted - wanted.mean(-1, keepdim=True)
    along = (found * wanted).sum(-1, keepdim=True) / ((wanted**2).sum(-1, keepdim=True) + 1e-8) * wanted
    return 10 * torch.log10((along**2).sum(-1) / (((found - along) ** 2).sum(-1) + 1e-8) + 1e-8)


def permuted(model: nn.Module, batch: Batch) -> Tensor:
    found, wanted = model(batch[0]), batch[1]
    orders = torch.stack([-quality(found, wanted[:, list(o)]).mean(1) for o in ((0, 1), (1, 0))], dim=1)
    return orders.min(dim=1).values.mean()


def voices(size: int, generator: torch.Generator) -> Batch:
    clean = torch.randn(size, 2, 24, generator=generator)
    return clean.sum(1), clean


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.net = nn.Sequential(nn.Conv1d(9, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                                 nn.Linear(8, 3))  # fmt: skip

    def forward(self, sound: Tensor) -> Tensor:
        found = torch.stft(sound, 16, 8, window=self.window, return_complex=True)
        return self.net(torch.log(found.abs() ** 2 + 1e-6))


def sounds(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 64, generator=generator), classes(size, 3, generator)


def matched(model: nn.Module, batch: Batch) -> Tensor:
    """DETR: boxes are assigned by the Hungarian method, example by example."""
    from scipy.optimize import linear_sum_assignment

    found = model(batch[0]).view(-1, 4, 4)
    losses = []
    for boxes, wanted in zip(found, batch[1]):
        cost = torch.cdist(boxes, wanted, p=1).detach().cpu().numpy()
        i, j = linear_sum_assignment(cost)
        losses.append(F.l1_loss(boxes[torch.as_tensor(i)], wanted[torch.as_tensor(j)]))
    return torch.stack(losses).mean()


def boxed(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 8, generator=generator), torch.rand(size, 3, 4, generator=generator)


def chamfer(model: nn.Module, batch: Batch) -> Tensor:
    far = torch.cdist(model(batch[0]).view(-1, 4, 4), batch[1])
    return (far.min(1).values.mean(1) + far.min(2).values.mean(1)).mean()


def transport(model: nn.Module, batch: Batch) -> Tensor:
    """Sinkhorn's iterations between two sets of points, in logarithms."""
    cost = torch.cdist(model(batch[0]).view(-1, 4, 4), batch[1]) ** 2
    f, g = torch.zeros(cost.shape[:2]), torch.zeros(cost.shape[0], 3)
    for _ in range(5):
        f = -0.5 * torch.logsumexp((g[:, None] - cost) / 0.5, dim=2)
        g = -0.5 * torch.logsumexp((f[:, :, None] - cost) / 0.5, dim=1)
    plan = torch.exp((f[:, :, None] + g[:, None] - cost) / 0.5)
    return (plan * cost).sum(dim=(1, 2)).mean()


stranger("permutation-invariant")(lambda: Case(Sources(), voices, permuted))
stranger("spectrum")(lambda: Case(Spectrum(), sounds, classify))
stranger("hungarian-matching")(lambda: Case(inside(mlp(8, 16), matched), boxed, own))
stranger("chamfer")(lambda: Case(mlp(8, 16), boxed, chamfer))
stranger("sinkhorn")(lambda: Case(mlp(8, 16), boxed, transport))


@dataclass
class Inputs:
    """A batch as an object of the user's own class."""

    numbers: Tensor
    label: Tensor


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, given: Inputs) -> Tensor:
        return F.cross_entropy(self.net(given.numbers), given.label)


stranger("dataclass-input")(lambda: Case(Structured(), rows, lambda m, b: m(Inputs(*b))))
stranger("checkpoint-sequential")(lambda: Case(mlp(), rows, lambda m, b: F.cross_entropy(
    checkpoint_sequential(m, 2, b[0], use_reentrant=False), b[1])))  # fmt: skip


def offloaded(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return F.cross_entropy(model(batch[0]), batch[1])


stranger("saved-on-cpu")(lambda: Case(mlp(), rows, offloaded))
