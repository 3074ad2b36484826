"""Records in groups that take turns, for noise that is correlated between steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tacit.block_keys import BlockKeys
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

    A block has a name of its own in the ledger, drawn when the sampler is made, and keys from which the groups follow
    (`tacit.block_keys`). `restore` begins a new block, which is charged as another mechanism; with the keys of an old
    one, `go_on` continues it after the last step that the ledger has of it. Work is O(records) once a block and
    O(records / groups) in each step.
    """

    def __init__(self, records: int, *, groups: int, rate: float, source: Source, unit: str = "example") -> None:
        self.keys = BlockKeys(source)
        """The secrets of the block."""
        self._event = CyclicPoisson(groups=groups, rate=rate, block=self.keys.name, records=records, unit=unit)
        if groups > records:
            raise ValueError(f"groups is {groups}; it must be at most the number of records, {records}.")
        self._source, self._records, self._draws = source, records, 0
        self.position = 0
        """The number of steps of this block so far, with the current one."""
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
        number = self.position
        self.position += 1  # first: a draw that is interrupted stays charged as this step, which is passed over
        self._draws += 1
        if not self._members:
            self._members = self._assigned()
        members = self._members[number % self._event.groups]
        if event.rate == 1:
            return members
        return members[self._source.uniform(len(members)) < event.rate]

    def _assigned(self) -> list[Integers]:
        """Draw every record's group; return the records of each group in increasing order."""
        coins = self.keys.groups().integers(self._event.groups, self._records)
        ends = np.cumsum(np.bincount(coins, minlength=self._event.groups))
        return np.split(np.argsort(coins, kind="stable"), ends[:-1])

    def state(self) -> dict[str, Any]:
        return {"sampler": "cyclic", "records": self._records, "draws": self._draws, "block": self.keys.name}

    def restore(self, state: dict[str, Any]) -> None:
        numbers = {name: value for name, value in state.items() if name != "block"}
        check_state(numbers, {name: value for name, value in self.state().items() if name != "block"})
        self._draws = state["draws"]
        self._begin(BlockKeys(self._source), 0)

    def go_on(self, keys: BlockKeys, position: int) -> None:
        """Continue the block of these keys, of which ``position`` steps are in the ledger; the noise to come is new."""
        keys.go_on(position)
        self._begin(keys, position)

    def _begin(self, keys: BlockKeys, position: int) -> None:
        self.keys, self.position, self._members = keys, position, []
        self._event = replace(self._event, block=keys.name)
