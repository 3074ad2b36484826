"""The phases of a round of masked uploads, and its state on the server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum

from tacit.collaboration.network.masking import Words
from tacit.collaboration.network.roster import Card, Roster
from tacit.collaboration.network.sharing import Deal
from tacit.collaboration.refusals import Reason, Refused


class Phase(IntEnum):
    """The phases, in order."""

    ENROLLING = 0
    DEALING = 1
    SENDING = 2
    VOUCHING = 3
    REVEALING = 4


WAITS = {
    Phase.ENROLLING: "participants to enrol",
    Phase.DEALING: "shares",
    Phase.SENDING: "uploads",
    Phase.VOUCHING: "signatures",
    Phase.REVEALING: "revealed shares",
}
"""Words for the messages that a round waits for in each phase."""


@dataclass(kw_only=True)
class Round:
    """One of them. ``since`` is when its phase began; places are those of the roster, which is known once it closed."""

    id: bytes
    since: float
    phase: Phase = Phase.ENROLLING
    cards: dict[str, Card] = field(default_factory=dict)
    roster: Roster | None = None
    left: set[int] = field(default_factory=set)  # who has said that it will not send
    deals: dict[int, Deal] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)  # of uploads, in which all of ``total`` is
    total: Words | None = None
    vouchers: dict[int, bytes] = field(default_factory=dict)
    revealed: dict[int, dict[int, bytes]] = field(default_factory=dict)

    @property
    def people(self) -> Roster:
        if self.roster is None:
            raise Refused(Reason.WAIT, f"the round has {len(self.cards)} participants so far; try again later.")
        return self.roster

    @property
    def survivors(self) -> tuple[int, ...]:
        """Return the places whose uploads are in the sum."""
        return tuple(sorted(self.digests))

    def done(self) -> Collection[int]:
        """Return the places that have done what the phase waits for."""
        done: dict[Phase, Collection[int]] = {
            Phase.DEALING: self.deals,
            Phase.SENDING: self.digests,
            Phase.VOUCHING: self.vouchers,
            Phase.REVEALING: self.revealed,
        }
        return done.get(self.phase, ())

    def waited_for(self) -> set[int]:
        """Return the places that could still do it."""
        before: dict[Phase, Collection[int]] = {Phase.DEALING: range(len(self.cards)), Phase.SENDING: self.deals}
        left = self.left if self.phase <= Phase.SENDING else set()
        return set(before.get(self.phase, self.survivors)) - set(self.done()) - left


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The exact sum, modulo 2^64, of what those who remained have sent."""

    round_id: bytes
    total: Words
    participants: tuple[str, ...]
