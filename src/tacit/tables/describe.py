"""Private statistics of a table: what its columns are, how their values are spread, and how numbers go together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.accounting import Guarantee, account, guarantee, plan
from tacit.ledger import Budget, Everyone, Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Source
from tacit.tables.column_types import column_from, mostly
from tacit.tables.columns import MOST_VALUES, Category, Number, Undeclared
from tacit.tables.entries import numeric
from tacit.tables.histograms import Array, cell_edges, cumulative, height
from tacit.tables.looks import Look, Pieces, QuantileLook
from tacit.tables.notation import KINDS

_WEIGHTS = {"types": 0.4, "quantiles": 0.25, "moments": 0.35}
_SLACK_SHARE = 0.1
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BARS = 16


@dataclass(frozen=True, kw_only=True)
class Description:
    """The releases about a table, and their cost."""

    records: int
    columns: dict[str, dict[str, Any]]
    correlations: dict[str, dict[str, float]]
    noise: str
    guarantee: Guarantee


class _Plan:
    """The three looks, with the noise that the budget asks for."""

    def __init__(self, names: Sequence[str], budget: Budget, unit: str, ledger: Ledger) -> None:
        start = plan(records=1, lot_size=1, steps=1, epsilon=budget.epsilon, delta=(1 - _SLACK_SHARE) * budget.delta)
        noise = start.noise_multiplier
        for _ in range(200):
            self._choose(names, noise, budget)
            steps = [(self.types.step(unit), 1), (self.quantiles.step(unit), 1), (_step(self.moments, unit), 1)]
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
        self.moments = moment_queries(len(names), loud["moments"])


def moment_queries(columns: int, noise_multiplier: float) -> list[SumQuery]:
    """Return the sums of the last look: of values and who has one, and of products of two columns' values.

    Formal guarantee: values are scaled to [-1, 1], and 0 where missing. So a record's values have L2 norm at most
    sqrt(k) for k columns, with the indicators sqrt(2 k), and its products, each pair once, at most k. Rows beyond that
    are clipped.
    """
    norms = {"means": math.sqrt(2 * columns), "products": float(columns)}
    root = math.sqrt(2)
    return [
        SumQuery(group=f"moments/{name}", clip_norm=norm, noise_std=noise_multiplier * root * norm)
        for name, norm in norms.items()
    ]


def describe(
    pieces: Pieces, names: Sequence[str], *, records: int, budget: Budget, ledger: Ledger, source: Source
) -> Description:
    """Release counts, values, quantiles, histograms, means, deviations and correlations of the columns ``names``.

    Everyone takes part in three looks, which together cost the budget. The number of records is taken to be public. A
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
    means: dict[str, dict[str, float]] = {}
    correlations: dict[str, dict[str, float]] = {}
    if look is not None:
        trees = look.release(pieces, edges, {}, ledger=ledger, source=source)
        queries = moment_queries(len(numbers), chosen.noise["moments"])
        means, correlations = _moments(pieces, numbers, queries, records, ledger, source)
    columns = {}
    for name in names:
        column = kinds[name]
        if isinstance(column, Number):
            assert look is not None
            spread = _spread(trees[name], edges[name], look.std)
            columns[name] = {"type": "number", "low": column.low, "high": column.high, **means[name], **spread}
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


def _step(queries: Sequence[SumQuery], unit: str) -> Step:
    return Step(Everyone(unit=unit), tuple(query.event() for query in queries))


def _moments(
    pieces: Pieces,
    numbers: Mapping[str, Number],
    queries: Sequence[SumQuery],
    records: int,
    ledger: Ledger,
    source: Source,
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Release means, deviations and correlations of numbers between their released bounds."""
    receipt = ledger.record(_step(queries, ledger.header.unit), secure=source.secure)
    receipt.draw()
    count = len(numbers)
    above = np.triu_indices(count)
    firsts, seconds = queries[0].total((2 * count,)), queries[1].total((len(above[0]),))
    for piece in pieces():
        rows = np.stack([_scaled(name, column, piece[name]) for name, column in numbers.items()], axis=1)
        there = ~np.isnan(rows)
        rows = np.where(there, rows, 0.0)
        firsts.add(torch.from_numpy(np.concatenate([rows, there], axis=1)))
        seconds.add(torch.from_numpy(rows[:, above[0]] * rows[:, above[1]]))
    sums, products = (total.release(receipt, source).numpy() for total in (firsts, seconds))
    present = np.clip(sums[count:], max(1.0, 2 * queries[0].noise_std), records)
    mean = np.clip(sums[:count] / present, -1, 1)
    second = np.zeros((count, count))
    second[above] = products
    second = second + np.triu(second, 1).T
    noise = queries[1].noise_std / present
    variance = np.maximum(np.diag(second) / present - mean**2, noise)
    both = np.sqrt(np.outer(present, present))
    related = np.clip((second / both - np.outer(mean, mean)) / np.sqrt(np.outer(variance, variance)), -1, 1)
    found, table = {}, {}
    for place, (name, column) in enumerate(numbers.items()):
        assert column.low is not None and column.high is not None
        half, middle = (column.high - column.low) / 2, (column.high + column.low) / 2
        found[name] = {
            "present": float(round(present[place])),
            "mean": float(middle + half * mean[place]),
            "standard_deviation": float(half * math.sqrt(min(variance[place], 1.0))),
        }
        table[name] = {
            other: 1.0 if at == place else round(float(related[place, at]), 3) for at, other in enumerate(numbers)
        }
    return found, table


def _scaled(name: str, column: Number, values: Any) -> Array:
    assert column.low is not None and column.high is not None
    entries = numeric(name, values, text="missing")
    scaled: Array = (np.clip(entries, column.low, column.high) - column.low) / (column.high - column.low) * 2 - 1
    return scaled


def _spread(tree: Array, edges: Array, std: float) -> dict[str, Any]:
    """Return quantiles and a histogram from noisy counts of cells."""
    below, total = cumulative(tree)
    if total <= height(std, 1):
        return {"quantiles": {}, "histogram": {"edges": [], "counts": []}}
    quantiles = {f"{share:g}": float(np.interp(share, below, edges)) for share in _SHARES}
    low, high = (float(np.interp(share, below, edges)) for share in (0.005, 0.995))
    marks = np.linspace(low, high, _BARS + 1) if high > low else np.array([edges[0], edges[-1]])
    parts = np.diff(np.interp(marks, edges, below))
    counts = [round(float(part * total), 1) for part in parts]
    return {"quantiles": quantiles, "histogram": {"edges": marks.tolist(), "counts": counts}}
