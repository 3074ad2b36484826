"""Looks at everyone that release counts: of a column's numbers, of its values, of cells between its bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.ledger import Everyone, Ledger, Step
from tacit.mechanisms import CountsQuery, SumQuery
from tacit.randomness import Source
from tacit.tables.column_types import Seen
from tacit.tables.columns import Category, Column, Columns, Number
from tacit.tables.entries import numeric, words
from tacit.tables.histograms import COUNTS, EDGES, Array, counts, tree_counts
from tacit.tables.notation import KINDS, PLAIN, kinds

_MOST_DIFFERENT = 2**21
"""Values of all columns together that are counted at once: some hundred megabytes at worst."""
_FEWEST_COUNTED = 65_536
_ANY_NUMBER = Number(low=None, high=None, text="missing")

Pieces = Callable[[], Iterable[Columns]]
"""Reads the table from its beginning."""


class Look:
    """One look at everyone for some columns: histograms of their numbers, thresholded counts of their values."""

    def __init__(self, wanted: Mapping[str, Column], noise_multiplier: float, slack: float) -> None:
        self.wanted, self.share = wanted, 1.0
        numbers = [name for name, column in wanted.items() if not isinstance(column, Category)]
        texts = [name for name, column in wanted.items() if not isinstance(column, Number)]
        self.std = std = noise_multiplier * math.sqrt(len(numbers) + len(texts))
        self._sums = {name: SumQuery(group=f"bounds/{name}", clip_norm=1.0, noise_std=std) for name in numbers}
        self._tallies = {name: CountsQuery(group=f"values/{name}", noise_std=std, slack=slack) for name in texts}

    def step(self, unit: str) -> Step:
        """Return what it will be in the ledger."""
        sums = [query.event() for query in self._sums.values()]
        return Step(Everyone(unit=unit), (*sums, *(tally.event() for tally in self._tallies.values())))

    @property
    def threshold(self) -> float:
        """The height that a count of values must pass."""
        return max(tally.event().threshold for tally in self._tallies.values())

    def release(self, pieces: Pieces, *, records: int, ledger: Ledger, source: Source) -> dict[str, Seen]:
        """Charge the look, then look: return noisy histograms, and noisy counts of the values that pass, by column."""
        receipt = ledger.record(self.step(ledger.header.unit), secure=source.secure)
        receipt.draw()
        totals = {name: query.total((len(EDGES) - 1 + len(KINDS),)) for name, query in self._sums.items()}
        tallies: dict[str, Counter[str]] = {name: Counter() for name in self._tallies}
        self.share = share = min(1.0, max(_FEWEST_COUNTED, _MOST_DIFFERENT // max(len(tallies), 1)) / records)
        for first, piece in _numbered(pieces()):
            for name, total in totals.items():
                # A record is in one bin at most, so it adds a vector of norm 1 at most.
                total.add_bounded(torch.from_numpy(_bins(name, self.wanted[name], piece[name], first)))
            counted = source.uniform(len(next(iter(piece.values())))) < share
            for name, counter in tallies.items():
                _tally(counter, piece[name][counted])
        whole = {name: total.release(receipt, source).numpy() for name, total in totals.items()}
        released = {name: tally.release(receipt, tallies[name], source) for name, tally in self._tallies.items()}
        return {
            name: Seen(
                self.std,
                bins=whole[name][: len(EDGES) - 1] if name in whole else None,
                kinds=whole[name][len(EDGES) - 1 :] if name in whole else None,
                values={value: count / share for value, count in released.get(name, {}).items()},
                share=share,
            )
            for name in self.wanted
        }


class QuantileLook:
    """One look at everyone that counts, for every column, the records in 256 cells and in 16 groups of them."""

    def __init__(self, names: Sequence[str], noise_multiplier: float) -> None:
        # The noise is a billionth more than is planned for: with fewer columns sqrt rounds another way.
        self.std = noise_multiplier * math.sqrt(2 * len(names)) * (1 + 1e-9)
        self._sums = {
            name: SumQuery(group=f"quantiles/{name}", clip_norm=math.sqrt(2), noise_std=self.std) for name in names
        }

    def step(self, unit: str) -> Step:
        """Return what it will be in the ledger."""
        return Step(Everyone(unit=unit), tuple(query.event() for query in self._sums.values()))

    def release(
        self,
        pieces: Pieces,
        edges: Mapping[str, Array],
        declared: Mapping[str, Number],
        *,
        ledger: Ledger,
        source: Source,
    ) -> dict[str, Array]:
        """Charge the look, then look: return noisy counts. A ``declared`` number says how it is written."""
        receipt = ledger.record(self.step(ledger.header.unit), secure=source.secure)
        receipt.draw()
        totals = {name: query.total((COUNTS,)) for name, query in self._sums.items()}
        for first, piece in _numbered(pieces()):
            for name, total in totals.items():
                column = declared.get(name, _ANY_NUMBER)
                truths = name in declared
                numbers = numeric(
                    name, piece[name], first=first, text=column.text, notation=column.notation, truths=truths
                )
                # A record is in one cell and one group at most, so it adds a vector of norm sqrt(2) at most.
                total.add_bounded(torch.from_numpy(tree_counts(numbers, edges[name])))
        return {name: total.release(receipt, source).numpy() for name, total in totals.items()}


def _bins(name: str, column: Column, entries: NDArray[np.generic], first: int) -> Array:
    """Return how many entries are numbers in each bin, and how many others look like each of `KINDS`.

    An entry is in one place at most: a number in a bin, what is no number in a kind, what is missing nowhere.
    """
    declared = isinstance(column, Number)
    text, notation = (column.text, column.notation) if isinstance(column, Number) else ("missing", PLAIN)
    numbers = numeric(name, entries, first=first, text=text, notation=notation)
    others = np.zeros(len(KINDS))
    if not declared and entries.dtype.kind not in "fiub":
        others = kinds(entries[np.isnan(numbers)])
    return np.concatenate([counts(numbers), others])


def _tally(counter: Counter[str], entries: NDArray[np.generic]) -> None:
    values, numbers = np.unique(words(entries), return_counts=True)
    counter.update({str(value): int(number) for value, number in zip(values, numbers) if value != ""})


def _numbered(pieces: Iterable[Columns]) -> Iterator[tuple[int, Columns]]:
    first = 1
    for piece in pieces:
        yield first, piece
        first += len(next(iter(piece.values())))
