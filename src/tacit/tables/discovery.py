"""Bounds and values of columns whose owner did not declare them, released with noise and charged to the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.ledger import Everyone, Ledger, Step
from tacit.mechanisms import CountsQuery, SumQuery
from tacit.randomness import Source
from tacit.tables.encoding import numeric, words
from tacit.tables.reading import Columns
from tacit.tables.schema import Category, Column, Number, Schema

_EXPONENTS = range(-10, 41)
_EDGES = np.array([-math.inf, *(-(2.0**k) for k in reversed(_EXPONENTS)), *(2.0**k for k in _EXPONENTS), math.inf])
_FALSE_ALARM = 1e-3
_MOST_DIFFERENT = 1_000_000
_FEW = 30
_NOTHING = "(none found)"

Pieces = Callable[[], Iterable[Columns]]
"""Reads the table from its beginning."""


def discover(
    pieces: Pieces, schema: Schema, *, noise_multiplier: float, slack: float, ledger: Ledger, source: Source
) -> Schema:
    """The schema with everything that is private released, all from one look at the records.

    Formal guarantee: the record is a row. For each private number it adds one to one bin of a histogram whose edges
    are fixed (powers of two), for each private category one to the count of one value, for an undeclared column both,
    and nothing where the entry is missing: the L2 sensitivity is 1 a query. Everyone takes part; m queries are m
    Gaussian ones on the same sample, each with standard deviation ``noise_multiplier`` · sqrt(m), together one Gaussian
    mechanism with that noise multiplier. Values are released above a threshold, which adds ``slack`` to δ in all. What
    is made of the noisy counts, the type of an undeclared column included, is post-processing.
    """
    wanted = {name: schema.columns[name] for name in schema.private}
    if not wanted:
        return schema
    numbers = [name for name, column in wanted.items() if not isinstance(column, Category)]
    texts = [name for name, column in wanted.items() if not isinstance(column, Number)]
    std = noise_multiplier * math.sqrt(len(numbers) + len(texts))
    sums = {name: SumQuery(group=f"bounds/{name}", clip_norm=1.0, noise_std=std) for name in numbers}
    tallies = {name: CountsQuery(group=f"values/{name}", noise_std=std, slack=slack / len(texts)) for name in texts}
    events = [query.event() for query in sums.values()], [tally.event() for tally in tallies.values()]
    receipt = ledger.record(Step(Everyone(unit=ledger.header.unit), (*events[0], *events[1])), secure=source.secure)
    receipt.draw()
    totals = {name: query.total((len(_EDGES) - 1,)) for name, query in sums.items()}
    counts: dict[str, Counter[str]] = {name: Counter() for name in tallies}
    for first, piece in _numbered(pieces()):
        for name, total in totals.items():
            column = wanted[name]
            text = column.text if isinstance(column, Number) else "missing"
            total.add(histogram(numeric(name, piece[name], first=first, text=text)))
        for name, counter in counts.items():
            _tally(name, counter, piece[name])
    bins = {name: total.release(receipt, source).numpy() for name, total in totals.items()}
    values = {name: tally.release(receipt, counts[name], source) for name, tally in tallies.items()}
    columns: dict[str, Column] = {}
    for name, column in schema.columns.items():
        found = column if name not in wanted else _column(column, bins.get(name), values.get(name, {}), std)
        if found is not None:
            columns[name] = found
    return replace(schema, columns=columns)


def _column(column: Column, bins: NDArray[np.float64] | None, values: Mapping[str, float], std: float) -> Column | None:
    """What a column is, by noisy counts of its numbers and of its values; None if nothing stands out of the noise."""
    if isinstance(column, Category) or bins is None:
        return Category(values=tuple(values) or (_NOTHING,), other=True, missing=column.missing)
    low, high = bounds(bins, std)
    if isinstance(column, Number):
        return Number(low=low, high=high, missing=column.missing, text=column.text)
    numbers, named = float(bins[bins > _height(std, len(bins))].sum()), sum(values.values())
    if values and (len(values) <= _FEW or numbers < named) and named > 0.8 * numbers:
        return Category(values=tuple(values), other=True, missing="own")
    return Number(low=low, high=high, missing="own", text="missing") if numbers > 0 else None


def _tally(name: str, counter: Counter[str], entries: NDArray[np.generic]) -> None:
    values, numbers = np.unique(words(entries), return_counts=True)
    counter.update({str(value): int(number) for value, number in zip(values, numbers) if value != ""})
    if len(counter) > _MOST_DIFFERENT:
        raise ValueError(f"column {name!r} has more than {_MOST_DIFFERENT} different values; declare it, or ignore it.")


def bounds(counts: NDArray[np.float64], std: float) -> tuple[float, float]:
    """The outer edges of the bins that stand out of noise of this size; all noise, and it is [-1, 1].

    A bin of nobody stands out with probability below 0.001 in the whole histogram, whatever its size. Values beyond
    the bounds will count as the bounds.
    """
    full = np.flatnonzero(counts > _height(std, len(counts)))
    if not len(full):
        return -1.0, 1.0
    finite = np.clip(_EDGES, -(2.0 ** _EXPONENTS[-1]) * 2, 2.0 ** _EXPONENTS[-1] * 2)
    low, high = float(finite[full[0]]), float(finite[full[-1] + 1])
    middle = len(_EDGES) // 2 - 1  # the bin around zero: a column of counts begins at 0, not at its lower edge
    return (0.0 if full[0] == middle else low), (0.0 if full[-1] == middle and full[0] != middle else high)


def _height(std: float, bins: int) -> float:
    return std * math.sqrt(2 * math.log(bins / _FALSE_ALARM))


def histogram(numbers: NDArray[np.float64]) -> torch.Tensor:
    """One row a record, with a one in the bin its number is in."""
    rows = np.zeros((len(numbers), len(_EDGES) - 1), dtype=np.float32)
    there = np.flatnonzero(~np.isnan(numbers))
    rows[there, np.searchsorted(_EDGES, numbers[there], side="right") - 1] = 1.0
    return torch.from_numpy(rows)


def _numbered(pieces: Iterable[Columns]) -> Iterator[tuple[int, Columns]]:
    first = 1
    for piece in pieces:
        yield first, piece
        first += len(next(iter(piece.values())))
