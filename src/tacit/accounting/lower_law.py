"""Laws on lattices of several steps (`tacit.accounting.nested`) that a sum dominates: how close upper bounds are.

Outcomes are *merged*: one that falls into a cell of the lattice is known by the cell's number alone, and sums of
numbers take the place of sums of losses. Whatever is made of an outcome, the same for both data sets, can only lower δ,
so that with P and Q the masses of the numbers, convolved apart,

    δ(ε) >= Σ_i (P_i - e^ε Q_i)_+.

A coarser lattice merges neighbouring numbers, and ends may be left out. Merging costs δ in proportion to the variance
of the loss within a cell, so that these bounds and those of `tacit.accounting.upper_law` meet quadratically as the
lattices become finer.

Losses may be as small as 1e-7, and P and Q then alike to seven digits. So W_i = e^(x_i) Q_i - P_i is kept beside P, x_i
the loss that number i stands for: P_i - e^ε Q_i = P_i (1 - e^(ε - x_i)) - e^(ε - x_i) W_i loses no digits.

Rounding of the masses of cells and of W is not bounded here (some 1e-12 of them a step). So these bounds say how close
an upper bound is, and are published nowhere.
"""

from __future__ import annotations

import numpy as np

from tacit.accounting.losses import Array, Pair
from tacit.accounting.nested import Law
from tacit.accounting.parts import Grid, Part, add, in_cells
from tacit.accounting.relative import both_convolved


class Merged:
    """Two measures of the numbers of cells, P and W; number i stands for losses within half a step of i steps."""

    def single(self, pair: Pair, grid: Grid, scale: int) -> tuple[dict[int, Part], float]:
        parts: dict[int, Part] = {}
        inner, own, reached = 0, scale, 0.0
        while True:
            half, step = grid.half(own), grid.step(own)
            edges: Array = step * (np.arange(-half, half + 2, dtype=np.float64) - 0.5)
            if not inner:
                sides = [(-half, edges)]
            else:
                outer = np.append(reached, edges[edges > inner * step])
                sides = [(-half, -outer[::-1]), (inner, outer)]
            for first, ends in sides:
                cells = pair.cells(ends)
                p = np.maximum(cells.p, 0.0)
                up = step * np.arange(first, first + len(p), dtype=np.float64) - ends[:-1]
                # Q = (P - rise) e^-lo, lo the cell's lower end.
                add(parts, own, Part(first, np.stack([p, p * np.expm1(up) - np.minimum(cells.rise, p) * np.exp(up)])))
            if grid.last(own):
                return parts, 0.0
            wider = grid.wider(own)
            reached, inner, own = (half + 0.5) * step, half >> (wider - own), wider

    def coarser(self, grid: Grid, part: Part, scale: int, to: int) -> Part:
        """Numbers go to the nearest one of the coarser lattice; midway between two, to the upper one."""
        if scale == to:
            return part
        factor = 1 << (to - scale)
        low, cells = in_cells(part, factor, factor // 2)
        up = grid.step(scale) * (factor // 2 - np.arange(factor))
        p = cells[0].sum(axis=1)
        return Part(low, np.stack([p, cells[0] @ np.expm1(up) + cells[1] @ np.exp(up)]))

    def convolved(self, a: Array, b: Array, same: bool) -> Array:
        return both_convolved(a, b, same=same)

    def closed(self, inside: Part, below: Array, above: Array) -> tuple[Part, float]:
        return inside, 0.0

    def trimmed(self, part: Part, least: float) -> tuple[Part, float]:
        p = part.p[0]
        begin = int(np.searchsorted(np.cumsum(p), least, side="right"))
        end = int(np.count_nonzero(np.cumsum(p[::-1])[::-1] > least))
        return Part(part.first + begin, part.p[:, begin : max(end, begin)]), 0.0

    def whole(self, grid: Grid, parts: dict[int, Part], infinite: float) -> dict[int, Part]:
        return parts


def delta(law: Law, epsilon: float) -> float:
    """A lower bound on δ at ``epsilon``."""
    total = 0.0
    for scale, part in law.parts.items():
        away = np.minimum(epsilon - law.points(scale), 700.0)
        total += float(np.maximum(-part.p[0] * np.expm1(away) - np.exp(away) * part.p[1], 0.0).sum())
    return total


def epsilon(law: Law, target: float, below: float) -> float:
    """An ε up to ``below`` at which δ is at least ``target``, within 1e-9 of the largest such."""
    low, high = 0.0, below
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(law, middle) >= target else (low, middle)
    return low
