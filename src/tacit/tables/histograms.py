"""Noisy histograms of a column's numbers, and what follows from them: bounds, and knots at its quantiles."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_EXPONENTS = range(-10, 41)
EDGES = np.array([-math.inf, *(-(2.0**k) for k in reversed(_EXPONENTS)), *(2.0**k for k in _EXPONENTS), math.inf])
"""Edges of the first histogram: powers of two, the same for every column."""
_FALSE_ALARM = 1e-3
_GROUPS = 16
CELLS = _GROUPS * _GROUPS
"""Cells of the second histogram, which are counted one by one and in groups of 16."""
COUNTS = _GROUPS + CELLS

Array = NDArray[np.float64]


def counts(numbers: Array, edges: Array = EDGES) -> Array:
    """Return how many numbers lie in each bin; a missing one (NaN) in none."""
    there = numbers[~np.isnan(numbers)]
    places = np.clip(np.searchsorted(edges, there, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(places, minlength=len(edges) - 1).astype(np.float64)


def tree_counts(numbers: Array, edges: Array) -> Array:
    """Return counts of 16 groups and of the 256 cells in them: a record adds one to a group and one to a cell."""
    cells = counts(numbers, edges)
    return np.concatenate([cells.reshape(_GROUPS, _GROUPS).sum(axis=1), cells])


def height(std: float, bins: int) -> float:
    """Return what noise alone stays below in all bins, with probability 0.999."""
    return std * math.sqrt(2 * math.log(bins / _FALSE_ALARM))


def standing_out(noisy: Array, std: float) -> float:
    """Return the noisy count of all records in bins that stand out of the noise."""
    return float(noisy[noisy > height(std, len(noisy))].sum())


def bounds(noisy: Array, std: float) -> tuple[float, float]:
    """Return the outer edges of the bins that stand out of noise of this size; all noise, and it is [-1, 1].

    An empty bin stands out with probability below 0.001 in the whole histogram, whatever its size. Values beyond
    the bounds will count as the bounds.
    """
    full = np.flatnonzero(noisy > height(std, len(noisy)))
    if not len(full):
        return -1.0, 1.0
    finite = _finite_edges()
    low, high = float(finite[full[0]]), float(finite[full[-1] + 1])
    middle = len(EDGES) // 2 - 1  # the bin around zero: a column of counts begins at 0, not at its lower edge
    return (0.0 if full[0] == middle else low), (0.0 if full[-1] == middle and full[0] != middle else high)


def cell_edges(noisy: Array, std: float) -> Array:
    """Return the edges of 256 cells between the bounds, narrow where the first histogram has many records.

    Every bin between the outermost ones that stand out gets cells in proportion to its noisy count, at least one.
    """
    full = np.flatnonzero(noisy > height(std, len(noisy)))
    first, last = (int(full[0]), int(full[-1])) if len(full) else (len(EDGES) // 2 - 1,) * 2
    weights = np.maximum(noisy[first : last + 1], 0.0) + 1e-9
    room = CELLS - len(weights)
    parts = 1 + np.floor(room * weights / weights.sum()).astype(int)
    parts[int(np.argmax(weights))] += CELLS - int(parts.sum())
    finite = _finite_edges()
    pieces = [
        np.linspace(finite[first + place], finite[first + place + 1], number, endpoint=False)
        for place, number in enumerate(parts)
    ]
    return np.append(np.concatenate(pieces), finite[last + 1])


def quantile_knots(noisy: Array, edges: Array, *, std: float, most: int, rough: bool = False) -> tuple[float, ...]:
    """Return up to ``most`` rising numbers at equally spaced quantiles, from noisy `tree_counts`.

    Fewer where noise would move them by more than their distance, and none where not even three could be told apart;
    ``rough`` ones are for bins whose counts are found out later, and need not be where quantiles are.
    """
    cells = _consistent(noisy)
    total = float(cells.sum())
    wide = 6 * std  # of a sum of cells from the first on: 15 groups or fewer, and 15 cells
    parts = min(most - 1, math.floor(total / (wide / 4 if rough else 2 * wide))) if total > 0 else 0
    if parts < 2:
        return ()
    below, _ = cumulative(noisy)
    outer = min(max(0.1 / parts, wide / total / 4), 0.5 / parts)
    tail = np.array([outer])
    if rough:  # the outer parts are cut twice more where noise allows: rare classes and large numbers live there
        cuts = np.array([0.25, 0.5]) / parts
        tail = np.append(tail, cuts[cuts > 2 * outer])
    wanted = np.concatenate([tail, np.arange(1, parts) / parts, 1 - tail[::-1]])
    at = np.interp(wanted, below, edges)
    knots = [float(at[0])]
    for value in at[1:].tolist():
        if value > knots[-1] + 1e-9 * max(abs(value), abs(knots[-1])):
            knots.append(value)
    return tuple(knots) if len(knots) > 2 else ()


def cumulative(noisy: Array) -> tuple[Array, float]:
    """Return the share of records below every edge of the cells, rising, and how many there are, from `tree_counts`."""
    cells = _consistent(noisy)
    total = float(cells.sum())
    sums = np.concatenate([[0.0], np.cumsum(cells)])
    # Half way between the least rising line above the sums and the greatest below them: noise raises one, lowers other.
    below = (np.maximum.accumulate(sums) + np.minimum.accumulate(sums[::-1])[::-1]) / 2
    shares: Array = np.clip(below / max(total, 1.0), 0.0, 1.0)
    return shares, total


def _consistent(noisy: Array) -> Array:
    """Return cells that add up to the best estimate of their group: least squares on both levels (Hay et al. 2010)."""
    groups, cells = noisy[:_GROUPS], noisy[_GROUPS:].reshape(_GROUPS, _GROUPS)
    sums = cells.sum(axis=1)
    best = (_GROUPS * groups + sums) / (_GROUPS + 1)
    consistent: Array = (cells + ((best - sums) / _GROUPS)[:, None]).reshape(-1)
    return consistent


def _finite_edges() -> Array:
    finite: Array = np.clip(EDGES, -(2.0 ** _EXPONENTS[-1]) * 2, 2.0 ** _EXPONENTS[-1] * 2)
    return finite
