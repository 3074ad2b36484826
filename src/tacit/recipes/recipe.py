"""Recipes: all settings of a training as one frozen, readable value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from tacit.features import Front
from tacit.ledger import Step
from tacit.mechanisms import Strategy
from tacit.tuning import NormHistogram

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class Head(Protocol):
    """The configuration of the network that is trained on the features: a frozen dataclass."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network for rows of this shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class Linear:
    """One linear layer that begins at zero: there is no symmetry to break."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layer = nn.Linear(math.prod(shape), classes)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(*_flat(shape), layer)


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Hidden layers of the given widths, ``"relu"`` or ``"tanh"`` after each."""

    hidden: tuple[int, ...] = (300,)
    activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}; choose {' or '.join(map(repr, _ACTIVATIONS))}.")
        if not self.hidden or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in self.hidden):
            raise ValueError(f"hidden is {self.hidden!r}; give one width or more, whole numbers, at least 1.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, width = _flat(shape), math.prod(shape)
        for wider in self.hidden:
            layers += [nn.Linear(width, wider), _ACTIVATIONS[self.activation]()]
            width = wider
        return nn.Sequential(*layers, nn.Linear(width, classes))


def _flat(shape: tuple[int, ...]) -> list[nn.Module]:
    return [nn.Flatten()] if len(shape) > 1 else []


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Gradient descent; the learning rate may fall linearly to ``final_learning_rate`` over ``decay_epochs``."""

    learning_rate: float
    final_learning_rate: float | None = None
    decay_epochs: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "final_learning_rate", "decay_epochs"):
            value = getattr(self, name)
            if value is not None and not _positive(value):
                raise ValueError(f"{name} is {value!r}; it must be a finite number above 0.")
        if (self.final_learning_rate is None) != (self.decay_epochs is None):
            raise ValueError(
                f"final_learning_rate is {self.final_learning_rate!r} and decay_epochs is {self.decay_epochs!r}; "
                "give both or neither."
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum!r}; it must be in [0, 1).")

    def at(self, epoch: float) -> float:
        """The learning rate after ``epoch`` passes over the data.

        >>> Sgd(learning_rate=0.1, final_learning_rate=0.05, decay_epochs=10).at(0)
        0.1
        """
        if self.final_learning_rate is None or self.decay_epochs is None:
            return self.learning_rate
        done = min(epoch / self.decay_epochs, 1.0)
        return (1 - done) * self.learning_rate + done * self.final_learning_rate


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The mean of the weights over the last ``fraction`` of the steps."""

    fraction: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction!r}; it must be in (0, 1].")

    def share(self, step: int, steps: int) -> float:
        """Return how far the average moves to the weights after ``step`` of ``steps``: 1 is all the way."""
        first = min(math.floor(steps * (1 - self.fraction)) + 1, steps)
        return 1 / max(step - first + 1, 1)


@dataclass(frozen=True, kw_only=True)
class Ema:
    """The exponential moving average of the weights, without a bias to those of the start."""

    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"decay is {self.decay!r}; it must be in (0, 1).")

    def share(self, step: int, steps: int) -> float:
        """Return how far the average moves to the weights after ``step``: 1 is all the way."""
        return (1 - self.decay) / (1 - self.decay**step)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to train on a data set: front end, network, optimizer and privacy settings.

    * ``noise`` None: the noise is solved for so that ``epochs`` fit the budget, the front end's cost included. A
      number: every clipping group gets noise of that many times its clip norm (σ of Abadi et al. 2016), and training
      ends with ``epochs`` or when the next step would overrun the budget, whichever comes first.
    * ``averaging``: the weights that are evaluated and saved; free, being post-processing of released weights.
    * ``loss_bound``: the mean loss is released with every step, each record's clipped to this; None: not at all.
    * ``norms``: a histogram of gradient norms is released at the end; None: not at all.
    """

    name: str
    front: Front
    model: Head
    lot_size: int
    epochs: float
    clipping: Strategy
    optimizer: Sgd
    averaging: Tail | Ema | None = None
    noise: float | None = None
    loss_bound: float | None = 5.0
    norms: NormHistogram | None = None

    def __post_init__(self) -> None:
        if isinstance(self.lot_size, bool) or not isinstance(self.lot_size, int) or self.lot_size < 1:
            raise ValueError(f"lot_size is {self.lot_size!r}; it must be a whole number, at least 1.")
        for name in ("epochs", "noise", "loss_bound"):
            value = getattr(self, name)
            if not (value is None and name != "epochs") and not _positive(value):
                raise ValueError(f"{name} is {value!r}; it must be a finite number above 0.")

    def charges(self, records: int) -> tuple[Step, ...]:
        """Return the steps that are charged besides those of training."""
        front = self.front.charges(records)
        return front if self.norms is None else (*front, self.norms.charge())


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
