"""Parts of a loss distribution on nested lattices, each with a step of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.accounting.effort import spend
from tacit.accounting.lattice import LARGEST_LOSS
from tacit.accounting.losses import Array

WIDER = 5
"""Each part beyond the main one has a step 2^5 as wide."""
_WITHIN = 2
"""Each part within the main one has a step 2^2 as wide as the next finer one."""
_SHARE = 0.003
"""The most that rounding at the ends of the finer lattices may add, as a part of one rounding to the main lattice."""


@dataclass(frozen=True)
class Grid:
    """Lattice number s has the step unit · 2^s; ``main`` is the one on which ε is looked for."""

    unit: float
    main: int
    points: int  # of the main lattice between 0 and ε, a multiple of 2^4
    least: float  # what may be moved away at an end of a part, a step and part
    steps: int  # of the whole sum
    weight: Callable[[Array], Array] | None = None  # how much likelier a loss is where the sum is near ε

    def step(self, scale: int) -> float:
        return math.ldexp(self.unit, scale)

    def half(self, scale: int) -> int:
        """How many points a lattice has on either side of 0."""
        return min(2 * self.points, math.ceil(LARGEST_LOSS / self.step(scale)))

    def window(self, scale: int, part: Part, steps: int) -> tuple[int, int]:
        """Return the first and last place of the part, of ``steps`` losses, that stay on this lattice.

        Without a weight, all that is within the lattice. With one, at most so much is rounded to the next lattice that,
        taken over all steps, it adds `_SHARE` of the variance that one rounding to the main lattice does.
        """
        half, size = self.half(scale), part.p.shape[1]
        begin = min(max(-half - part.first, 0), size)
        end = max(min(half + 1 - part.first, size), begin)
        if scale < self.main and self.weight is not None:
            mass = part.p[0, begin:end] * self.weight(part.points(self.step(scale))[begin:end])
            most = _SHARE / 2 * 4.0 ** (self.main - self.wider(scale)) * steps / self.steps
            less = int(np.searchsorted(np.cumsum(mass[::-1]), most))
            begin, end = begin + int(np.searchsorted(np.cumsum(mass), most)), end - less
        return begin, max(begin, end)

    def wider(self, scale: int) -> int:
        """The lattice for what lies beyond this one."""
        return min(scale + _WITHIN, self.main) if scale < self.main else scale + WIDER

    def last(self, scale: int) -> bool:
        return self.half(scale) * self.step(scale) >= LARGEST_LOSS


@dataclass(frozen=True)
class Part:
    """Masses ``p[:, i]`` at the loss (first + i) · step of one lattice, a row for each of the measures kept."""

    first: int
    p: Array

    @property
    def end(self) -> int:
        return self.first + int(self.p.shape[1])

    def points(self, step: float) -> Array:
        return np.asarray(step * np.arange(self.first, self.end, dtype=np.float64))


def add(parts: dict[int, Part], scale: int, part: Part) -> None:
    if scale not in parts:
        parts[scale] = part
        return
    old = parts[scale]
    first = min(old.first, part.first)
    p = np.zeros((len(old.p), max(old.end, part.end) - first))
    p[:, old.first - first : old.end - first] += old.p
    p[:, part.first - first : part.end - first] += part.p
    parts[scale] = Part(first, p)


def in_cells(part: Part, factor: int, shift: int) -> tuple[int, Array]:
    """Return the masses in groups of ``factor`` points (row, group, place), and the number of the first group.

    Point i is in group (i + shift) // factor.
    """
    low, ahead = divmod(part.first + shift, factor)
    groups = -(-(ahead + part.p.shape[1]) // factor)
    spend(4 * groups * factor)
    cells = np.zeros((len(part.p), groups * factor))
    cells[:, ahead : ahead + part.p.shape[1]] = part.p
    return low, cells.reshape(len(part.p), groups, factor)
