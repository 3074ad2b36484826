"""Protocols: which participant exchanges parameters with the server, when (Shokri & Shmatikov 2015, section 5.5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tacit.randomness import Source

STALE = 0.5
"""How likely it is in an asynchronous simulation that a participant works on outdated parameters."""


class Protocol(StrEnum):
    """Round robin: one after the other in fixed order. Random order: one at a time, under a lease, in an order drawn
    anew each epoch. Asynchronous: participants do not wait, so that a download may be outdated.
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
    """Yield the exchanges of one epoch of a simulation; everybody has one."""
    if protocol is Protocol.ROUND_ROBIN:
        yield from (Turn(number) for number in range(participants))
        return
    order = source.permutation(participants).tolist()
    late = source.uniform(participants) < STALE
    for position, number in enumerate(order):
        yield Turn(number, stale=protocol is Protocol.ASYNCHRONOUS and bool(late[position]))


class LeaseHeld(ValueError):
    """Another participant holds the server's lease at the moment; try again later."""


class Lease:
    """The lock of the random order: taken before the download, given back after the upload, and never held for ever.

    Time is whatever the caller's clock says, in seconds or anything else that does not go back. Tokens are numbered
    from ``first``: one that was given out before a restart must mean nothing afterwards.

    No participant gets it twice while another waits, so asking faster is of no use: a participant that asks again and
    again, at least every ``patience`` seconds, has it after each other one had it once. (Of those that wait, the one
    whose last turn was longest ago is never sent away.)
    """

    def __init__(self, duration: float, *, first: int = 0, patience: float = 10.0) -> None:
        if not 0 < duration < math.inf:
            raise ValueError(f"duration is {duration!r}; it must be a finite number above 0.")
        self._duration, self._patience = duration, patience
        self._holder: str | None = None
        self._expires = -math.inf
        self._token = first
        self._turns = 0
        self._had: dict[str, int] = {}  # the number of everybody's last turn
        self._waiting: dict[str, tuple[int, float]] = {}  # how many turns there had been, and when it asked last

    def acquire(self, participant: str, *, now: float) -> int:
        """Take the lease if it is free, has expired or is one's own; the number returned shows that one has it.

        A holder that asks again (it may have been restarted) gets another number for the time that is left.
        """
        held = self._holder is not None and now < self._expires
        if held and self._holder != participant:
            self._wait(participant, now)
            raise LeaseHeld(f"{self._holder!r} has the lease for another {self._expires - now:.0f} s.")
        if not held:
            last = self._had.get(participant, -1)
            for other, (since, asked) in self._waiting.items():
                if other != participant and now - asked < self._patience and last >= since:
                    self._wait(participant, now)
                    raise LeaseHeld(f"{other!r} has waited since before the last turn of {participant!r}.")
            self._turns += 1
            self._had[participant] = self._turns
            self._waiting.pop(participant, None)
            self._holder, self._expires = participant, now + self._duration
        self._token += 1
        return self._token

    def _wait(self, participant: str, now: float) -> None:
        since, asked = self._waiting.get(participant, (self._turns, now))
        self._waiting[participant] = (since if now - asked < self._patience else self._turns, now)

    def check(self, participant: str, token: int, *, now: float) -> None:
        """Refuse to go on if the lease has expired or passed to another participant since."""
        if self._holder != participant or token != self._token or now >= self._expires:
            raise LeaseHeld("the lease has expired or was given back; acquire it and download again.")

    def release(self, token: int) -> None:
        """Give the lease back; one that has passed on stays where it is."""
        if token == self._token:
            self._holder = None

    def leave(self, participant: str) -> None:
        """Wait no more for a participant that will not come, until it asks; a lease that it holds is free."""
        self._waiting.pop(participant, None)
        if self._holder == participant:
            self._holder = None

    def free(self, now: float) -> bool:
        """Return True if no participant holds it."""
        return self._holder is None or now >= self._expires

    def take_lapsed(self, now: float) -> str | None:
        """Return whose time has run out without an upload, once, and let go of the lease."""
        if self._holder is None or now < self._expires:
            return None
        lapsed, self._holder = self._holder, None
        return lapsed


class Rota:
    """The lease of the round robin: handed on in the order of ``names``, past those who do not come.

    The next participant has ``patience`` to ask for its turn; if it does not, the turn passes to the next that has
    asked, and the others do not wait for it again until it asks. A turn lasts ``duration``; a participant that lets it
    lapse loses its place, and the others do not wait for it either until it asks again.
    """

    def __init__(self, names: Sequence[str], duration: float, *, patience: float, first: int = 0) -> None:
        if not 0 < patience < math.inf:
            raise ValueError(f"patience is {patience!r}; it must be a finite number above 0.")
        self._names, self._patience = list(names), patience
        self._lease = Lease(duration, first=first, patience=0.0)  # whose turn it is is decided here
        self._absent: set[str] = set()
        self._asked: dict[str, float] = {}
        self._last = ""  # who had the turn before
        self._since: float | None = None  # when it became free

    def acquire(self, participant: str, *, now: float) -> int:
        """Return the turn, if it is this participant's."""
        if participant not in self._names:
            self._names.append(participant)
        self.take_lapsed(now)
        self._asked[participant] = now
        self._absent.discard(participant)
        if self._lease.free(now):
            if self._since is None:
                self._since = now
            due = self._due()
            if due != participant and now - self._since >= self._patience:
                self._absent |= {
                    name for name in self._names if now - self._asked.get(name, -math.inf) > self._patience
                }
                due, self._since = self._due(), now
            if due != participant:
                raise LeaseHeld(f"it is the turn of {due!r}.")
        token = self._lease.acquire(participant, now=now)
        self._last, self._since = participant, None
        return token

    def check(self, participant: str, token: int, *, now: float) -> None:
        """Refuse to go on if the turn has expired or passed on since."""
        self._lease.check(participant, token, now=now)

    def release(self, token: int) -> None:
        """End one's turn; one that has passed on stays where it is."""
        self._lease.release(token)

    def leave(self, participant: str) -> None:
        """Wait no more for a participant that will not come, until it asks."""
        self._lease.leave(participant)
        self._absent.add(participant)

    def take_lapsed(self, now: float) -> str | None:
        """Return who has let its turn lapse, once."""
        lapsed = self._lease.take_lapsed(now)
        if lapsed is not None:
            self._absent.add(lapsed)
        return lapsed

    def _due(self) -> str:
        start = self._names.index(self._last) + 1 if self._last in self._names else 0
        order = self._names[start:] + self._names[:start]
        return next(name for name in order if name not in self._absent)
