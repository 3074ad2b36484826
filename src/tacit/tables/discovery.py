"""Bounds and values of columns whose owner did not declare them, released with noise and charged to the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.ledger import Everyone, Ledger, Step
from tacit.mechanisms import CountsQuery, SumQuery
from tacit.randomness import Source
from tacit.tables.encoding import numeric, words
from tacit.tables.reading import Columns
from tacit.tables.schema import Category, Number, Schema

_EXPONENTS = range(-10, 41)
_EDGES = np.array([-math.inf, *(-(2.0**k) for k in reversed(_EXPONENTS)), *(2.0**k for k in _EXPONENTS), math.inf])
_FALSE_ALARM = 1e-3
_MOST_DIFFERENT = 1_000_000
_NOTHING = "(none found)"

Pieces = Callable[[], Iterable[Columns]]
"""Reads the table from its beginning."""


def discover(
    pieces: Pieces, schema: Schema, *, noise_multiplier: float, slack: float, ledger: Ledger, source: Source
) -> Schema:
    """The schema with every private bound and list of values released, all from one look at the records.

    Formal guarantee: the record is a row. For each private number it adds one to one bin of a histogram whose edges
    are fixed (powers of two), for each private category one to the count of one value, and nothing where the entry is
    missing: the L2 sensitivity is 1 a column. Everyone takes part; m columns are m Gaussian queries on the same
    sample, each with standard deviation ``noise_multiplier`` · sqrt(m), together one Gaussian mechanism with that
    noise multiplier. Values of categories are released above a threshold, which adds ``slack`` to δ in all. What is
    made of the noisy counts is post-processing.
    """
    wanted = schema.private
    if not wanted:
        return schema
    std, share = noise_multiplier * math.sqrt(len(wanted)), slack / len(wanted)
    histograms: dict[str, SumQuery] = {}
    tallies: dict[str, CountsQuery] = {}
    for name in wanted:
        if isinstance(schema.columns[name], Number):
            histograms[name] = SumQuery(group=f"bounds/{name}", clip_norm=1.0, noise_std=std)
        else:
            tallies[name] = CountsQuery(group=f"values/{name}", noise_std=std, slack=share)
    events = [query.event() for query in histograms.values()], [tally.event() for tally in tallies.values()]
    receipt = ledger.record(Step(Everyone(unit=ledger.header.unit), (*events[0], *events[1])))
    receipt.draw()
    totals = {name: query.total((len(_EDGES) - 1,)) for name, query in histograms.items()}
    counts: dict[str, Counter[str]] = {name: Counter() for name in tallies}
    for first, piece in _numbered(pieces()):
        for name, total in totals.items():
            total.add(histogram(numeric(name, piece[name], first=first)))
        for name, counter in counts.items():
            _tally(name, counter, piece[name])
    columns = dict(schema.columns)
    for name, total in totals.items():
        low, high = bounds(total.release(receipt, source).numpy(), std)
        columns[name] = Number(low=low, high=high, missing=columns[name].missing)
    for name, tally in tallies.items():
        found = tuple(tally.release(receipt, counts[name], source))
        columns[name] = Category(values=found or (_NOTHING,), other=True, missing=columns[name].missing)
    return replace(schema, columns=columns)


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
    height = std * math.sqrt(2 * math.log(len(counts) / _FALSE_ALARM))
    full = np.flatnonzero(counts > height)
    if not len(full):
        return -1.0, 1.0
    finite = np.clip(_EDGES, -(2.0 ** _EXPONENTS[-1]) * 2, 2.0 ** _EXPONENTS[-1] * 2)
    low, high = float(finite[full[0]]), float(finite[full[-1] + 1])
    middle = len(_EDGES) // 2 - 1  # the bin around zero: a column of counts begins at 0, not at its lower edge
    return (0.0 if full[0] == middle else low), (0.0 if full[-1] == middle and full[0] != middle else high)


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
