"""Poisson lots of a largest size, for physical batches that all have one shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.ledger.events import TruncatedPoisson
from tacit.randomness import Integers, Source
from tacit.sampling.samplers import Drawable, PoissonSampler, mismatch


class TruncatedPoissonSampler(PoissonSampler):
    """Poisson lots of which at most ``most`` records, chosen at random, are kept.

    Proof obligation: inclusion as `PoissonSampler` draws it; a lot with no more than ``most`` records is left as it is
    (`tacit.accounting.truncation` charges for the chance of any other).
    """

    def __init__(self, records: int, rate: float, *, most: int, source: Source, unit: str = "example") -> None:
        super().__init__(records, rate, source=source, unit=unit)
        self._truncated = TruncatedPoisson(rate=rate, records=records, most=most, unit=unit)

    @property
    def most(self) -> int:
        return self._truncated.most

    def event(self) -> TruncatedPoisson:  # type: ignore[override]
        return self._truncated

    def at(self, rate: float) -> TruncatedPoisson:  # type: ignore[override]
        """The event of a step at another rate, for schedules."""
        own = self._truncated
        return TruncatedPoisson(rate=rate, records=own.records, most=own.most, unit=own.unit)

    def draw(self, receipt: Drawable) -> Integers:
        event, own = receipt.draw(), self._truncated
        if not isinstance(event, TruncatedPoisson) or event != self.at(event.rate):
            raise mismatch(event, own)
        self._draws += 1
        lot = self._choose(event.rate)
        return lot if len(lot) <= own.most else np.sort(lot[self._source.choice(len(lot), own.most)])

    def state(self) -> dict[str, Any]:
        return super().state() | {"sampler": "truncated poisson"}
