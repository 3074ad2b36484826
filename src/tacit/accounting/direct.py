"""δ(ε) of sampled sums from masses that are each accurate relative to themselves, on lattices of several steps.

With rare sampling and a small δ the loss has a bulk and a far tail, and its density is convex between them: no
exponential tilt puts the weight near ε. Nor is one lattice enough: rounding a loss to a lattice of step h adds up to
h²/6 to its variance, T times over, so that the bulk of one step wants a step √T times finer than the sum, and the tail
would then have hundreds of millions of points.

So a law is kept in parts, each on a lattice of its own: the bulk on a fine one, what lies further out on coarser and
coarser ones (`tacit.accounting.lattice` has the rounding for one step, `coarser` that for a part). T steps are made by
doubling; whenever the number of steps doubles twice, the finest step doubles. Along the way to a sum a loss is rounded
to ever coarser lattices about 2 log2 T times, not T times. Where a lattice is coarse but far above ε, rounding costs
nothing, because it keeps the P-mass and the Q-mass of every cell and δ is linear between cells that do not contain ε.

What is proved: every rounding moves the mass at a loss l to the points a <= l <= b of a lattice so that P-mass and
Q-mass stay. Seen as a function of e^-l, all else given, δ is convex, so each rounding can only raise it, and so can the
rest: mass that leaves at the top counts as infinite loss, at the bottom it moves up, and the error of a transform, at
most `_rounding` |a| |b| an entry (L2 norms; `_convolved`), is *added* to every entry it touches. How fine the lattices
are decides only how close the bound is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.accounting.effort import OutOfReach, searching
from tacit.accounting.lattice import LARGEST_LOSS
from tacit.accounting.losses import Pair
from tacit.accounting.parts import Grid, Part, add, coarser, trimmed
from tacit.accounting.relative import ROUNDING, convolved

# Points of the main lattice between 0 and ε, multiples of 2^4, and of the finest part on either side of 0:
# where ε is looked for, where δ is, which moves some thirty times as much, and where only their size is.
_FOR_EPSILON, _FOR_DELTA, _ROUGH = (16_000, 2**16), (48_000, 2**17), (1_600, 2**15)
_MANY, _FOR_DELTA_OF_MANY = 1000, (24_000, 2**16)
_MOST_STEPS = 10**6
_OUTSIDE = 5e-8  # of δ, moved upwards or counted as infinite loss


@dataclass(frozen=True)
class _Law:
    """The law of a sum of ``steps`` losses: a part for each lattice in use, and the mass at infinity."""

    grid: Grid
    steps: int
    parts: dict[int, Part]
    infinite: float

    def plus(self, other: _Law, scale: int) -> _Law:
        """The law of the sum of two independent losses, the finest part on lattice ``scale`` from now on."""
        made: dict[int, Part] = {}
        for i, one in self.parts.items():
            for j, another in other.parts.items():
                if self is other and j < i:
                    continue
                most = max(i, j)
                left, right = coarser(self.grid, one, i, most), coarser(self.grid, another, j, most)
                p = convolved(left.p, right.p, same=self is other and i == j)
                add(made, most, Part(left.first + right.first, 2 * p if self is other and i != j else p))
        infinite = (self.infinite + other.infinite) * (1 + ROUNDING)
        return _settled(self.grid, self.steps + other.steps, made, infinite, scale)


def _settled(grid: Grid, steps: int, parts: dict[int, Part], infinite: float, scale: int) -> _Law:
    """Every part within its window, none on a finer lattice than ``scale``, ends of next to no mass moved upwards."""
    made: dict[int, Part] = {}
    for own, part in parts.items():
        add(made, max(own, scale), coarser(grid, part, own, max(own, scale)))
    kept: dict[int, Part] = {}
    while made:
        own = min(made)
        part = made.pop(own)
        half = grid.half(own)
        begin = min(max(-half - part.first, 0), len(part.p))
        end = max(min(half + 1 - part.first, len(part.p)), begin)
        inside, first = part.p[begin:end], part.first + begin
        below, above = part.p[:begin], part.p[end:]
        if grid.last(own):
            infinite += float(above.sum()) * (1 + ROUNDING)
            if below.any():
                inside = np.append(float(below.sum()) * (1 + ROUNDING), inside)
                first -= 1
        else:
            for outer, place in ((below, part.first), (above, part.first + end)):
                if outer.any():
                    wider = grid.wider(own)
                    add(made, wider, coarser(grid, Part(place, outer), own, wider))
        rest, lost = trimmed(Part(first, inside), grid.least * steps)
        infinite += lost
        if rest.p.size:
            kept[own] = rest
    return _Law(grid, steps, kept, min(infinite, 1.0))


def _single(pair: Pair, grid: Grid, scale: int) -> _Law:
    """One step, rounded to the lattices as `tacit.accounting.lattice.pessimistic` does."""
    parts: dict[int, Part] = {}
    inner, infinite, own = 0, 0.0, scale
    while True:
        half, step = grid.half(own), grid.step(own)
        for low, high in ((-half, half),) if not inner else ((-half, -inner), (inner, half)):
            edges = step * np.arange(low, high + 1, dtype=np.float64)
            cells = pair.cells(edges)
            mass = np.maximum(cells.p, 0.0)
            up = np.clip((cells.rise + cells.slack) / -math.expm1(-step), 0.0, mass)
            p = np.zeros(len(edges))
            p[:-1] += mass - up
            p[1:] += up
            add(parts, own, Part(low, p))
        if grid.last(own):
            below, above = (pair.cells(ends).p[0] for ends in half * step * np.array([[-np.inf, -1], [1, np.inf]]))
            add(parts, own, Part(-half, np.array([max(float(below), 0.0) * (1 + ROUNDING)])))
            infinite = max(float(above), 0.0) * (1 + ROUNDING)
            break
        wider = grid.wider(own)
        inner, own = half >> (wider - own), wider
    return _settled(grid, 1, parts, infinite, scale)


def _power(pair: Pair, count: int, grid: Grid) -> _Law:
    """``count`` independent losses, by doubling from the first binary digit on."""
    left = count.bit_length() - 1
    scale = _scale(grid, left)
    one = law = _single(pair, grid, scale)
    while left:
        left -= 1
        after = _scale(grid, left)
        if count >> left & 1:
            law = law.plus(law, scale).plus(one, after)
        else:
            law = law.plus(law, after)
        if after != scale and left:
            one = _single(pair, grid, after)
        scale = after
    return law


def _scale(grid: Grid, doublings: int) -> int:
    """The finest lattice in use when so many doublings are to come."""
    return max(grid.main - (doublings + 1) // 2, 0)


def _law(pairs: Sequence[tuple[Pair, int]], near: float, delta: float, points: tuple[int, int]) -> _Law:
    if max(count for _, count in pairs) > _MOST_STEPS:
        raise OutOfReach("too many steps for lattices of several steps")
    most = max(count for _, count in pairs).bit_length() - 1
    main = (most + 1) // 2
    steps = sum(count for _, count in pairs)
    least = _OUTSIDE * delta / steps / (4 * (2 * most + len(pairs) + 2))
    grid = Grid(math.ldexp(near / points[0], -main), main, points, least)
    laws = [_power(pair, count, grid) for pair, count in pairs]
    total = laws[0]
    for law in laws[1:]:
        total = total.plus(law, main)
    return total


def _delta(law: _Law, epsilon: float) -> float:
    """δ at ``epsilon``, rounded up."""
    total = 0.0
    for scale, part in law.parts.items():
        points = law.grid.step(scale) * np.arange(part.first, part.first + len(part.p), dtype=np.float64)
        start = int(np.searchsorted(points, epsilon))
        total += float(part.p[start:] @ -np.expm1(epsilon - points[start:]))
    return min(total * (1 + ROUNDING) + law.infinite, 1.0)


def _epsilon(law: _Law, delta: float) -> float:
    """An ε, at most 1e-9 of it too large, at which δ as computed is at most ``delta``."""
    if _delta(law, 0.0) <= delta:
        return 0.0
    low, high = 0.0, law.grid.step(law.grid.main) * law.grid.points[0]
    while _delta(law, high) > delta:
        low, high = high, 2 * high
        if high > LARGEST_LOSS:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(law, middle) > delta else (low, middle)
    return high


def _width(law: _Law) -> float:
    """How far the middle four fifths of the law reach."""
    points = [law.grid.step(scale) * (part.first + np.arange(len(part.p))) for scale, part in law.parts.items()]
    where, mass = np.concatenate(points), np.concatenate([part.p for part in law.parts.values()])
    order = np.argsort(where)
    below = np.cumsum(mass[order])
    low, high = np.searchsorted(below, [0.1 * below[-1], 0.9 * below[-1]])
    return float(where[order[high]] - where[order[low]])


def epsilon_above(pairs: Sequence[tuple[Pair, int]], delta: float, near: float) -> float:
    """An ε with δ(ε) <= ``delta`` for sure, infinite where a loss is beyond the lattices; ``near`` is about ε."""
    for _ in range(6):
        if not 0 < near <= LARGEST_LOSS / 4:
            return math.inf
        rough = _law(pairs, near, delta, _ROUGH)
        found = _epsilon(rough, delta)
        if not 0 < found < math.inf:
            return found
        # An ε far below the spread of the losses needs no finer lattice than they do.
        before, near = near, max(found, _width(rough) / 8)
        if 0.8 * before < near < 1.25 * before:
            break
    return found if searching() else _epsilon(_law(pairs, near, delta, _FOR_EPSILON), delta)


def delta_above(pairs: Sequence[tuple[Pair, int]], epsilon: float, near: float) -> float:
    """A bound on δ(``epsilon``); ``near`` is one already, which decides what is next to no mass."""
    size = max(epsilon, 1e-6)
    for _ in range(6):
        if not size <= LARGEST_LOSS / 4 or not near > 1e-250:
            return 1.0
        rough = _law(pairs, size, near, _ROUGH)
        found = _delta(rough, epsilon)
        before, size = size, max(epsilon, _width(rough) / 8)
        enough, near = found > 0.1 * near, found
        if enough and 0.8 * before < size < 1.25 * before:
            break
    if searching():
        return found
    many = sum(count for _, count in pairs) > _MANY
    return _delta(_law(pairs, size, near, _FOR_DELTA_OF_MANY if many else _FOR_DELTA), epsilon)
