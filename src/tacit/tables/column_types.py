"""Types of columns, from noisy counts of their entries: post-processing of what discovery released."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tacit.tables.columns import Category, Column, Number, Text
from tacit.tables.histograms import CELLS, Array, bounds, cell_edges, height, quantile_knots, standing_out
from tacit.tables.identifiers import SPREAD, numbers_records
from tacit.tables.notation import KINDS, REMEDIES

NOTHING = "(none found)"
"""The value of a category of which no value was found."""
_FEW = 12
"""So many values of a number may be told apart, however few records there are."""
_ARRAYS = ("bins", "kinds")


@dataclass
class Seen:
    """Releases about one column: its histogram over powers of two, its values, and counts of finer cells."""

    std: float
    bins: Array | None = None
    kinds: Array | None = None
    """How many entries that are no numbers look like each of `tacit.tables.notation.KINDS`."""
    values: dict[str, float] = field(default_factory=dict)
    tree: Array | None = None
    tree_std: float = 0.0
    share: float = 1.0
    """The share of the records whose values were counted."""

    def facts(self) -> dict[str, Any]:
        """Return what the first looks released, as plain values; the last look is followed by the schema itself."""
        arrays = {name: None if (found := getattr(self, name)) is None else found.tolist() for name in _ARRAYS}
        return {"std": self.std, **arrays, "values": self.values, "share": self.share}


def restored(facts: dict[str, Any] | None) -> dict[str, Seen]:
    """Return what `Seen.facts` was asked of, by column."""
    found = {}
    for name, one in (facts or {}).items():
        arrays = {key: None if one[key] is None else np.array(one[key]) for key in _ARRAYS}
        found[name] = Seen(**{**one, **arrays})
    return found


def category_from(column: Column, values: Mapping[str, float], most: int) -> Category:
    """The values with the largest noisy counts, in the order they were in, and the one that missing entries have."""
    kept = set(sorted(values, key=lambda value: -values[value])[:most])
    names = [value for value in values if value in kept] or [NOTHING]
    if column.missing not in ("refuse", "own", *names):
        names.append(str(column.missing))
    return Category(values=tuple(names), other=True, missing=column.missing)


def column_from(
    column: Column, seen: Seen, most: int, knots: int, rough: bool, *, texts: bool = False, records: int = 0
) -> Column | None:
    """Return what a column is, by noisy counts of its numbers and of its values; None if it cannot be used.

    A column whose entries are mostly numbers stays a number, however few values it has: those become its knots where
    they are nearly all there is, and quantiles do otherwise. ``texts``: free text can be used. A column that numbers
    its ``records`` is of no use.
    """
    if isinstance(column, Category) or seen.bins is None:
        return category_from(column, seen.values, most)
    low, high = bounds(seen.bins, seen.std)
    numbers, named = standing_out(seen.bins, seen.std), sum(seen.values.values())
    if not isinstance(column, Number):
        kind = mostly(seen)
        if kind:
            return Text() if kind == "text" and texts else None
        if numbers < 0.5 * named:
            return category_from(column, seen.values, most)
        if numbers <= 0 or numbers_records(seen.bins, seen.std, records):
            return None
        column = Number(low=low, high=high, missing="own", text="missing")
    points = own_knots(seen.values, numbers, min(most, max(2 * knots, _FEW)))
    if not points and seen.tree is not None and min(most, knots) > 2:
        edges = cell_edges(seen.bins, seen.std)
        points = quantile_knots(seen.tree, edges, std=seen.tree_std, most=min(most, knots), rough=rough)
    return replace(column, low=low, high=high, knots=points)


def mostly(seen: Seen) -> str:
    """Return the kind of entries that is commonest by far, of those that are no plain numbers; '' if none is."""
    if seen.bins is None or seen.kinds is None:
        return ""
    place = int(np.argmax(seen.kinds))
    count, others = float(seen.kinds[place]), max(standing_out(seen.bins, seen.std), sum(seen.values.values()))
    return list(KINDS)[place] if count > max(height(seen.std, len(KINDS)), 1.2 * others) else ""


def remark(name: str, seen: Seen, column: Column | None, records: int, columns: int) -> str:
    """Return why a column is not used, or how many entries of a number count as missing; '' if all is well.

    ``columns`` were looked at together: noise alone lets one of them be remarked on with probability 0.001.
    """
    if seen.kinds is None:
        return ""
    if column is None:
        kind = mostly(seen)
        if kind == "text":
            return "its entries are free text, which this model does not read; use --model linear"
        if kind:
            return f"its entries look like {KINDS[kind]}; declare it in a schema, for example {REMEDIES[kind]}"
        if seen.bins is not None and numbers_records(seen.bins, seen.std, records):
            return SPREAD
        return "no value or range of it stood out of the noise; declare it in a schema if it is of use"
    place = int(np.argmax(seen.kinds))
    count = float(seen.kinds[place])
    if not isinstance(column, Number) or count < max(height(seen.std, len(KINDS) * columns), 0.01 * records):
        return ""
    kind = list(KINDS)[place]
    share, noise = count / records, seen.std / records
    return f"about {share:.1%} of its entries (noise ± {noise:.1%}) look like {KINDS[kind]} and count as missing"


def even_cells(column: Number) -> Array:
    """Return the edges of 256 cells of equal width between declared bounds."""
    assert column.low is not None and column.high is not None
    cells: Array = np.linspace(column.low, column.high, CELLS + 1)
    return cells


def own_knots(values: Mapping[str, float], numbers: float, most: int) -> tuple[float, ...]:
    """Return the released values as knots if there are at most ``most`` and nearly all records have one of them."""
    found = sorted({number for number in map(as_number, values) if math.isfinite(number)})
    covered = sum(count for value, count in values.items() if math.isfinite(as_number(value)))
    return tuple(found) if 2 <= len(found) <= most and covered > 0.9 * numbers else ()


def as_number(text: str) -> float:
    """Return the number that a released value is, NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
