"""Means, standard deviations and correlations of a table's numbers, released with noise, and with the noise's size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.ledger import Everyone, Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Source
from tacit.tables.entries import numeric
from tacit.tables.looks import Pieces

Array = NDArray[np.float64]
Bounds = tuple[float, float]

_LOUDEST = 0.25
"""A correlation whose noise has a larger standard deviation is not told."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The mean and the standard deviation of a column, and the standard deviations of their noise.

    ``standard_deviation`` is None where it does not stand out of the noise. It is below ``standard_deviation_at_most``
    in all but one release of forty.
    """

    present: float
    mean: float
    mean_noise: float
    standard_deviation: float | None
    standard_deviation_noise: float | None
    standard_deviation_at_most: float


class Moments:
    """Two looks: sums of values and of who has one; then sums of squares and products of the distances to the means.

    Formal guarantee: values are scaled to [-1, 1], distances to released means likewise, and both are 0 where an entry
    is missing. So for k columns a record's values and indicators have an L2 norm of at most sqrt(2 k), its squares of
    at most sqrt(k), and its products, each pair once, of at most sqrt(k (k - 1) / 2). Rows beyond that are clipped. All
    sums together cost one Gaussian sum of ``noise_multiplier``.
    """

    def __init__(self, columns: int, noise_multiplier: float) -> None:
        norms = {"means": math.sqrt(2 * columns), "squares": math.sqrt(columns)}
        if columns > 1:
            norms["products"] = math.sqrt(columns * (columns - 1) / 2)
        loud = noise_multiplier * math.sqrt(len(norms))
        self.queries = [
            SumQuery(group=f"moments/{name}", clip_norm=norm, noise_std=loud * norm) for name, norm in norms.items()
        ]

    def steps(self, unit: str) -> tuple[Step, Step]:
        """Return both looks as they are recorded."""
        first, *others = (query.event() for query in self.queries)
        return Step(Everyone(unit=unit), (first,)), Step(Everyone(unit=unit), tuple(others))

    def release(
        self, pieces: Pieces, bounds: Mapping[str, Bounds], records: int, *, ledger: Ledger, source: Source
    ) -> tuple[dict[str, Summary], dict[str, dict[str, float | None]]]:
        """Release the summaries and correlations of columns between ``bounds``; values beyond count as the bound."""
        count, names = len(bounds), list(bounds)
        first, second = self.steps(ledger.header.unit)
        half = np.array([(high - low) / 2 for low, high in bounds.values()])
        middle = np.array([(high + low) / 2 for low, high in bounds.values()])
        [sums] = self._asked(first, self.queries[:1], self._values(pieces, bounds), ledger, source)
        present = np.clip(sums[count:], max(1.0, 2 * self.queries[0].noise_std), records)
        mean = np.clip(sums[:count] / present, -1, 1)
        reach = 1 + np.abs(mean)  # the farthest that a value between the bounds is from the mean
        pairs = np.triu_indices(count, 1)
        distances = self._distances(pieces, bounds, mean, reach)
        squares, *products = self._asked(second, self.queries[1:], distances, ledger, source)
        variance, variance_noise = squares / present, self.queries[1].noise_std / present
        known = variance > 2 * variance_noise
        summaries = {}
        for place, name in enumerate(names):
            scale = half[place] * reach[place]
            spread = math.sqrt(variance[place]) if known[place] else None
            at_most = math.sqrt(min(max(variance[place], 0.0) + 2 * variance_noise[place], 1.0))
            noise = None if spread is None else float(scale * variance_noise[place] / (2 * spread))
            summaries[name] = Summary(
                present=float(round(present[place])),
                mean=float(middle[place] + half[place] * mean[place]),
                mean_noise=float(half[place] * self.queries[0].noise_std * math.hypot(1, mean[place]) / present[place]),
                standard_deviation=None if spread is None else float(scale * min(spread, 1.0)),
                standard_deviation_noise=noise,
                standard_deviation_at_most=float(scale * at_most),
            )
        table: dict[str, dict[str, float | None]] = {name: {name: 1.0} for name in names}
        for at, (one, other) in enumerate(zip(*pairs, strict=True)):
            whole = math.sqrt(max(squares[one] * squares[other], 0.0))
            told = known[one] and known[other] and self.queries[2].noise_std <= _LOUDEST * whole
            related = round(float(np.clip(products[0][at] / whole, -1, 1)), 3) if told else None
            table[names[one]][names[other]] = table[names[other]][names[one]] = related
        return summaries, {name: {other: table[name][other] for other in names} for name in names}

    def _values(self, pieces: Pieces, bounds: Mapping[str, Bounds]) -> Any:
        for rows in _scaled(pieces, bounds):
            there = ~np.isnan(rows)
            yield [np.concatenate([np.where(there, rows, 0.0), there], axis=1)]

    def _distances(self, pieces: Pieces, bounds: Mapping[str, Bounds], mean: Array, reach: Array) -> Any:
        pairs = np.triu_indices(len(mean), 1)
        for rows in _scaled(pieces, bounds):
            far = np.nan_to_num((rows - mean) / reach)
            yield [far**2, far[:, pairs[0]] * far[:, pairs[1]]][: len(self.queries) - 1]

    @staticmethod
    def _asked(step: Step, queries: Sequence[SumQuery], chunks: Any, ledger: Ledger, source: Source) -> list[Array]:
        """Record a look, then add up the rows of all chunks and release their sums."""
        receipt = ledger.record(step, secure=source.secure)
        receipt.draw()
        totals = None
        for parts in chunks:
            totals = totals or [query.total((part.shape[1],)) for query, part in zip(queries, parts, strict=True)]
            for total, part in zip(totals, parts, strict=True):
                total.add(torch.from_numpy(part))
        assert totals is not None
        return [total.release(receipt, source).numpy() for total in totals]


def _scaled(pieces: Pieces, bounds: Mapping[str, Bounds]) -> Any:
    """Read rows of numbers scaled to [-1, 1], NaN where missing."""
    for piece in pieces():
        columns = []
        for name, (low, high) in bounds.items():
            entries = numeric(name, piece[name], text="missing")
            columns.append((np.clip(entries, low, high) - low) / (high - low) * 2 - 1)
        yield np.stack(columns, axis=1)
