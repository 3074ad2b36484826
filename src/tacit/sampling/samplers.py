"""Samplers. A sampler draws only against a receipt: the ledger has the event before any record is chosen.

A sampler knows the number of records, not their content, and returns the numbers of the chosen ones. `Sampler.event`
is the event to record; `Sampler.draw` takes its parameters from the event that *was* recorded, and refuses one it
would not be telling the truth about, so what the ledger says and what happened cannot differ.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from tacit.ledger.events import Everyone, FixedSize, Poisson, Sampling
from tacit.randomness import Integers, Source


class Drawable(Protocol):
    """The part of a receipt that a sampler needs: the recorded sampling event, handed out once."""

    def draw(self) -> Sampling: ...


class Sampler(Protocol):
    """The interface of a sampler."""

    @property
    def records(self) -> int: ...

    @property
    def expected(self) -> float:
        """The expected lot size: the public divisor of every mean."""
        ...

    def event(self) -> Sampling: ...

    def draw(self, receipt: Drawable) -> Integers: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class EveryoneSampler:
    """Every record takes part: no sampling, for statistics of the whole data set and full-batch training."""

    def __init__(self, records: int, *, unit: str = "example") -> None:
        if isinstance(records, bool) or not isinstance(records, int) or records < 1:
            raise ValueError(f"records is {records!r}; it must be a whole number, at least 1.")
        self._event = Everyone(unit=unit)
        self._records, self._draws = records, 0

    @property
    def records(self) -> int:
        return self._records

    @property
    def expected(self) -> float:
        return float(self._records)

    def event(self) -> Everyone:
        return self._event

    def draw(self, receipt: Drawable) -> Integers:
        event = receipt.draw()
        if event != self._event:
            raise mismatch(event, self._event)
        self._draws += 1
        return np.arange(self._records)

    def state(self) -> dict[str, Any]:
        return {"sampler": "everyone", "records": self._records, "draws": self._draws}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, self.state())
        self._draws = state["draws"]


class PoissonSampler:
    """Each record takes part with probability ``rate``, independently of everything else: what most proofs assume.

    The gaps between chosen records are geometric, so a draw costs O(lot) whatever the number of records. The lot size
    is random and may be zero; it is as secret as the lot. ``draw`` uses the rate of the recorded event, which may
    therefore change from step to step; `at` gives the event for another rate.

    Proof obligation: inclusion is independent between records and steps, with the recorded probability (to a relative
    error of about 2^-50).
    """

    def __init__(self, records: int, rate: float, *, source: Source, unit: str = "example") -> None:
        self._event = Poisson(rate=rate, records=records, unit=unit)
        self._records, self._source, self._draws = records, source, 0

    @property
    def records(self) -> int:
        return self._records

    @property
    def expected(self) -> float:
        return self._event.rate * self._records

    def event(self) -> Poisson:
        return self._event

    def at(self, rate: float) -> Poisson:
        """The event of a step at another rate, for schedules."""
        return Poisson(rate=rate, records=self._records, unit=self._event.unit)

    def draw(self, receipt: Drawable) -> Integers:
        event = receipt.draw()
        if (
            not isinstance(event, Poisson)
            or event.records not in (None, self._records)
            or event.unit != self._event.unit
        ):
            raise mismatch(event, self._event)
        self._draws += 1
        return self._choose(event.rate)

    def _choose(self, rate: float) -> Integers:
        if rate == 1:
            return np.arange(self._records)
        mean = rate * self._records
        lots, last = [], -1
        while last < self._records:  # almost always once: the margin is eight standard deviations
            gaps = self._source.gaps(rate, math.ceil(mean + 8 * math.sqrt(mean) + 16))
            lots.append(last + np.cumsum(np.minimum(gaps, self._records) + 1))
            last = int(lots[-1][-1])
            mean = max(rate * (self._records - last), 0.0)
        lot = np.concatenate(lots)
        return lot[: np.searchsorted(lot, self._records)]

    def state(self) -> dict[str, Any]:
        return {"sampler": "poisson", "records": self._records, "draws": self._draws}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, self.state())
        self._draws = state["draws"]


class FixedSizeSampler:
    """Exactly ``size`` records, every set of that size equally likely, independently at each step; O(``size``) work.

    Proof obligation: uniform among the sets of the recorded size. The proofs for this sampling are under replace-one.
    """

    def __init__(self, records: int, size: int, *, source: Source, unit: str = "example") -> None:
        self._event = FixedSize(size=size, records=records, unit=unit)
        self._source, self._draws = source, 0

    @property
    def records(self) -> int:
        return self._event.records

    @property
    def expected(self) -> float:
        return float(self._event.size)

    def event(self) -> FixedSize:
        return self._event

    def at(self, size: int) -> FixedSize:
        """The event of a step with another lot size, for schedules."""
        return FixedSize(size=size, records=self._event.records, unit=self._event.unit)

    def draw(self, receipt: Drawable) -> Integers:
        event = receipt.draw()
        if not isinstance(event, FixedSize) or event.records != self._event.records or event.unit != self._event.unit:
            raise mismatch(event, self._event)
        self._draws += 1
        return np.sort(self._source.choice(event.records, event.size))

    def state(self) -> dict[str, Any]:
        return {"sampler": "fixed size", "records": self.records, "draws": self._draws}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, self.state())
        self._draws = state["draws"]


def mismatch(recorded: Sampling, own: Sampling) -> ValueError:
    """Return the error for an event that this sampler would not be telling the truth about."""
    return ValueError(f"the ledger has {recorded} but this sampler would draw {own}; record sampler.event() first.")


def check_state(state: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse the state of another kind of sampler, or of other records."""
    for name in ("sampler", "records"):
        if state.get(name) != own[name]:
            raise ValueError(f"the saved {name} is {state.get(name)!r} but this sampler has {own[name]!r}.")
    for name in own.keys() - {"sampler", "records"}:
        value = state.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"the saved {name} is {value!r}; it must be a whole number, at least 0.")
