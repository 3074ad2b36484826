"""Describe one model of the zoo: how to build it, its batches, its loss, and how to cut a batch into examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = Any
Loss = Callable[[nn.Module, Batch], Tensor]


def take(batch: Batch, rows: Tensor) -> Batch:
    """Return the given examples of a batch whose tensors all have the batch dimension first."""
    if isinstance(batch, Tensor):
        return batch.index_select(0, rows) if batch.ndim else batch
    if isinstance(batch, Mapping):
        return {name: take(value, rows) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(take(value, rows) for value in batch)
    return batch


@dataclass
class Case:
    """A model with its data.

    `batch(size, generator)` draws a batch. `loss(model, batch)` is the scalar that its users call `backward` on.
    `take(batch, rows)` cuts a batch along its examples: the oracle runs the model on each example alone. `options` are
    arguments of `tacit.gradients.attach` that the model's user would have to give. `reduction` says what the loss does;
    it is told to Opacus, which needs it, and not to Tacit.
    """

    model: nn.Module
    batch: Callable[[int, torch.Generator], Batch]
    loss: Loss
    take: Callable[[Batch, Tensor], Batch] = take
    options: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = (6, 5, 1)
    reduction: str = "mean"


@dataclass(frozen=True)
class Entry:
    """A line of the zoo. `honest`: no example's loss depends on another example. `token_mean`: the loss is a mean over
    the tokens of the whole batch, so that longer examples weigh more than in the mean of the examples' own losses."""

    name: str
    family: str
    build: Callable[[], Case]
    honest: bool = True
    token_mean: bool = False


registry: dict[str, Entry] = {}


def add(family: str, name: str, build: Callable[[], Case], *, honest: bool = True, token_mean: bool = False) -> None:
    if name in registry:
        raise ValueError(f"two models of the zoo are called {name!r}")
    registry[name] = Entry(name, family, build, honest, token_mean)


def entry(
    family: str, name: str | None = None, *, honest: bool = True, token_mean: bool = False
) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register the decorated function as the builder of a model."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        add(family, name or build.__name__, build, honest=honest, token_mean=token_mean)
        return build

    return register


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss that a `transformers` model computes from its labels."""
    return model(**batch).loss


def without_dropout(config: Any) -> Any:
    """Set every dropout probability of a configuration to zero: the oracle cannot draw the same masks."""
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in name or name in ("attention_probs_dropout_prob", "layerdrop")):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            without_dropout(value)
    return config


def no_dropout(model: nn.Module) -> nn.Module:
    """Switch off dropout and stochastic depth, whose draws the oracle cannot repeat."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        for name in ("drop_prob", "drop_rate"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def lengths(size: int, longest: int, shortest: int, generator: torch.Generator) -> Tensor:
    """Draw lengths of sequences, of which the first is the longest."""
    drawn = torch.randint(shortest, longest + 1, (size,), generator=generator)
    drawn[0] = longest
    return drawn


def padded_words(
    size: int, generator: torch.Generator, *, vocabulary: int = 64, longest: int = 10, shortest: int = 5, pad: int = 0
) -> dict[str, Tensor]:
    """Draw padded sequences of words and their two-dimensional mask, as a tokenizer returns them."""
    words = torch.randint(5, vocabulary, (size, longest), generator=generator)
    mask = torch.arange(longest)[None, :] < lengths(size, longest, shortest, generator)[:, None]
    return {"input_ids": words.masked_fill(~mask, pad), "attention_mask": mask.long()}


def classes(size: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, count, (size,), generator=generator)
