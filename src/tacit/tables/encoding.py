"""From the columns of a table to numbers, by the schema alone: no statistic of the records is used.

A row is first made *compact*: one number a column (a number scaled to [-1, 1] or its place among knots, NaN if missing;
a category's place, -1 if missing). That is what is kept, and what a record costs in memory. `Encoding.expand` turns
compact rows into features for a model: numbers as they are or shared out to the two knots beside them, categories and
bins as indicators. Both work record by record.
"""

from __future__ import annotations

import math
from itertools import pairwise, repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.tables.reading import Columns
from tacit.tables.schema import Category, Column, Number, Schema, Undeclared

UNKNOWN = -1
"""The target of a record whose class is none of the model's."""

_MISSING = ("", "?", "NA", "NaN", "nan", "null", "None")


class Encoding:
    """How the rows of a table with this schema become features and targets."""

    def __init__(self, schema: Schema) -> None:
        if schema.private:
            raise ValueError(f"{', '.join(schema.private)}: bounds or values are to be released privately first.")
        self.schema = schema
        self._features = schema.features
        self.names = tuple(name for title, column in self._features.items() for name in _labels(title, column))

    @property
    def width(self) -> int:
        """How many features a record has."""
        return len(self.names)

    def compact(self, rows: Columns, *, first: int = 1) -> NDArray[np.float32]:
        """The rows as numbers, one a column; ``first`` is the number of the first row, for error messages."""
        parts = [_code(name, column, rows[name], first) for name, column in self._features.items()]
        return np.stack(parts, axis=1).astype(np.float32)

    def targets(self, rows: Columns, *, first: int = 1) -> NDArray[np.float32]:
        """Return what is to be predicted: the place of the class, or the number scaled to [-1, 1].

        A value that discovery did not find is `UNKNOWN`: no class. It is not trained on, and every score counts it as
        predicted wrong.
        """
        name = self.schema.target
        codes = _code(name, self.schema.columns[name], rows[name], first, target=True).astype(np.float32)
        if self.schema.classes:
            codes[codes >= len(self.schema.classes)] = UNKNOWN
        return codes

    def expand(self, compact: Tensor) -> Tensor:
        """Features of compact rows."""
        return torch.cat(
            [_expand(column, compact[:, place]) for place, column in enumerate(self._features.values())], dim=1
        )

    def unscale(self, targets: NDArray[np.float32]) -> NDArray[np.float64]:
        """Numbers in [-1, 1] back in the target's own unit."""
        column = self.schema.columns[self.schema.target]
        assert isinstance(column, Number) and column.low is not None and column.high is not None
        return column.low + (np.asarray(targets, dtype=np.float64) + 1) / 2 * (column.high - column.low)


def check(rows: Columns, schema: Schema, *, first: int = 1) -> int:
    """How many rows there are; one that does not fit the schema is an error.

    Private columns need only be readable, and have no missing entries if those are refused.
    """
    for name, column in schema.columns.items():
        target = name == schema.target
        if not column.private:
            _code(name, column, rows[name], first, target=target)
            continue
        if isinstance(column, Number):
            gone = np.isnan(numeric(name, rows[name], first=first, text=column.text))
        else:
            gone = words(rows[name]) == ""
        if gone.any() and column.missing == "refuse":
            raise _missing(name, column, first + int(np.flatnonzero(gone)[0]), target)
    return len(rows[schema.target])


def _code(
    name: str, column: Column, values: NDArray[np.generic], first: int, *, target: bool = False
) -> NDArray[np.float64]:
    if isinstance(column, Number):
        gone, codes = _numbers(name, column, values, first)
    else:
        assert isinstance(column, Category)
        gone, codes = _places(name, column, values, first)
    if gone.any() and column.missing == "refuse":
        raise _missing(name, column, first + int(np.flatnonzero(gone)[0]), target)
    return codes


def numeric(name: str, values: NDArray[np.generic], *, first: int = 1, text: str = "refuse") -> NDArray[np.float64]:
    """The entries as float64, NaN where missing; what is no finite number is an error, or missing too."""
    if values.dtype.kind in "fiub":
        numbers = values.astype(np.float64)
        bad = np.isinf(numbers)
    else:
        numbers = _parsed(values)
        bad = np.zeros(len(numbers), dtype=np.bool_)
        odd = np.flatnonzero(~np.isfinite(numbers))
        bad[odd] = [str(entry).strip() not in _MISSING for entry in values[odd].tolist()]
    if text == "missing":
        numbers[bad] = np.nan
    elif bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"column {name!r}, row {first + at}: {str(values[at]).strip()!r} is not a number; declare the column as a "
            "category, or correct the file."
        )
    return numbers


def words(values: NDArray[np.generic]) -> NDArray[np.str_]:
    """The entries as text, '' where missing; whole numbers without a point, so that 1 and 1.0 are one category."""
    if values.dtype.kind == "b":
        return np.where(values, "true", "false")
    if values.dtype.kind in "fiu":
        return np.array([_spelled(value) for value in values.tolist()], dtype=str)
    text = np.char.strip(values.astype(str))
    return np.where(np.isin(text, _MISSING), "", text)


Coded = tuple[NDArray[np.bool_], NDArray[np.float64]]
"""Which entries are missing, and all as numbers."""


def _numbers(name: str, column: Number, values: NDArray[np.generic], first: int) -> Coded:
    numbers = numeric(name, values, first=first, text=column.text)
    gone = np.isnan(numbers)
    if column.missing not in ("refuse", "own"):
        numbers[gone], gone = float(column.missing), np.zeros_like(gone)
    if column.bins:
        return gone, np.where(gone, -1.0, np.searchsorted(column.bins, numbers, side="right"))
    if column.knots:
        return gone, np.interp(numbers, column.knots, np.arange(len(column.knots)))
    assert column.low is not None and column.high is not None
    middle, half = column.low / 2 + column.high / 2, column.high / 2 - column.low / 2
    return gone, (np.clip(numbers, column.low, column.high) - middle) / half


def _places(name: str, column: Category, values: NDArray[np.generic], first: int) -> Coded:
    assert column.values is not None
    rows = np.arange(first, first + len(values))
    if values.dtype.kind != "O":
        return _looked_up(name, column, values, rows)
    # Nearly every entry of a file is spelled as it was declared; only the others need a closer look.
    exact = {value: float(place) for place, value in enumerate(column.values) if words(np.array([value]))[0] == value}
    places = np.fromiter(map(exact.get, values.tolist(), repeat(np.nan)), dtype=np.float64, count=len(values))
    gone, others = np.zeros(len(values), dtype=np.bool_), np.isnan(places)
    if others.any():
        gone[others], places[others] = _looked_up(name, column, values[others], rows[others])
    return gone, places


def _looked_up(name: str, column: Category, values: NDArray[np.generic], rows: NDArray[np.int64]) -> Coded:
    assert column.values is not None
    text = words(values)
    order = np.argsort(np.array(column.values))
    known = np.array(column.values)[order]
    at = np.minimum(np.searchsorted(known, text), len(known) - 1)
    found = known[at] == text
    places = np.where(found, order[at], len(known)).astype(np.float64)
    gone = (text == "") & ~found
    if column.missing in ("refuse", "own"):
        places[gone] = -1
    else:
        places[gone] = column.values.index(str(column.missing))
    strange = ~found & ~gone
    if strange.any() and not column.other:
        row = int(np.flatnonzero(strange)[0])
        raise ValueError(
            f"column {name!r}, row {rows[row]}: {str(text[row])!r} is not among the declared values; add it, or set "
            '"other": true.'
        )
    return gone, places


def _expand(column: Column, codes: Tensor) -> Tensor:
    if isinstance(column, Number) and not column.bins:
        gone = codes.isnan()
        if column.knots:  # one at its own knot, falling to zero at the neighbours: two features, that add up to one
            knots = torch.arange(len(column.knots), dtype=codes.dtype, device=codes.device)
            numbers = (1 - (torch.where(gone, -1.0, codes)[:, None] - knots).abs()).clamp(min=0)
        else:
            numbers = torch.where(gone, 0.0, codes)[:, None]
        return torch.cat([numbers, gone[:, None].to(codes.dtype)], dim=1) if column.missing == "own" else numbers
    assert not isinstance(column, Undeclared)
    count = len(column.bins) + 1 if isinstance(column, Number) else len(column.values or ()) + column.other
    places = torch.arange(-1 if column.missing == "own" else 0, count, dtype=codes.dtype, device=codes.device)
    return (codes[:, None] == places).to(codes.dtype)


def _labels(title: str, column: Column) -> list[str]:
    own = [f"{title} missing"] if column.missing == "own" else []
    if isinstance(column, Category):
        others = [f"{title} other"] if column.other else []
        return [*own, *(f"{title} = {value}" for value in column.values or ()), *others]
    assert isinstance(column, Number)
    if column.bins:
        edges = [*column.bins]
        inner = [f"{low:g} ≤ {title} < {high:g}" for low, high in pairwise(edges)]
        return [*own, f"{title} < {edges[0]:g}", *inner, f"{title} ≥ {edges[-1]:g}"]
    if column.knots:
        return [*(f"{title} ≈ {knot:g}" for knot in column.knots), *own]
    return [title, *own]


def _missing(name: str, column: Column, row: int, target: bool) -> ValueError:
    choice = "a number to use instead" if isinstance(column, Number) else "one of the values"
    remedy = "leave the row out" if target else f'declare "missing" in the schema: "own" or {choice}'
    return ValueError(f"column {name!r}, row {row}: the entry is missing; {remedy}.")


def _parsed(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Text as numbers, NaN where it is none."""
    entries = values.astype(object)
    try:
        return entries.astype(np.float64)
    except ValueError:
        return np.array([_number(entry) for entry in entries.tolist()])


def _number(entry: str) -> float:
    """Return the number, NaN where it is none.

    ``float`` alone does not strip U+001C to U+001F from text that is ASCII; the fast reader does (`reading`), and one
    row's neighbours decide which of the two reads it.
    """
    try:
        return float(entry.strip())
    except ValueError:
        return math.nan


def _spelled(value: float) -> str:
    if value != value:
        return ""
    return str(int(value)) if float(value).is_integer() else repr(value)
