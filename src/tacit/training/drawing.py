"""Draw the records of a lot, put them in random order, share them among processes, and hand out batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.ledger import Receipt
from tacit.randomness import Integers, Source
from tacit.sampling import LotReader, Sampler, UserLot, UserSampler, batches
from tacit.training.run_settings import RunSettings
from tacit.training.team import Drawn, Team
from tacit.training.trial import Trial


@dataclass(frozen=True)
class Batch:
    """A batch of a lot, as the loop gets it."""

    data: Any
    rows: int
    """The number of rows, one for each record or microbatch."""
    real: int
    """The number of first rows that are records; the rest are padding with weight zero."""
    last: bool


class Drawing:
    """Draws lots with a run's sampler and hands them out."""

    def __init__(
        self, sampler: Sampler | UserSampler, reader: LotReader, source: Source, team: Team, trial: Trial, *, even: bool
    ) -> None:
        """``even``: every process hands out as many batches as the one with the most."""
        self._sampler, self._reader, self._source, self._team = sampler, reader, source, team
        self._trial, self._even = trial, even

    def batches(self, receipt: Receipt, settings: RunSettings) -> Iterator[Batch]:
        """Draw the lot of ``receipt`` and yield its batches, after those of the trial in the run's first lot."""
        own = self._team.share(lambda: self._draw(receipt, settings.microbatch_size))
        real, indices = len(own), _filled(own, settings)
        least = -(-len(indices) // settings.batch_size) or 1
        if self._even:
            least = self._team.most(least)
        for rows, batch in self._trial.batches(self._reader, own, settings.batch_size):
            yield Batch(batch, rows, rows, last=False)
        pieces = batches(indices, settings.batch_size, least=least)
        read = self._reader.read(indices, least=least)
        for number, (piece, batch) in enumerate(zip(pieces, read, strict=True), start=1):
            rows, before = len(piece) // settings.microbatch_size, (number - 1) * settings.batch_size
            count = rows if settings.max_lot_size is None else min(max(real - before, 0), rows)
            yield Batch(batch, rows, count, last=number == least)

    def _draw(self, receipt: Receipt, microbatch_size: int) -> Drawn:
        """Draw the examples of the lot in random order; the place in that order decides the process of each.

        Microbatch r has examples r·m to r·m + m - 1, fixed beforehand.
        """
        drawn = self._sampler.draw(receipt)
        indices = drawn.indices if isinstance(drawn, UserLot) else drawn
        indices = indices[random_order(len(indices), self._source)]
        processes = np.arange(len(indices)) % self._team.size
        if microbatch_size == 1:
            return indices, processes
        rows = indices[:, None] * microbatch_size + np.arange(microbatch_size)
        return rows.reshape(-1), np.repeat(processes, microbatch_size)


def _filled(indices: Integers, settings: RunSettings) -> Integers:
    """Return the examples of a lot, padded to a public number with the data set's first, at weight zero."""
    if settings.max_lot_size is None:
        return indices
    rows = -(-settings.max_lot_size // settings.batch_size) * settings.batch_size
    return np.concatenate([indices, np.zeros(rows - len(indices), dtype=indices.dtype)])


def random_order(records: int, source: Source) -> Integers:
    """Return the order in which the records of a lot are summed: Lemma 1 of docs/finite-precision.md.

    In the order of the data set, one record more would shift all that follow to other places in the sum, where they may
    be rounded another way. In random order it comes last and changes places with one other.
    """
    return source.permutation(records)
