"""The mistakes beside the new strangers: the same patterns, with examples that meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes
from zoo_models.plain import classify, mlp, rows, sequences
from zoo_models.stranger_functions import Sparsemax
from zoo_models.stranger_loops import triplets
from zoo_models.stranger_mixing import mixing
from zoo_models.stranger_modules import UNet, masks
from zoo_models.stranger_nets import points


class Through(nn.Module):
    """A function between two parts of a network."""

    def __init__(self, between: Callable[[Tensor], Tensor], outputs: int = 3) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(8, 8), mlp(8, outputs), between

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return self.last(self.between(self.first(x)))


class Whitened(torch.autograd.Function):
    """Batch normalisation as a custom function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x - x.mean(0)) / (x.std(0) + 1e-5)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (grads[0] - grads[0].mean(0)) / (x.std(0) + 1e-5)


def batch_hard(model: nn.Module, batch: Batch) -> Tensor:
    """The hardest positive and negative of the batch."""
    z = F.normalize(model(batch[0]), dim=1)
    far, same = torch.cdist(z, z), batch[1][:, None] == batch[1][None, :]
    return F.relu((far * same).amax(1) - far.masked_fill(same, 1e9).amin(1) + 0.2).mean()


def episode(model: nn.Module, batch: Batch) -> Tensor:
    """Prototypical networks: the mean of a class is that of the batch's examples."""
    z, own = model(batch[0]), F.one_hot(batch[1], 3).float()
    centres = own.T @ z / own.sum(0).clamp_min(1)[:, None]
    return F.cross_entropy(-torch.cdist(z, centres).pow(2), batch[1])


def info_nce(model: nn.Module, batch: Batch) -> Tensor:
    a, b, _ = (F.normalize(model(x), dim=1) for x in batch)
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


def dice_of_the_batch(model: nn.Module, batch: Batch) -> Tensor:
    p, t = torch.sigmoid(model(batch[0])), batch[1]
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def by_frequency(model: nn.Module, batch: Batch) -> Tensor:
    """Classes weighted by how rare they are in the batch."""
    count = torch.bincount(batch[1], minlength=3).float()
    weight = (len(batch[1]) / (3 * count.clamp_min(1)))[batch[1]]
    return (weight * F.cross_entropy(model(batch[0]), batch[1], reduction="none")).mean()


def annealed(model: nn.Module, batch: Batch) -> Tensor:
    """A penalty as large as the mean loss allows."""
    loss = classify(model, batch)
    return loss + 0.1 * loss.detach() * model.first.weight.square().sum()


def activity(model: nn.Module, batch: Batch) -> Tensor:
    """Sparsity of the mean activation, as sparse autoencoders have it."""
    mean = torch.sigmoid(model.first(batch[0])).mean(0)
    return classify(model, batch) + (0.1 * (0.1 / mean).log() + 0.9 * (0.9 / (1 - mean)).log()).sum()


def ranged(model: nn.Module, batch: Batch) -> Tensor:
    """Targets scaled by the range of the batch."""
    y = batch[0].sum(1)
    y = (y - y.min()) / (y.max() - y.min() + 1e-6)
    return F.mse_loss(model(batch[0])[:, 0], y)


class Neighbours(nn.Module):
    """Neighbours by distance, in the list of all points of all clouds."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        every = x.reshape(-1, 2)
        near = (-torch.cdist(every, every)).topk(3, dim=-1)[1]
        h = torch.cat([every[near] - every.unsqueeze(1), every.unsqueeze(1).expand(-1, 3, -1)], -1)
        return self.head(F.relu(self.edge(h)).amax(1).view(len(x), -1, 8).amax(1))


class Filled(nn.Module):
    """Features in the place of marked steps, in an order that is not the examples'."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        marked = torch.arange(x.shape[1])[None, :] == (long - 1)[:, None]
        return self.head(x.masked_scatter(marked.unsqueeze(-1), self.features(x[:, 0]).flip(0)).sum(1))


def over_examples(h: Tensor) -> Tensor:
    return Sparsemax.apply(h.T).T * h


def strongest(h: Tensor) -> Tensor:
    """Keep the largest tenth of all activations of the batch."""
    return h * (h >= h.flatten().topk(max(h.numel() // 10, 1)).values[-1])


def principal(h: Tensor) -> Tensor:
    """The directions of the batch's covariance."""
    return h @ torch.linalg.eigh(h.T @ h / len(h) + torch.eye(8))[1][:, -3:] @ torch.ones(3, 8)


mixing("whitening-function")(lambda: Case(Through(Whitened.apply), rows, classify))
mixing("sparsemax-over-examples")(lambda: Case(Through(over_examples), rows, classify))
mixing("strongest-activations")(lambda: Case(Through(strongest), rows, classify))
mixing("principal-directions")(lambda: Case(Through(principal), rows, classify))
mixing("batch-hard-triplets")(lambda: Case(mlp(8, 4), rows, batch_hard))
mixing("prototypical-episode")(lambda: Case(mlp(8, 4), rows, episode))
mixing("info-nce")(lambda: Case(mlp(8, 4), triplets, info_nce))
mixing("dice-over-pictures")(lambda: Case(UNet(), masks, dice_of_the_batch))
mixing("frequency-weights")(lambda: Case(mlp(), rows, by_frequency))
mixing("penalty-by-the-mean-loss")(lambda: Case(Through(torch.relu), rows, annealed))
mixing("mean-activity")(lambda: Case(Through(torch.relu), rows, activity))
mixing("range-of-the-batch")(lambda: Case(mlp(), rows, ranged))
mixing("points-of-all-clouds")(lambda: Case(Neighbours(), lambda n, g: (*points(n, g), classes(n, 3, g)), classify))
mixing("features-of-another")(lambda: Case(Filled(), sequences, classify))
