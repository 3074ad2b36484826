"""Laws of sums of many losses on lattices of several steps: how they are put together, whichever way they are rounded.

With rare sampling and a small δ the loss has a bulk and a far tail, and its density is convex between them: no
exponential tilt puts the weight near ε. Nor is one lattice enough: rounding a loss to a lattice of step h adds up to
h²/6 to its variance, T times over, so that the bulk of one step wants a step √T times finer than the sum, and the tail
would then have hundreds of millions of points.

So a law is kept in parts, each on a lattice of its own: the bulk on a fine one, what lies further out on coarser and
coarser ones. T steps are made by doubling; whenever the number of steps doubles twice, the finest step doubles. Along
the way to a sum a loss is rounded to ever coarser lattices about 2 log2 T times, not T times. Where a lattice is coarse
but far above ε, rounding costs nothing, because δ is linear there. How fine the lattices are decides only how close a
bound is; that it is one follows from each rounding (`tacit.accounting.upper_law`, `tacit.accounting.lower_law`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.accounting.effort import OutOfReach
from tacit.accounting.losses import Array, Pair
from tacit.accounting.parts import Grid, Part, add
from tacit.accounting.relative import ROUNDING

_MOST_STEPS = 10**9
_OUTSIDE = 5e-8  # of δ, moved or left out at the ends of the parts


class Rounding(Protocol):
    """A way to put losses on lattices: the measures that are kept, and how each step of the computation bounds them."""

    def single(self, pair: Pair, grid: Grid, scale: int) -> tuple[dict[int, Part], float]:
        """Return the parts of one loss, the finest on lattice ``scale``, and what is counted as infinite loss."""
        ...

    def coarser(self, grid: Grid, part: Part, scale: int, to: int) -> Part: ...

    def convolved(self, a: Array, b: Array, same: bool) -> Array: ...

    def closed(self, inside: Part, below: Array, above: Array) -> tuple[Part, float]:
        """Return the last part with what lies beyond its ends, and what becomes infinite loss."""
        ...

    def trimmed(self, part: Part, least: float) -> tuple[Part, float]:
        """Return the part without ends whose mass is at most ``least``, and what becomes infinite loss."""
        ...

    def whole(self, grid: Grid, parts: dict[int, Part], infinite: float) -> dict[int, Part]:
        """Return the parts without the mass that rounding has added beyond 1."""
        ...


@dataclass(frozen=True)
class Law:
    """The law of a sum of ``steps`` losses: a part for each lattice in use, and the mass at infinity."""

    rounding: Rounding
    grid: Grid
    steps: int
    parts: dict[int, Part]
    infinite: float

    def plus(self, other: Law, scale: int) -> Law:
        """The law of the sum of two independent losses, the finest part on lattice ``scale`` from now on."""
        made: dict[int, Part] = {}
        for i, one in self.parts.items():
            for j, another in other.parts.items():
                if self is other and j < i:
                    continue
                most, same = max(i, j), self is other and i == j
                left = self.rounding.coarser(self.grid, one, i, most)
                right = left if same else self.rounding.coarser(self.grid, another, j, most)
                p = self.rounding.convolved(left.p, right.p, same)
                add(made, most, Part(left.first + right.first, 2 * p if self is other and not same else p))
        infinite = (self.infinite + other.infinite) * (1 + ROUNDING)
        return _settled(self.rounding, self.grid, self.steps + other.steps, made, infinite, scale)

    def points(self, scale: int) -> Array:
        return self.parts[scale].points(self.grid.step(scale))

    @property
    def width(self) -> float:
        """How far the middle four fifths of the law reach."""
        where = np.concatenate([self.points(scale) for scale in self.parts])
        mass = np.concatenate([part.p[0] for part in self.parts.values()])
        order = np.argsort(where)
        below = np.cumsum(mass[order])
        low, high = np.searchsorted(below, [0.1 * below[-1], 0.9 * below[-1]])
        return float(where[order[high]] - where[order[low]])


def _settled(rounding: Rounding, grid: Grid, steps: int, parts: dict[int, Part], infinite: float, scale: int) -> Law:
    """Every part within its window, none on a finer lattice than ``scale``, ends of next to no mass taken away."""
    made: dict[int, Part] = {}
    for own, part in parts.items():
        add(made, max(own, scale), rounding.coarser(grid, part, own, max(own, scale)))
    kept: dict[int, Part] = {}
    while made:
        own = min(made)
        part = made.pop(own)
        begin, end = grid.window(own, part, steps)
        below, above = part.p[:, :begin], part.p[:, end:]
        inside = Part(part.first + begin, part.p[:, begin:end])
        if grid.last(own):
            inside, lost = rounding.closed(inside, below, above)
            infinite += lost
        else:
            for outer, place in ((below, part.first), (above, part.first + end)):
                if outer.any():
                    wider = grid.wider(own)
                    add(made, wider, rounding.coarser(grid, Part(place, outer), own, wider))
        if inside.p.size:
            inside, lost = rounding.trimmed(inside, grid.least * steps)
            infinite += lost
        if inside.p.size:
            kept[own] = inside
    infinite = min(infinite, 1.0)
    return Law(rounding, grid, steps, rounding.whole(grid, kept, infinite), infinite)


def _power(rounding: Rounding, pair: Pair, count: int, grid: Grid) -> Law:
    """``count`` independent losses, by doubling from the first binary digit on."""

    def single(scale: int) -> Law:
        parts, infinite = rounding.single(pair, grid, scale)
        return _settled(rounding, grid, 1, parts, infinite, scale)

    left = count.bit_length() - 1
    scale = _scale(grid, left)
    one = law = single(scale)
    while left:
        left -= 1
        after = _scale(grid, left)
        if count >> left & 1:
            law = law.plus(law, scale).plus(one, after)
        else:
            law = law.plus(law, after)
        if after != scale and left:
            one = single(after)
        scale = after
    return law


def _scale(grid: Grid, doublings: int) -> int:
    """The finest lattice in use when so many doublings are to come."""
    return max(grid.main - (doublings + 1) // 2, 0)


def total(
    rounding: Rounding,
    pairs: Sequence[tuple[Pair, int]],
    near: float,
    delta: float,
    points: int,
    weight: Callable[[Array], Array] | None = None,
) -> Law:
    """The law of the sum; the main lattice has ``points`` (a multiple of 2^4) between 0 and ``near``.

    Masses far below ``delta`` are moved or left out. With a ``weight`` no more lies on the finer lattices than must.
    """
    if max(count for _, count in pairs) > _MOST_STEPS:
        raise OutOfReach("too many steps for lattices of several steps")
    most = max(count for _, count in pairs).bit_length() - 1
    main = (most + 1) // 2
    steps = sum(count for _, count in pairs)
    least = _OUTSIDE * delta / steps / (4 * (2 * most + len(pairs) + 2))
    grid = Grid(math.ldexp(near / points, -main), main, points, least, steps, weight)
    laws = [_power(rounding, pair, count, grid) for pair, count in pairs]
    law = laws[0]
    for other in laws[1:]:
        law = law.plus(other, main)
    return law
