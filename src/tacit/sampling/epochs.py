"""Samplers that deal the records out over the lots of an epoch: each record's own coins choose its lots.

Random allocation (balls in bins) is what shuffled training almost is, and as cheap. `AllocationSampler` records it as
such, and its amplification is charged; `ShuffledSampler` records shuffled lots, for which none is claimed.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.ledger.events import Allocated, Sampling, Shuffled
from tacit.randomness import Integers, Source
from tacit.sampling.samplers import Drawable, check_state, mismatch


class EpochSampler:
    """Deals the records out over ``lots`` lots each epoch; the lots are taken one after another.

    Proof obligation: within an epoch of one partition a record is in exactly ``participations`` lots, and in which is
    uniform among the sets of so many, independent of the other records, of how many there are and of earlier epochs.
    So one record more or fewer changes the lots that it is in, and every other lot is the same set
    (`tacit.accounting.composition` builds on that). Lots cut from a shuffled list to equal sizes do not have this
    property: with one record fewer the cuts move, and records change lots.

    To keep the obligation after a crash, the partition has a name of its own in the ledger, drawn when the sampler is
    made; `restore` does not bring back a half-used partition (that would mean storing who was in which lot) but begins
    the next epoch of a new one. Lots that were never taken can only make the guarantee better.

    A lot's size is binomial, as secret as the lot, and may be zero. Work is O(records) once an epoch.
    """

    _name = "epoch"

    def __init__(self, event: Shuffled | Allocated, participations: int, source: Source) -> None:
        if event.lots > event.records * participations:
            raise ValueError(
                f"lots is {event.lots}; it must be at most the number of records, {event.records}"
                + (f", times {participations} participations." if participations > 1 else ".")
            )
        self._event, self._participations = event, participations
        self._source, self._position, self._draws = source, 0, 0
        self._lots: list[Integers] = []

    @property
    def records(self) -> int:
        return self._event.records

    @property
    def expected(self) -> float:
        return self._event.records * self._participations / self._event.lots

    @property
    def epoch(self) -> int:
        return self._event.epoch

    def event(self) -> Sampling:
        return self._event

    def draw(self, receipt: Drawable) -> Integers:
        event = receipt.draw()
        if event != self._event:
            raise mismatch(event, self._event)
        number = self._position
        self._position += 1  # first: a draw that is interrupted stays charged as this lot, which is passed over
        self._draws += 1
        try:
            if not self._lots:
                self._lots = self._assign()
            return self._lots[number]
        finally:
            if self._position == self._event.lots:
                self._next_epoch(self._event.epoch + 1, self._event.partition)

    def _assign(self) -> list[Integers]:
        """Draw every record's lots; return the records of each lot in increasing order."""
        coins = self._coins()
        ends = np.cumsum(np.bincount(coins.ravel(), minlength=self._event.lots))
        order = np.argsort(coins.ravel(), kind="stable")
        return np.split(order // self._participations, ends[:-1])

    def _coins(self) -> Integers:
        """Draw ``participations`` different lots for each record, by Floyd's algorithm: every set equally likely."""
        lots, many = self._event.lots, self._participations
        chosen = np.empty((self.records, many), dtype=np.int64)
        for column, last in enumerate(range(lots - many, lots)):
            coin = self._source.integers(last + 1, self.records)
            taken = (chosen[:, :column] == coin[:, None]).any(axis=1)
            chosen[:, column] = np.where(taken, last, coin)
        return chosen

    def _next_epoch(self, epoch: int, partition: str) -> None:
        self._event = replace(self._event, epoch=epoch, partition=partition)
        self._position, self._lots = 0, []

    def state(self) -> dict[str, Any]:
        used = self._event.epoch + (self._position > 0)
        return {"sampler": self._name, "records": self.records, "draws": self._draws, "epoch": used}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, self.state())
        self._draws = state["draws"]
        self._next_epoch(state["epoch"], _fresh())


class ShuffledSampler(EpochSampler):
    """Each record is in one lot an epoch; recorded as shuffled lots, for which no amplification is claimed."""

    _name = "shuffled"

    def __init__(self, records: int, lots: int, *, source: Source, unit: str = "example") -> None:
        event = Shuffled(lots=lots, epoch=0, records=records, partition=_fresh(), unit=unit, assignment="independent")
        super().__init__(event, 1, source)


class AllocationSampler(EpochSampler):
    """Each record is in exactly ``participations`` of the ``lots`` lots of an epoch: random allocation."""

    _name = "allocation"

    def __init__(
        self, records: int, lots: int, *, participations: int = 1, source: Source, unit: str = "example"
    ) -> None:
        event = Allocated(
            lots=lots, epoch=0, records=records, participations=participations, partition=_fresh(), unit=unit
        )
        super().__init__(event, participations, source)


def _fresh() -> str:
    return f"main-{secrets.token_hex(8)}"
