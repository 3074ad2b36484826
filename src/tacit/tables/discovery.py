"""Bounds and values of columns whose owner did not declare them, released with noise and charged to the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.ledger import Everyone, Ledger, Step
from tacit.mechanisms import CountsQuery, SumQuery
from tacit.randomness import Source
from tacit.tables.encoding import numeric, words
from tacit.tables.reading import Columns
from tacit.tables.schema import MOST_VALUES, Category, Column, Number, Schema

_EXPONENTS = range(-10, 41)
_EDGES = np.array([-math.inf, *(-(2.0**k) for k in reversed(_EXPONENTS)), *(2.0**k for k in _EXPONENTS), math.inf])
_FALSE_ALARM = 1e-3
_MOST_DIFFERENT = 2**21
"""Values of all columns together that are counted at once: some hundred megabytes at worst."""
_FEWEST_COUNTED = 65_536
_FEW = 30
_NOTHING = "(none found)"

Bins = NDArray[np.float64]
Pieces = Callable[[], Iterable[Columns]]
"""Reads the table from its beginning."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A share of all records, with the standard deviation of the noise on it."""

    share: float
    noise_std: float


class Discovery:
    """Looks at the records that release everything that is private in ``schema``.

    Classes of the target come first, in a look of their own: if they cannot be found, the rest is not paid for.

    Formal guarantee: the record is a row. For each private number it adds one to one bin of a histogram whose edges
    are fixed (powers of two), for each private category at most one to the count of one value, for an undeclared column
    both, and nothing where the entry is missing: the L2 sensitivity is 1 a query. Everyone takes part. A look with m
    queries, each with standard deviation s · sqrt(m), is one Gaussian mechanism of noise multiplier s. There are one or
    two looks; the s of two is ``noise_multiplier`` · sqrt(2), so that all of it is one Gaussian mechanism of
    ``noise_multiplier``. Values are released above a threshold, which adds ``slack`` to δ in all. What is made of the
    noisy counts, the type of an undeclared column included, is post-processing.

    Of more records than bounded memory can tell apart, values are counted for some only, each chosen by a coin of its
    own; that can only lower what is charged, and is not made use of.
    """

    def __init__(self, schema: Schema, *, noise_multiplier: float, slack: float) -> None:
        self._schema = schema
        self._wanted = {name: schema.columns[name] for name in schema.private}
        apart = [{name: column} for name, column in self._wanted.items() if name == schema.target]
        rest = {name: column for name, column in self._wanted.items() if name != schema.target}
        parts = [*apart, *([rest] if rest else [])]
        texts = sum(not isinstance(column, Number) for column in self._wanted.values())
        noise = noise_multiplier * math.sqrt(len(parts))
        self._looks = [_Look(part, noise, slack / max(texts, 1)) for part in parts]
        self._classes: _Look | None = self._looks[0] if apart else None

    def steps(self, unit: str) -> list[Step]:
        """Return what the looks will be in the ledger."""
        return [look.step(unit) for look in self._looks]

    @property
    def least(self) -> Schema:
        """A schema with the fewest features that what is found can be cut down to."""
        return self._with({name: _least(column, name == self._schema.target) for name, column in self._wanted.items()})

    @property
    def records_needed(self) -> float:
        """With fewer records, two classes cannot be expected to pass the threshold; 0 if they are declared."""
        return 0.0 if self._classes is None else 2 * self._classes.threshold

    def find_classes(self, pieces: Pieces, *, records: int, ledger: Ledger, source: Source) -> Estimate | None:
        """Release the target's classes if they are private; return the share of records of classes not found."""
        if self._classes is None:
            return None
        self._classes.release(pieces, records=records, ledger=ledger, source=source)
        return self._missed(self._classes.values[self._schema.target], records)

    def release(
        self, pieces: Pieces, *, records: int, ledger: Ledger, source: Source, fits: Callable[[Schema], bool]
    ) -> tuple[Schema, Estimate | None]:
        """Release what is left and return the schema, and the share of records whose class it does not have.

        Of values, the commonest are kept: as many as make a schema that fits.
        """
        for look in self._looks:
            if not look.released:
                look.release(pieces, records=records, ledger=ledger, source=source)
        most = MOST_VALUES
        while most > 1 and not fits(self._found(most)):
            most //= 2
        schema = self._found(most)
        if self._classes is None:
            return schema, None
        counts = self._classes.values[schema.target]
        return schema, self._missed({name: counts[name] for name in schema.classes if name in counts}, records)

    def _missed(self, counts: Mapping[str, float], records: int) -> Estimate:
        """Return the share of records of other classes, from released counts: post-processing."""
        assert self._classes is not None
        noise = self._classes.std / self._classes.share * math.sqrt(len(counts)) / records
        return Estimate(share=min(max(1 - sum(counts.values()) / records, 0.0), 1.0), noise_std=noise)

    def _found(self, most: int) -> Schema:
        columns: dict[str, Column | None] = {}
        for look in self._looks:
            for name, column in look.wanted.items():
                least = 2 if name == self._schema.target else 1
                values = look.values.get(name, {})
                columns[name] = _column(column, look.bins.get(name), values, look.std, max(most, least))
        return self._with(columns)

    def _with(self, found: Mapping[str, Column | None]) -> Schema:
        columns = {name: found.get(name, column) for name, column in self._schema.columns.items()}
        known = {name: column for name, column in columns.items() if column is not None}
        if len(known) < 2:
            raise ValueError(
                "no column but the target stood out of the noise; declare some, or give more records or a larger "
                "epsilon."
            )
        return replace(self._schema, columns=known)


class _Look:
    """One look at everyone for some columns: histograms of their numbers, thresholded counts of their values."""

    def __init__(self, wanted: Mapping[str, Column], noise_multiplier: float, slack: float) -> None:
        self.wanted = wanted
        numbers = [name for name, column in wanted.items() if not isinstance(column, Category)]
        texts = [name for name, column in wanted.items() if not isinstance(column, Number)]
        self.std = std = noise_multiplier * math.sqrt(len(numbers) + len(texts))
        self._sums = {name: SumQuery(group=f"bounds/{name}", clip_norm=1.0, noise_std=std) for name in numbers}
        self._tallies = {name: CountsQuery(group=f"values/{name}", noise_std=std, slack=slack) for name in texts}
        self.released, self.share = False, 1.0
        self.bins: dict[str, Bins] = {}
        self.values: dict[str, dict[str, float]] = {}

    def step(self, unit: str) -> Step:
        sums = [query.event() for query in self._sums.values()]
        return Step(Everyone(unit=unit), (*sums, *(tally.event() for tally in self._tallies.values())))

    @property
    def threshold(self) -> float:
        """The height that a count of values must pass."""
        return max(tally.event().threshold for tally in self._tallies.values())

    def release(self, pieces: Pieces, *, records: int, ledger: Ledger, source: Source) -> None:
        """Charge the look, then look: `bins` and `values` are what was released."""
        receipt = ledger.record(self.step(ledger.header.unit), secure=source.secure)
        receipt.draw()
        self.released = True
        totals = {name: query.total((len(_EDGES) - 1,)) for name, query in self._sums.items()}
        counts: dict[str, Counter[str]] = {name: Counter() for name in self._tallies}
        share = min(1.0, max(_FEWEST_COUNTED, _MOST_DIFFERENT // max(len(counts), 1)) / records)
        for first, piece in _numbered(pieces()):
            for name, total in totals.items():
                column = self.wanted[name]
                text = column.text if isinstance(column, Number) else "missing"
                total.add(histogram(numeric(name, piece[name], first=first, text=text)))
            counted = source.uniform(len(next(iter(piece.values())))) < share
            for name, counter in counts.items():
                _tally(counter, piece[name][counted])
        self.share = share
        self.bins = {name: total.release(receipt, source).numpy() for name, total in totals.items()}
        for name, tally in self._tallies.items():
            found = tally.release(receipt, counts[name], source)
            self.values[name] = {value: count / share for value, count in found.items()}  # of everyone again


def _least(column: Column, target: bool) -> Column:
    if isinstance(column, Number):
        return replace(column, low=-1.0, high=1.0)
    return _category(column, {_NOTHING: 1.0} | ({"(nor a second)": 1.0} if target else {}), 2)


def _category(column: Column, values: Mapping[str, float], most: int) -> Category:
    """The values with the largest noisy counts, in the order they were in, and the one that missing entries have."""
    kept = set(sorted(values, key=lambda value: -values[value])[:most])
    names = [value for value in values if value in kept] or [_NOTHING]
    if column.missing not in ("refuse", "own", *names):
        names.append(str(column.missing))
    return Category(values=tuple(names), other=True, missing=column.missing)


def _column(column: Column, bins: Bins | None, values: Mapping[str, float], std: float, most: int) -> Column | None:
    """What a column is, by noisy counts of its numbers and of its values; None if nothing stands out of the noise."""
    if isinstance(column, Category) or bins is None:
        return _category(column, values, most)
    low, high = bounds(bins, std)
    if isinstance(column, Number):
        return replace(column, low=low, high=high)
    numbers, named = float(bins[bins > _height(std, len(bins))].sum()), sum(values.values())
    if values and (len(values) <= _FEW or numbers < named) and named > 0.8 * numbers:
        return _category(column, values, most)
    return Number(low=low, high=high, missing="own", text="missing") if numbers > 0 else None


def _tally(counter: Counter[str], entries: NDArray[np.generic]) -> None:
    values, numbers = np.unique(words(entries), return_counts=True)
    counter.update({str(value): int(number) for value, number in zip(values, numbers) if value != ""})


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
