"""Lower bounds on δ and ε from losses that are merged in the cells of one lattice.

An outcome is known by the number of the cell that its loss falls into, and a composition by the sum of these numbers.
Whatever is made of an outcome, the same for both data sets, can only lower δ, so that for every c

    δ(ε) >= P(sum of numbers >= c) - e^ε Q(sum of numbers >= c).

Merging costs δ in proportion to the variance of the loss within a cell: the bound and that of
`tacit.accounting.lattice.pessimistic` meet quadratically as the step becomes smaller.

Rounding: the event is an upper set, so P may be replaced by a measure whose tails are nowhere larger, and Q by one
whose tails are nowhere smaller. A computed tail is off by at most `ROUNDING` of itself above a loss of 0 and by as much
of 1 elsewhere; edges of cells need not be where they are said to be, as long as they are the same for P and Q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tacit.accounting.convolution import OUTSIDE, TiltedSum
from tacit.accounting.lattice import Lattice, Sketch
from tacit.accounting.losses import ROUNDING, Array, Pair

_EPS = float(np.finfo(np.float64).eps)
# Tails this many units of their logarithm away from the centre are not used: exponentials are clipped beyond.
_FAR = 600.0

Measures = tuple[Lattice, Lattice]


def merged(pair: Pair, near: Sketch, step: float) -> Measures:
    """P and Q of the numbers of the cells, i for losses within half a step of i steps: P from below, Q from above."""
    first = math.floor(float(near.edges[0]) / step) - 1
    last = math.ceil(float(near.edges[-1]) / step) + 1
    inner = step * (np.arange(first, last, dtype=np.float64) + 0.5)
    cells = pair.cells(np.concatenate([[-np.inf], inner, [np.inf]]))
    middle = min(max(-first, 0), len(inner))
    out = []
    for mass, sign in ((cells.p, -1), (cells.q, +1)):
        off = ROUNDING * (1 + np.count_nonzero(mass < 0))
        p = np.maximum(mass, 0.0)
        p[middle + 1 :] *= 1 + sign * off
        p[middle] = max(p[middle] + sign * 8 * off, 0.0)
        out.append(Lattice(step, 0.0, first, p))
    return out[0], out[1]


class MergedSum:
    """Tails of the sum of numbers under P, from below, and under Q, from above, where both windows tell them."""

    def __init__(self, parts: Sequence[tuple[Measures, int]], tilt: float, largest_window: int) -> None:
        sums = [
            TiltedSum([(measures[i], count) for measures, count in parts], tilt + i, largest_window) for i in (0, 1)
        ]
        begin = max(each.start for each in sums)
        end = min(each.start + each.length for each in sums)
        (self._p, self._log_p), (self._q, self._log_q) = (
            _tails(each, sign, begin, max(end, begin)) for each, sign in zip(sums, (-1, +1), strict=True)
        )

    def delta_below(self, epsilon: float) -> float:
        """A lower bound on δ(epsilon)."""
        exponent = epsilon + self._log_q - self._log_p
        if exponent > _FAR / 2:
            return 0.0
        factor = math.exp(max(exponent, -_FAR / 2))
        most = float(np.max(self._p - factor * self._q * (1 + 16 * _EPS), initial=0.0))
        return min(most * math.exp(min(self._log_p, 700.0)), 1.0) * (1 - 16 * _EPS)

    def epsilon_below(self, delta: float) -> float:
        """An ε at which δ(ε) is at least ``delta`` for sure, or minus infinity."""
        exponent = math.log(delta) - self._log_p
        if exponent > _FAR:
            return -math.inf
        rest = self._p * (1 - 4 * _EPS) - math.exp(exponent)
        told = (rest > 0) & (self._q > 0)
        if not told.any():
            return -math.inf
        best = float(np.max(np.log(rest[told]) - np.log(self._q[told])))
        size = abs(best) + abs(self._log_p) + abs(self._log_q)
        return best + self._log_p - self._log_q - 16 * _EPS * (1 + size)


def _tails(found: TiltedSum, sign: int, begin: int, end: int) -> tuple[Array, float]:
    """Tails from each number in [begin, end) on, from above for ``sign`` +1, and the logarithm of their unit."""
    away = found.points - found.centre.mean
    weight = np.exp(np.clip(-found.tilt * away, -_FAR / 2, _FAR / 2))
    mass = np.maximum(found.mass, 0.0) if sign > 0 else found.mass
    tails = np.cumsum((mass * weight)[::-1])[::-1] * (1 + sign * found.length * _EPS)
    rounding = found.error * np.sqrt(np.cumsum((weight * weight)[::-1])[::-1])
    # Aliasing adds to the masses; what lies above the window is missing.
    outside = 2 * OUTSIDE * weight if sign < 0 else np.full_like(weight, OUTSIDE * float(weight[-1]))
    tails += sign * (rounding + outside)
    tails[np.abs(found.tilt * away) > _FAR / 2] = 0.0 if sign < 0 else math.inf
    inside = slice(begin - found.start, end - found.start)
    scale = found.centre.value - found.tilt * found.centre.mean + sign * found.doubt
    return np.maximum(tails[inside], 0.0), scale
