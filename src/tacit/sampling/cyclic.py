"""Records in groups that take turns, for noise that is correlated between steps."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.ledger.events import CyclicPoisson
from tacit.randomness import Integers, Source
from tacit.sampling.samplers import Drawable, check_state, mismatch


class CyclicSampler:
    """Each record's own coin chooses one of ``groups`` groups for a whole block; the groups take turns, step by step.

    Of the group whose turn it is each record takes part with probability ``rate``, by another coin of its own: with
    rate 1 a record takes part in every ``groups``-th step, once an epoch, and with more groups than correlated steps a
    record's noise has died away before it comes again.

    Proof obligation: within a block the group of a record is uniform, fixed, and independent of the other records, of
    how many there are and of all that is released; in its turns it takes part independently, with the recorded
    probability, and in no other steps (`tacit.accounting.correlated` builds on that). The number of a step in its
    block is the number of draws before it, whether or not anything was released for them: `position`.

    A block has a name of its own in the ledger, drawn when the sampler is made. `restore` does not bring back a
    half-used block (that would mean storing who is in which group) but begins a new one, which is charged as another
    mechanism. Work is O(records) once a block and O(records / groups) in each step.
    """

    def __init__(self, records: int, *, groups: int, rate: float, source: Source, unit: str = "example") -> None:
        self._event = CyclicPoisson(groups=groups, rate=rate, block=_name(), records=records, unit=unit)
        if groups > records:
            raise ValueError(f"groups is {groups}; it must be at most the number of records, {records}.")
        self._source, self._records, self._draws = source, records, 0
        self.position = 0
        """The number of draws in this block."""
        self._members: list[Integers] = []

    @property
    def records(self) -> int:
        return self._records

    @property
    def expected(self) -> float:
        return self._event.rate * self._records / self._event.groups

    def event(self) -> CyclicPoisson:
        return self._event

    def draw(self, receipt: Drawable) -> Integers:
        event = receipt.draw()
        if event != self._event:
            raise mismatch(event, self._event)
        if not self._members:
            self._members = self._assigned()
        members = self._members[self.position % self._event.groups]
        self.position += 1
        self._draws += 1
        if event.rate == 1:
            return members
        return members[self._source.uniform(len(members)) < event.rate]

    def _assigned(self) -> list[Integers]:
        """Draw every record's group; return the records of each group in increasing order."""
        coins = self._source.integers(self._event.groups, self._records)
        ends = np.cumsum(np.bincount(coins, minlength=self._event.groups))
        return np.split(np.argsort(coins, kind="stable"), ends[:-1])

    def state(self) -> dict[str, Any]:
        return {"sampler": "cyclic", "records": self._records, "draws": self._draws}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, self.state())
        self._draws, self.position, self._members = state["draws"], 0, []
        self._event = replace(self._event, block=_name())


def _name() -> str:
    return f"block-{secrets.token_hex(8)}"
