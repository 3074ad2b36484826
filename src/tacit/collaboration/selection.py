"""Which changes a participant uploads: the largest, some of those above a threshold, or some at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.collaboration.messages import Positions, Vector, check_fraction, portion
from tacit.randomness import Source


class Selection(Protocol):
    """Chooses at most ``fraction`` (θ_u) of the entries of a change, by position in rising order."""

    @property
    def fraction(self) -> float: ...

    def choose(self, change: Vector, source: Source) -> Positions: ...


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Exactly the fraction with the largest absolute values."""

    fraction: float

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)

    def choose(self, change: Vector, source: Source) -> Positions:
        return largest(np.abs(change), portion(self.fraction, change.size))


@dataclass(frozen=True, kw_only=True)
class AboveThreshold:
    """A random sample, of at most the fraction, of the entries whose absolute value reaches ``threshold`` (τ)."""

    fraction: float
    threshold: float

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)
        if not 0 <= self.threshold < np.inf:
            raise ValueError(f"threshold is {self.threshold!r}; it must be a finite number, at least 0.")

    def choose(self, change: Vector, source: Source) -> Positions:
        above = np.flatnonzero(np.abs(change) >= self.threshold)
        most = portion(self.fraction, change.size)
        return above if above.size <= most else np.sort(above[source.choice(above.size, most)])


@dataclass(frozen=True, kw_only=True)
class AtRandom:
    """Exactly the fraction, whatever the values are: the choice says nothing about the records."""

    fraction: float

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)

    def choose(self, change: Vector, source: Source) -> Positions:
        count = portion(self.fraction, change.size)
        return np.arange(change.size) if count == change.size else np.sort(source.choice(change.size, count))


def largest(sizes: Vector, count: int) -> Positions:
    """The positions of the ``count`` largest, in rising order."""
    if count >= sizes.size:
        return np.arange(sizes.size)
    return np.sort(np.argpartition(-sizes, count)[:count])
