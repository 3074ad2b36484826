"""Parts of a loss distribution on nested lattices, each with a step of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.accounting.effort import spend
from tacit.accounting.lattice import LARGEST_LOSS
from tacit.accounting.losses import Array

WIDER = 5
"""Each part beyond the main one has a step 2^5 as wide."""
_WITHIN = 2
"""Each part within the main one has a step 2^2 as wide as the next finer one."""


@dataclass(frozen=True)
class Grid:
    """Lattice number s has the step unit · 2^s; ``main`` is the one on which ε is looked for."""

    unit: float
    main: int
    points: int  # of the main lattice between 0 and ε, a multiple of 2^4
    least: float  # what may be moved away at an end of a part, a step and part

    def step(self, scale: int) -> float:
        return math.ldexp(self.unit, scale)

    def half(self, scale: int) -> int:
        """How many points a lattice has on either side of 0."""
        return min(2 * self.points, math.ceil(LARGEST_LOSS / self.step(scale)))

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
