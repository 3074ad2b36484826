"""A loss that a Python loop adds up from the examples' own losses is a sum over examples, if all of them are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 5
X, Y = torch.randn(B, 4, generator=torch.Generator().manual_seed(5)), torch.tensor([0, 1, 2, 0, 1])


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def sliced(out: Tensor, y: Tensor) -> Tensor:
    total: Any = 0.0
    for i in range(len(out)):
        total = total + F.cross_entropy(out[i : i + 1], y[i : i + 1])
    return total


def zipped(out: Tensor, y: Tensor) -> Tensor:
    return sum(F.cross_entropy(row, label) for row, label in zip(out, y))  # type: ignore[return-value]


def in_place(out: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros(())
    for row, label in zip(out, y):
        total += F.cross_entropy(row, label)
    return total


def subtracted(out: Tensor, y: Tensor) -> Tensor:
    total: Any = 0.0
    for i in range(len(out)):
        total = total - out[i].log_softmax(-1)[y[i]]
    return total


SUMS = [sliced, zipped, in_place, subtracted]


@pytest.mark.parametrize("batch", [B, 2, 1])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("loop", SUMS)
def test_losses_added_up_in_a_loop_are_exact(
    loop: Callable[..., Tensor], mean: bool, declared: bool, batch: int, model: nn.Module, naive: Any, compare: Any
) -> None:
    each = naive(model, lambda i: F.cross_entropy(model(X[i : i + 1]), Y[i : i + 1]), batch)
    with gradients.record(model, reduction=("mean" if mean else "sum") if declared else None) as tape:
        loss = loop(model(X[:batch]), Y[:batch])
        (loss / batch if mean else loss).backward()
    compare(tape, each)


@pytest.mark.parametrize("declared", ["mean", None])
def test_every_example_may_add_several_terms_in_its_turn(
    declared: Any, model: nn.Module, naive: Any, compare: Any
) -> None:
    def loop(out: Tensor, y: Tensor) -> Tensor:
        total: Any = 0.0
        for row, label in zip(out, y):
            total = total + F.cross_entropy(row, label)
            total = total + 0.1 * row.pow(2).mean()
        return total / len(out)

    each = naive(model, lambda i: loop(model(X[i : i + 1]), Y[i : i + 1]), B)
    with gradients.record(model, reduction=declared) as tape:
        loop(model(X), Y).backward()
    compare(tape, each)


def left_out(out: Tensor, y: Tensor) -> Any:
    return sum(F.cross_entropy(row, label) for row, label in list(zip(out, y))[:-1])


def neighbours(out: Tensor, y: Tensor) -> Any:
    return sum((out[i] - out[i - 1]).pow(2).sum() for i in range(1, len(out)))


def decayed(out: Tensor, y: Tensor) -> Any:
    total: Any = 0.0
    for row, label in zip(out, y):
        total = 0.9 * total + F.cross_entropy(row, label)
    return total


def compounded(out: Tensor, y: Tensor) -> Any:
    total: Any = 0.0
    for row, label in zip(out, y):
        total = (total + F.cross_entropy(row, label)) ** 2
    return total


def one_more(out: Tensor, y: Tensor) -> Any:
    return sliced(out, y) + F.cross_entropy(out[0], y[0])


def against_the_sum(out: Tensor, y: Tensor) -> Any:
    total = sliced(out, y)
    return sum(F.cross_entropy(row, label) / total for row, label in zip(out, y))


@pytest.mark.parametrize("loop", [left_out, neighbours, decayed, compounded, one_more, against_the_sum])
def test_a_loop_that_treats_examples_by_their_place_or_with_others_is_refused(
    loop: Callable[..., Tensor], model: nn.Module
) -> None:
    with pytest.raises(ValueError, match="no per-example gradients"), gradients.record(model, reduction="sum"):
        loop(model(X), Y).backward()
