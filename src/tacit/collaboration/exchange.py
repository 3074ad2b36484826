"""Who exchanges parameters with the server and when (Shokri & Shmatikov 2015, section 5.5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tacit.randomness import Source

STALE = 0.5
"""How likely it is in an asynchronous simulation that a participant works on outdated parameters."""


class Protocol(StrEnum):
    """Round robin: one after the other in fixed order. Random order: one at a time, under a lease, in an order drawn
    anew each epoch. Asynchronous: nobody waits, so that what was downloaded may be outdated.
    """

    ROUND_ROBIN = "round-robin"
    RANDOM_ORDER = "random-order"
    ASYNCHRONOUS = "asynchronous"


@dataclass(frozen=True)
class Turn:
    """One exchange: ``stale`` if what is downloaded was on the server when this participant came an epoch ago."""

    participant: int
    stale: bool = False


def turns(protocol: Protocol, participants: int, source: Source) -> Iterator[Turn]:
    """The exchanges of one epoch of a simulation; everybody has one."""
    if protocol is Protocol.ROUND_ROBIN:
        yield from (Turn(number) for number in range(participants))
        return
    order = source.permutation(participants).tolist()
    late = source.uniform(participants) < STALE
    for position, number in enumerate(order):
        yield Turn(number, stale=protocol is Protocol.ASYNCHRONOUS and bool(late[position]))


class LeaseHeld(ValueError):
    """Somebody else has the server to themselves at the moment; try again later."""


class Lease:
    """The lock of the random order: taken before the download, given back after the upload, and never held for ever.

    Time is whatever the caller's clock says, in seconds or anything else that does not go back.
    """

    def __init__(self, duration: float) -> None:
        if not 0 < duration < math.inf:
            raise ValueError(f"duration is {duration!r}; it must be a finite number above 0.")
        self._duration = duration
        self._holder: str | None = None
        self._expires = -math.inf
        self._token = 0

    def acquire(self, participant: str, *, now: float) -> int:
        """Take the lease if it is free or has expired; the number returned is what shows that one has it."""
        if self._holder is not None and now < self._expires:
            raise LeaseHeld(f"{self._holder!r} has the lease for another {self._expires - now:g}; try again later.")
        self._holder, self._expires, self._token = participant, now + self._duration, self._token + 1
        return self._token

    def check(self, token: int, *, now: float) -> None:
        """Refuse to go on if the lease has expired or passed to somebody else since."""
        if self._holder is None or token != self._token or now >= self._expires:
            raise LeaseHeld("the lease has expired or was given back; acquire it and download again.")

    def release(self, token: int) -> None:
        """Give the lease back; one that has passed on stays where it is."""
        if token == self._token:
            self._holder = None
