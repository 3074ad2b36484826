"""From the columns of a table to numbers, by the schema alone: no statistic of the records is used.

A row is first made *compact*: one number a column (a number scaled to [-1, 1] or its place among knots, NaN if missing;
a category's place, -1 if missing), and for a text the buckets of its n-grams. That is what is kept, and what a
record costs in memory. `Encoding.expand` turns compact rows into features for a model: numbers as they are or shared
out to the two knots beside them, categories and bins as indicators. Both work record by record.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from tacit.tables.columns import MOST_NGRAMS, Category, Column, Columns, Number, Text, Undeclared, spellings
from tacit.tables.entries import numeric, words
from tacit.tables.ngrams import hashed
from tacit.tables.schema import Schema

UNKNOWN = -1
"""The target of a record whose class is none of the model's."""


class Encoding:
    """How the rows of a table with this schema become features and targets."""

    def __init__(self, schema: Schema) -> None:
        if schema.open_texts:
            raise ValueError(
                f"{', '.join(schema.open_texts)}: say how many buckets the n-grams of a text have, for example "
                '"buckets": 1024.'
            )
        if schema.private:
            raise ValueError(f"{', '.join(schema.private)}: bounds or values are to be released privately first.")
        self.schema = schema
        self._features = schema.features
        labels = {title: _labels(title, column) for title, column in self._features.items()}
        self.names = tuple(name for own in labels.values() for name in own)
        self.widths: Mapping[str, int] = {title: len(own) for title, own in labels.items()}
        """How many features a column has."""

        places, start = {}, 0
        for title, column in self._features.items():
            places[title] = slice(start, start := start + (MOST_NGRAMS if isinstance(column, Text) else 1))
        self.places: Mapping[str, slice] = places
        """Where a feature's codes are in a compact row."""

    @property
    def width(self) -> int:
        """How many features a record has."""
        return len(self.names)

    @property
    def codes(self) -> int:
        """How many numbers a compact row has."""
        return sum(place.stop - place.start for place in self.places.values())

    def compact(self, rows: Columns, *, first: int = 1) -> NDArray[np.float32]:
        """The rows as numbers, one a column; ``first`` is the number of the first row, for error messages."""
        parts = [
            hashed(rows[name], column.buckets or 2, column.ngrams)
            if isinstance(column, Text)
            else _code(name, column, rows[name], first)[:, None]
            for name, column in self._features.items()
        ]
        return np.concatenate(parts, axis=1).astype(np.float32)

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

    def expand(self, compact: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features of compact rows."""
        parts = [
            _expand_text(column, compact[:, self.places[name]])
            if isinstance(column, Text)
            else _expand(column, compact[:, self.places[name].start])
            for name, column in self._features.items()
        ]
        return np.concatenate(parts, axis=1, dtype=np.float32)

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
        if isinstance(column, Text):
            continue
        if not column.private:
            _code(name, column, rows[name], first, target=target)
            continue
        if isinstance(column, Number):
            gone = np.isnan(numeric(name, rows[name], first=first, text=column.text, notation=column.notation))
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
        gone, codes = _places(name, column, values, first, target)
    if gone.any() and column.missing == "refuse":
        raise _missing(name, column, first + int(np.flatnonzero(gone)[0]), target)
    return codes


Coded = tuple[NDArray[np.bool_], NDArray[np.float64]]
"""Which entries are missing, and all as numbers."""


def _numbers(name: str, column: Number, values: NDArray[np.generic], first: int) -> Coded:
    numbers = numeric(name, values, first=first, text=column.text, notation=column.notation, truths=True)
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


def _places(name: str, column: Category, values: NDArray[np.generic], first: int, target: bool) -> Coded:
    assert column.values is not None
    rows = np.arange(first, first + len(values))
    if values.dtype.kind != "O":
        return _looked_up(name, column, values, rows, target)
    # Nearly every entry of a file is spelled as it was declared; only the others need a closer look.
    known = spellings(column.values)
    exact = {value: float(place) for value, place in known.items() if words(np.array([value]))[0] == value}
    places = np.fromiter(map(exact.get, values.tolist(), repeat(np.nan)), dtype=np.float64, count=len(values))
    gone, others = np.zeros(len(values), dtype=np.bool_), np.isnan(places)
    if others.any():
        gone[others], places[others] = _looked_up(name, column, values[others], rows[others], target)
    return gone, places


def _looked_up(
    name: str, column: Category, values: NDArray[np.generic], rows: NDArray[np.int64], target: bool
) -> Coded:
    assert column.values is not None
    text = words(values)
    spelled = spellings(column.values)
    order = sorted(spelled)
    known, own = np.array(order), np.array([spelled[word] for word in order])
    at = np.minimum(np.searchsorted(known, text), len(known) - 1)
    found = known[at] == text
    places = np.where(found, own[at], len(column.values)).astype(np.float64)
    gone = (text == "") & ~found
    if column.missing in ("refuse", "own"):
        places[gone] = -1
    else:
        places[gone] = column.values.index(str(column.missing))
    strange = ~found & ~gone
    if strange.any() and not column.other:
        row = int(np.flatnonzero(strange)[0])
        listed = ", ".join(column.values[:10]) + (", …" if len(column.values) > 10 else "")
        remedy = "add it (--classes), or leave the row out" if target else 'add it, or set "other": true'
        raise ValueError(
            f"column {name!r}, row {rows[row]}: {str(text[row])!r} is not among the declared values ({listed}); "
            f"{remedy}."
        )
    return gone, places


def _expand(column: Column, codes: NDArray[np.float32]) -> NDArray[np.float32]:
    if isinstance(column, Number) and not column.bins:
        gone = np.isnan(codes)
        if column.knots:  # one at its own knot, falling to zero at the neighbours: two features, that add up to one
            knots = np.arange(len(column.knots), dtype=np.float32)
            numbers = np.maximum(1 - np.abs(np.where(gone, np.float32(-1), codes)[:, None] - knots), 0)
        else:
            numbers = np.where(gone, np.float32(0), codes)[:, None]
        found = np.concatenate([numbers, gone[:, None]], axis=1) if column.missing == "own" else numbers
        return found.astype(np.float32)
    assert not isinstance(column, Undeclared | Text)
    count = len(column.bins) + 1 if isinstance(column, Number) else len(column.values or ()) + column.other
    places = np.arange(-1 if column.missing == "own" else 0, count, dtype=np.float32)
    indicators: NDArray[np.float32] = (codes[:, None] == places).astype(np.float32)
    return indicators


def _expand_text(column: Text, codes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return indicators of the n-grams' buckets, scaled to norm 1; a text without any has zeros."""
    count = np.maximum((codes >= 0).sum(axis=1, keepdims=True), 1)
    found = np.zeros((len(codes), (column.buckets or 2) + 1), dtype=np.float32)
    np.put_along_axis(found, (codes + 1).astype(np.int64), 1.0, axis=1)  # the first place is for none
    scaled: NDArray[np.float32] = (found[:, 1:] / np.sqrt(count)).astype(np.float32)
    return scaled


def _labels(title: str, column: Column) -> list[str]:
    if isinstance(column, Text):
        return [f"{title} bucket {place}" for place in range(column.buckets or 2)]
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
