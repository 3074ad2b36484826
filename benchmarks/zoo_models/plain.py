"""Data and small parts that the models in plain PyTorch share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, classes, entry, lengths

plain = partial(entry, "plain")


def rows(size: int, generator: torch.Generator, width: int = 8) -> Batch:
    return torch.randn(size, width, generator=generator), classes(size, 3, generator)


def pictures(size: int, generator: torch.Generator, channels: int = 3, side: int = 12) -> Batch:
    return torch.randn(size, channels, side, side, generator=generator), classes(size, 3, generator)


def sequences(size: int, generator: torch.Generator) -> Batch:
    """Draw padded sequences of vectors, their lengths, their classes."""
    long = lengths(size, 9, 3, generator)
    mask = torch.arange(9)[None, :] < long[:, None]
    return torch.randn(size, 9, 8, generator=generator) * mask[:, :, None], long, classes(size, 3, generator)


def texts(size: int, generator: torch.Generator) -> Batch:
    long = lengths(size, 9, 3, generator)
    words = torch.randint(1, 30, (size, 9), generator=generator)
    return words.masked_fill(torch.arange(9)[None, :] >= long[:, None], 0), long, classes(size, 3, generator)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(*batch[:-1]), batch[-1])


def mlp(inputs: int = 8, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def series(size: int, generator: torch.Generator) -> Batch:
    x = torch.randn(size, 16, 1, generator=generator)
    return x, x.cumsum(1)
