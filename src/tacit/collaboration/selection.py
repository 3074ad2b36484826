"""Which changes a participant uploads: the largest, some of those above a threshold, or some at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tacit.collaboration.messages import Positions, Vector, check_fraction, portion
from tacit.randomness import Source

_STRIDE = 37  # a prime: weights have patterns that repeat with the width of an image or a layer


_BLOCK = 1 << 18  # entries that are compared at a time, so that a large model is never copied


class Selection(Protocol):
    """Chooses at most ``fraction`` (θ_u) of the entries of a change: positions in rising order, or None for all."""

    @property
    def fraction(self) -> float: ...

    def choose(self, change: Vector, source: Source) -> Positions | None: ...


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Exactly the fraction with the largest absolute values."""

    fraction: float

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)

    def choose(self, change: Vector, source: Source) -> Positions | None:
        count = portion(self.fraction, change.size)
        return None if count == change.size else largest(change, count)


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
        above = _where(change, lambda sizes: sizes >= self.threshold)
        most = portion(self.fraction, change.size)
        return above if above.size <= most else above[at_random(above.size, most, source)]


@dataclass(frozen=True, kw_only=True)
class AtRandom:
    """Exactly the fraction, whatever the values are: the choice says nothing about the records."""

    fraction: float

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)

    def choose(self, change: Vector, source: Source) -> Positions | None:
        count = portion(self.fraction, change.size)
        return None if count == change.size else at_random(change.size, count, source)


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


def largest(values: npt.NDArray[Any], count: int) -> Positions:
    """Return the positions of the ``count`` largest absolute values, in rising order; of equal ones the first.

    A threshold is guessed from a sample, so that the values are compared once and only a few more than ``count`` are
    partitioned; the values are neither sorted nor copied. Values equal to the threshold are counted by themselves,
    because most update counters are equal.
    """
    if count >= values.size:
        return np.arange(values.size)
    sample = np.abs(values[::_STRIDE])
    reach = min(count // _STRIDE * 9 // 8 + 32, sample.size - 1)
    guess = np.partition(sample, sample.size - 1 - reach)[sample.size - 1 - reach]
    above = _where(values, lambda sizes: sizes > guess)
    if above.size >= count:
        return above[_all_smallest(np.negative(np.abs(values[above])), count)]
    equal = _where(values, lambda sizes: sizes == guess)
    if above.size + equal.size >= count:
        return np.sort(np.concatenate([above, equal[: count - above.size]]))
    return _all_smallest(np.negative(np.abs(values)), count)


def _where(values: npt.NDArray[Any], chosen: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]) -> Positions:
    """Return the positions whose absolute value is ``chosen``, block by block."""
    starts = range(0, values.size, _BLOCK)
    found = [np.flatnonzero(chosen(np.abs(values[start : start + _BLOCK]))) for start in starts]
    for start, places in zip(starts, found, strict=True):
        places += start
    return found[0] if len(found) == 1 else np.concatenate(found)


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
