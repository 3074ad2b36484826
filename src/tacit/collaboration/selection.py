"""Which changes a participant uploads: the largest, some of those above a threshold, or some at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tacit.collaboration.messages import Positions, Vector, check_fraction, portion
from tacit.randomness import Source

_STRIDE = 37  # a prime: weights have patterns that repeat with the width of an image or a layer


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
        return above if above.size <= most else above[at_random(above.size, most, source)]


@dataclass(frozen=True, kw_only=True)
class AtRandom:
    """Exactly the fraction, whatever the values are: the choice says nothing about the records."""

    fraction: float

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)

    def choose(self, change: Vector, source: Source) -> Positions:
        return at_random(change.size, portion(self.fraction, change.size), source)


class Agreed:
    """The places that all participants of a round have agreed on, whatever the values are; ``places`` is set before."""

    def __init__(self, fraction: float) -> None:
        check_fraction("fraction", fraction)
        self.fraction = fraction
        self.places: Positions = np.empty(0, dtype=np.int64)

    def choose(self, change: Vector, source: Source) -> Positions:
        if self.places.size != portion(self.fraction, change.size):
            raise ValueError(f"there are {self.places.size} agreed places; it must be {self.fraction:g} of the model.")
        return self.places


def largest(sizes: npt.NDArray[Any], count: int) -> Positions:
    """The positions of the ``count`` largest, in rising order; of equal ones those that come first.

    A threshold is guessed from a sample, so that the values are compared once and only a few more than ``count`` are
    partitioned; nothing is sorted or copied. Values equal to the threshold are counted by themselves, because most
    update counters are equal.
    """
    if count >= sizes.size:
        return np.arange(sizes.size)
    sample = sizes[::_STRIDE]
    reach = min(count // _STRIDE * 9 // 8 + 32, sample.size - 1)
    guess = np.partition(sample, sample.size - 1 - reach)[sample.size - 1 - reach]
    above = np.flatnonzero(sizes > guess)
    if above.size >= count:
        return above[_all_smallest(np.negative(sizes[above]), count)]
    equal = np.flatnonzero(sizes == guess)
    if above.size + equal.size >= count:
        return np.sort(np.concatenate([above, equal[: count - above.size]]))
    return _all_smallest(np.negative(sizes), count)


def at_random(population: int, count: int, source: Source) -> Positions:
    """``count`` different numbers below ``population``, in rising order.

    Those with the smallest of random 32-bit keys. Ties make this a hair's breadth from uniform; it is independent of
    everything else, and no proof asks for more.
    """
    if count >= population:
        return np.arange(population)
    return _smallest(np.frombuffer(source.bytes(4 * population), dtype=np.uint32), count)


def _smallest(keys: npt.NDArray[Any], count: int) -> Positions:
    if count >= keys.size:
        return np.arange(keys.size)
    if 4 * count < keys.size:  # worth a look at some first: nearly all others can then be left out
        sample = keys[::_STRIDE]
        reach = min(count // _STRIDE * 9 // 8 + 32, sample.size - 1)
        near = np.flatnonzero(keys <= np.partition(sample, reach)[reach])
        if near.size >= count:
            return near[_all_smallest(keys[near], count)]
    return _all_smallest(keys, count)


def _all_smallest(keys: npt.NDArray[Any], count: int) -> Positions:
    edge = np.partition(keys, count - 1)[count - 1]
    found = np.flatnonzero(keys <= edge)
    if found.size > count:
        found = np.delete(found, np.flatnonzero(keys[found] == edge)[count - found.size :])
    return found
