"""Private statistics of a table: what its columns are, how their values are spread, and how numbers go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tacit.accounting import Guarantee, account, guarantee, plan
from tacit.ledger import Budget, Ledger
from tacit.randomness import Source
from tacit.tables.column_types import Seen, column_from, mostly
from tacit.tables.columns import MOST_VALUES, Category, Number, Undeclared
from tacit.tables.histograms import EDGES, Array, cell_edges, cumulative, height
from tacit.tables.looks import Look, Pieces, QuantileLook
from tacit.tables.moments import Bounds, Moments, Summary
from tacit.tables.notation import KINDS

_WEIGHTS = {"types": 0.4, "quantiles": 0.25, "moments": 0.35}
_SLACK_SHARE = 0.1
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BARS = 16
_OUTER = 0.01
_NARROW = 0.01
"""A histogram of a range that is narrower than this share of the mean's range would show one value from close by."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The releases about a table, and their cost."""

    records: int
    columns: dict[str, dict[str, Any]]
    correlations: dict[str, dict[str, float | None]]
    """None where noise would be most of it. A missing entry counts as the mean."""
    noise: str
    guarantee: Guarantee


class _Plan:
    """The looks, with the noise that the budget asks for."""

    def __init__(self, names: Sequence[str], budget: Budget, unit: str, ledger: Ledger) -> None:
        start = plan(records=1, lot_size=1, steps=1, epsilon=budget.epsilon, delta=(1 - _SLACK_SHARE) * budget.delta)
        noise = start.noise_multiplier
        for _ in range(200):
            self._choose(names, noise, budget)
            looks = (self.types.step(unit), self.quantiles.step(unit), *self.moments.steps(unit))
            steps = [(step, 1) for step in looks]
            if guarantee(steps, ledger.header, delta=budget.delta).epsilon <= budget.epsilon:
                return
            noise *= 1.001
        raise ValueError(
            f"epsilon {budget.epsilon:g} is too small to describe {len(names)} columns; choose a larger one."
        )

    def _choose(self, names: Sequence[str], noise: float, budget: Budget) -> None:
        loud = {name: noise / math.sqrt(weight) for name, weight in _WEIGHTS.items()}
        slack = _SLACK_SHARE * budget.delta / len(names)
        self.types = Look({name: Undeclared() for name in names}, loud["types"], slack)
        self.quantiles = QuantileLook(names, loud["quantiles"])
        self.noise = loud
        self.moments = Moments(len(names), loud["moments"])


def describe(
    pieces: Pieces, names: Sequence[str], *, records: int, budget: Budget, ledger: Ledger, source: Source
) -> Description:
    """Release counts, values, quantiles, histograms, means, deviations and correlations of the columns ``names``.

    Everyone takes part in four looks, which together cost the budget. The number of records is taken to be public. A
    column of which nothing stands out of the noise is said to be that.
    """
    if len(names) < 1 or len(set(names)) != len(names):
        raise ValueError(f"the columns are {', '.join(names) or 'none'}; give each once, at least one.")
    unit = ledger.header.unit
    chosen = _Plan(names, budget, unit, ledger)
    seen = chosen.types.release(pieces, records=records, ledger=ledger, source=source)
    kinds = {name: column_from(Undeclared(), seen[name], MOST_VALUES, 0, False) for name in names}
    numbers = {name: column for name, column in kinds.items() if isinstance(column, Number)}
    edges = {name: cell_edges(bins, chosen.types.std) for name in numbers if (bins := seen[name].bins) is not None}
    trees: dict[str, Array] = {}
    look = QuantileLook(list(numbers), chosen.noise["quantiles"]) if numbers else None
    means: dict[str, Summary] = {}
    correlations: dict[str, dict[str, float | None]] = {}
    if look is not None:
        trees = look.release(pieces, edges, {}, ledger=ledger, source=source)
        moments = Moments(len(numbers), chosen.noise["moments"])
        bounds = {
            name: reach(trees[name], edges[name], column, look.std, seen[name], moments.queries[0].noise_std)
            for name, column in numbers.items()
        }
        means, correlations = moments.release(pieces, bounds, records, ledger=ledger, source=source)
    columns = {}
    for name in names:
        column = kinds[name]
        if isinstance(column, Number):
            assert look is not None
            spread = _spread(trees[name], edges[name], look.std, bounds[name])
            facts = {"type": "number", "low": column.low, "high": column.high, "held_to": list(bounds[name])}
            columns[name] = {**facts, **asdict(means[name]), **spread}
        elif isinstance(column, Category) and seen[name].values:
            found = dict(sorted(seen[name].values.items(), key=lambda pair: -pair[1]))
            columns[name] = {"type": "category", "counts": {value: round(count, 1) for value, count in found.items()}}
        else:
            kind = mostly(seen[name])
            note = f"its entries look like {KINDS[kind]}" if kind else "nothing stood out of the noise"
            columns[name] = {"type": "unknown", "note": note}
    words = f"A count has noise of standard deviation {chosen.types.std:.3g}"
    words += f"; a count of a histogram {look.std * 4:.3g}." if look is not None else "."
    return Description(
        records=records,
        columns=columns,
        correlations=correlations,
        noise=words,
        guarantee=account(ledger, delta=budget.delta),
    )


def _range(tree: Array, edges: Array, std: float, beyond: float) -> tuple[float, float] | None:
    """Return the range of nearly all values and about ``beyond`` times its width on both sides; None if all is noise.

    The outer quantiles leave out as much as noise could move them by: noise in empty cells must not widen the range.
    The more they leave out, the farther beyond them values lie.
    """
    below, total = cumulative(tree)
    if total <= height(std, 1):
        return None
    moved = 6 * std / total  # the noise of a sum of cells from the first on: of 15 groups and 15 cells at most
    outer = min(max(_OUTER, 3 * moved), 0.25)
    low, high = (float(np.interp(share, below, edges)) for share in (outer, 1 - outer))
    more = (beyond + 4 * outer) * (high - low)
    return (max(float(edges[0]), low - more), min(float(edges[-1]), high + more)) if low < high else None


def reach(tree: Array, edges: Array, column: Number, std: float, seen: Seen, loud: float) -> Bounds:
    """Return bounds for means: values beyond count as the bound.

    Bounds of columns are powers of two. A year lies between 1024 and 2048, and noise in proportion to that would drown
    its spread, so the range of nearly all values is taken, and widened. But where most values are alike, as in a column
    of rare ones among zeros, that range is a point. So each end goes on to the power of two where noise, ``loud`` times
    half the width, and what is cut off of the values that were ``seen`` beyond it, add up to the least.
    """
    assert column.low is not None and column.high is not None and seen.bins is not None
    low, high = _range(tree, edges, std, beyond=1.0) or (column.low, column.high)
    low, high = max(low, column.low), min(high, column.high)
    finite = np.clip(EDGES, -(2.0**41), 2.0**41)
    middles = (finite[1:] + finite[:-1]) / 2
    there = np.where(seen.bins > height(seen.std, len(seen.bins)), seen.bins, 0.0)

    def error(low: float, high: float) -> float:
        above, below = finite[:-1] >= high, finite[1:] <= low  # bins that lie beyond as a whole
        cut = (there * (above * (middles - high) + below * (low - middles))).sum()
        return float((loud * (high - low) / 2) ** 2 + cut**2)

    high = min([high, *finite[(finite > high) & (finite <= column.high)].tolist()], key=lambda end: error(low, end))
    low = min([low, *finite[(finite < low) & (finite >= column.low)].tolist()], key=lambda end: error(end, high))
    smallest = float(EDGES[len(EDGES) // 2])
    if max(abs(low), abs(high)) <= smallest:  # all that stood out is around zero: rare ones may be hidden by noise
        high = 1.0
    return low, high


def _spread(tree: Array, edges: Array, std: float, held: Bounds) -> dict[str, Any]:
    """Return quantiles and a histogram from noisy counts of cells; ``held`` is the range that the mean is taken in."""
    below, total = cumulative(tree)
    if total <= height(std, 1):
        return {"quantiles": {}, "histogram": {"edges": [], "counts": []}}
    quantiles = {f"{share:g}": float(np.interp(share, below, edges)) for share in _SHARES}
    shown = _range(tree, edges, std, beyond=0.2) or (float(edges[0]), float(edges[-1]))
    if shown[1] - shown[0] < _NARROW * (held[1] - held[0]):  # most values are alike; the others are of interest too
        shown = held
    marks = np.linspace(*shown, _BARS + 1)
    parts = np.diff(np.interp(marks, edges, below))
    counts = [round(float(part * total), 1) for part in parts]
    around = float(EDGES[len(EDGES) // 2])  # the histogram that types were found from has one bin up to here
    told = {share: 0.0 if abs(value) < around < held[1] else value for share, value in quantiles.items()}
    return {"quantiles": told, "histogram": {"edges": marks.tolist(), "counts": counts}}
