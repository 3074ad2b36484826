"""Parts of a loss distribution on nested lattices, each with a step of its own, and how they are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.accounting.lattice import LARGEST_LOSS
from tacit.accounting.losses import Array
from tacit.accounting.relative import ROUNDING

WIDER = 5
"""Each part beyond the main one has a step 2^5 as wide."""


@dataclass(frozen=True)
class Grid:
    """Lattice number s has the step unit · 2^s; ``main`` is the one on which ε is looked for."""

    unit: float
    main: int
    points: tuple[int, int]  # see `tacit.accounting.direct`
    least: float  # what may be moved away at an end of a part, a step and part

    def step(self, scale: int) -> float:
        return math.ldexp(self.unit, scale)

    def half(self, scale: int) -> int:
        """How many points a lattice has on either side of 0."""
        if scale < self.main:
            return min(self.points[1], self.points[0] << (self.main - scale))
        return min(2 * self.points[0], math.ceil(LARGEST_LOSS / self.step(scale)))

    def wider(self, scale: int) -> int:
        """The lattice for what lies beyond this one; never finer than the main one, so that windows are nested."""
        return self.main if scale < self.main else scale + WIDER

    def last(self, scale: int) -> bool:
        return self.half(scale) * self.step(scale) >= LARGEST_LOSS


@dataclass(frozen=True)
class Part:
    """Mass ``p[i]`` at the loss (first + i) · step of one lattice."""

    first: int
    p: Array


def add(parts: dict[int, Part], scale: int, part: Part) -> None:
    if scale not in parts:
        parts[scale] = part
        return
    old = parts[scale]
    first = min(old.first, part.first)
    p = np.zeros(max(old.first + len(old.p), part.first + len(part.p)) - first)
    p[old.first - first : old.first - first + len(old.p)] += old.p
    p[part.first - first : part.first - first + len(part.p)] += part.p
    parts[scale] = Part(first, p)


def coarser(grid: Grid, part: Part, scale: int, to: int) -> Part:
    """The part on a coarser lattice: a mass between two of its points goes to both, its P-mass and Q-mass kept."""
    if scale == to:
        return part
    factor = 1 << (to - scale)
    low = part.first // factor
    ahead = part.first - low * factor
    rows = -(-(ahead + len(part.p)) // factor)
    cells = np.zeros(rows * factor)
    cells[ahead : ahead + len(part.p)] = part.p
    table = cells.reshape(rows, factor)
    up = np.expm1(-np.arange(factor) * grid.step(scale)) / math.expm1(-grid.step(to))
    up = np.minimum(up * (1 + 1e-14), 1.0)
    p = np.zeros(rows + 1)
    p[:-1] += table @ (1 - up)
    p[1:] += table @ up
    return Part(low, p * (1 + ROUNDING / 64))


def trimmed(part: Part, least: float) -> tuple[Part, float]:
    """The part without ``least`` at its upper end, which is returned beside it, and at its lower, which moves up."""
    if not part.p.size:
        return part, 0.0
    downwards = np.cumsum(part.p[::-1])[::-1]
    end = int(np.count_nonzero(downwards > least))
    lost = float(downwards[end]) * (1 + ROUNDING) if end < len(part.p) else 0.0
    if not end:
        return Part(part.first, part.p[:0]), lost
    upwards = np.cumsum(part.p[:end])
    begin = min(int(np.searchsorted(upwards, least, side="right")), end - 1)
    p = part.p[begin:end].copy()
    p[0] += float(upwards[begin - 1]) * (1 + ROUNDING) if begin else 0.0
    return Part(part.first + begin, p), lost
