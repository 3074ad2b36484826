"""Laws on lattices of several steps (`tacit.accounting.nested`) that dominate a sum: upper bounds on δ and ε.

What is proved: every rounding moves the mass at a loss l to the points a <= l <= b of a lattice so that P-mass and
Q-mass stay. Seen as a function of e^-l, all else given, δ is convex, so each rounding can only raise it, and so can the
rest: mass that leaves at the top counts as infinite loss, at the bottom it moves up, and the error of a transform
(`tacit.accounting.relative`) is *added* to every entry it touches.

So the mass grows beyond 1, by 1e-12 a convolution or so, and T/2^k-fold with what is added at 2^k steps. What is beyond
1 is taken away again where the losses are lowest (`Upwards.whole`), which leaves an upper bound. Proof. Call h good if
it is a convex function of e^-l, at least 0 and growing with l; δ is one in each of the summands, all else given. Let μ
bound ν in the sense that ∫h dμ >= ∫h dν for every good h, let M be the mass of μ, that of ν be 1, and take the lowest
M - 1 of μ away, up to the loss c. Then max(h - h(c), 0) is good, and what is left is a mass of 1 at c or above:
∫h d(rest) = h(c) + ∫max(h - h(c), 0) dμ >= h(c) + ∫(h - h(c)) dν = ∫h dν.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.accounting import losses
from tacit.accounting.lattice import LARGEST_LOSS
from tacit.accounting.losses import Array, Pair
from tacit.accounting.nested import Law
from tacit.accounting.parts import Grid, Part, add, in_cells
from tacit.accounting.relative import ROUNDING, convolved

_EPS = float(np.finfo(np.float64).eps)


class Upwards:
    """One measure, P: the Q-mass at a loss l is e^-l of it."""

    def single(self, pair: Pair, grid: Grid, scale: int) -> tuple[dict[int, Part], float]:
        """One step, rounded to the lattices as `tacit.accounting.lattice.pessimistic` does."""
        parts: dict[int, Part] = {}
        inner, own = 0, scale
        while True:
            half, step = grid.half(own), grid.step(own)
            for low, high in ((-half, half),) if not inner else ((-half, -inner), (inner, half)):
                cells = pair.cells(step * np.arange(low, high + 1, dtype=np.float64))
                mass = np.maximum(cells.p, 0.0) * (1 + losses.ROUNDING)
                up = np.clip((cells.rise + cells.slack) / -math.expm1(-step), 0.0, mass)
                p = np.zeros((1, high + 1 - low))
                p[0, :-1] += mass - up
                p[0, 1:] += up
                add(parts, own, Part(low, p))
            if grid.last(own):
                break
            wider = grid.wider(own)
            inner, own = half >> (wider - own), wider
        below, above = (pair.cells(ends).p[0] for ends in half * step * np.array([[-np.inf, -1], [1, np.inf]]))
        add(parts, own, Part(-half, np.array([[max(float(below), 0.0) * (1 + ROUNDING)]])))
        return parts, max(float(above), 0.0) * (1 + ROUNDING)

    def coarser(self, grid: Grid, part: Part, scale: int, to: int) -> Part:
        """A mass between two points of the coarser lattice goes to both, its P-mass and Q-mass kept."""
        if scale == to:
            return part
        factor = 1 << (to - scale)
        low, cells = in_cells(part, factor, 0)
        up = np.expm1(-np.arange(factor) * grid.step(scale)) / math.expm1(-grid.step(to))
        up = np.minimum(up * (1 + 1e-14), 1.0)
        p = np.zeros((1, cells.shape[1] + 1))
        p[:, :-1] += cells @ (1 - up)
        p[:, 1:] += cells @ up
        return Part(low, p * (1 + ROUNDING / 64))

    def convolved(self, a: Array, b: Array, same: bool) -> Array:
        return convolved(a[0], b[0], same=same)[None]

    def closed(self, inside: Part, below: Array, above: Array) -> tuple[Part, float]:
        lost = float(above.sum()) * (1 + ROUNDING)
        if not below.any():
            return inside, lost
        moved = np.array([[float(below.sum()) * (1 + ROUNDING)]])
        return Part(inside.first - 1, np.concatenate([moved, inside.p], axis=1)), lost

    def trimmed(self, part: Part, least: float) -> tuple[Part, float]:
        """Leave out ``least`` at the upper end, which is returned, and move as much at the lower end up."""
        p = part.p[0]
        downwards = np.cumsum(p[::-1])[::-1]
        end = int(np.count_nonzero(downwards > least))
        lost = float(downwards[end]) * (1 + ROUNDING) if end < len(p) else 0.0
        if not end:
            return Part(part.first, part.p[:, :0]), lost
        upwards = np.cumsum(p[:end])
        begin = min(int(np.searchsorted(upwards, least, side="right")), end - 1)
        kept = part.p[:, begin:end].copy()
        kept[0, 0] += float(upwards[begin - 1]) * (1 + ROUNDING) if begin else 0.0
        return Part(part.first + begin, kept), lost

    def whole(self, grid: Grid, parts: dict[int, Part], infinite: float) -> dict[int, Part]:
        """Mass in excess of 1 is taken away from the lowest losses; see the module's text."""
        excess = math.fsum([infinite, *(mass for part in parts.values() for mass in part.p[0].tolist())]) - 1
        excess -= 4 * _EPS
        if not excess > 0:
            return parts
        low = {
            scale: part.p[0, : int(np.searchsorted(np.cumsum(part.p[0]), excess)) + 1] for scale, part in parts.items()
        }
        places = [parts[scale].points(grid.step(scale))[: len(mass)] for scale, mass in low.items()]
        order = np.argsort(np.concatenate(places))
        masses = np.concatenate(list(low.values()))[order]
        before = np.cumsum(masses) - masses
        taken = np.empty_like(masses)
        taken[order] = np.clip(excess - before * (1 + ROUNDING), 0.0, masses)
        for mass, away in zip(low.values(), np.split(taken, np.cumsum([len(mass) for mass in low.values()])[:-1])):
            mass -= away
        return parts


def delta(law: Law, epsilon: float) -> float:
    """δ at ``epsilon``, rounded up."""
    total = 0.0
    for scale, part in law.parts.items():
        points = law.points(scale)
        start = int(np.searchsorted(points, epsilon))
        total += float(part.p[0, start:] @ -np.expm1(epsilon - points[start:]))
    return min(total * (1 + ROUNDING) + law.infinite, 1.0)


def epsilon(law: Law, target: float) -> float:
    """An ε, at most 1e-9 of it too large, at which δ as computed is at most ``target``."""
    if delta(law, 0.0) <= target:
        return 0.0
    low, high = 0.0, law.grid.step(law.grid.main) * law.grid.points
    while delta(law, high) > target:
        low, high = high, 2 * high
        if high > LARGEST_LOSS:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(law, middle) > target else (low, middle)
    return high
