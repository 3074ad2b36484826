"""Rounds of masked uploads, as the server sees them: who has enrolled, who has sent, and when to give up.

A state machine without I/O. Nothing of a round outlives a restart: it is then abandoned, like one whose participants do
not all send in time. The server only ever applies a sum that is complete.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
from cryptography import x509

from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network.codec import ROUND_BYTES
from tacit.collaboration.network.masking import (
    MOST,
    Card,
    Goodbye,
    Words,
    among,
    canonical,
    check_card,
    check_goodbye,
    context_of,
    decode,
    pack_roster,
    places,
)
from tacit.collaboration.refusals import Reason, Refused

NAME = "(pool)"
"""Under which sums are applied; no participant can have it."""
HELD, APPLIED = b"\x02", b"\x00"
_REMEMBERED = 100


@dataclass(kw_only=True)
class Round:
    """One of them; ``closed`` is when nobody more could enrol, or when somebody left last.

    ``first`` is what it was called before anybody left; that, and who was in it then, never changes once it is closed.
    """

    id: bytes
    first: bytes
    opened: float
    cards: dict[str, Card] = field(default_factory=dict)
    closed: float | None = None
    gone: dict[str, Goodbye] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)  # among whomever: they cannot leave any more
    parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def waited_for(self) -> int:
        """How many must send."""
        return len(self.cards) - len(self.gone)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A complete one."""

    round_id: bytes
    indices: Positions
    values: Vector
    participants: tuple[str, ...]


class Pool:
    """``least`` participants enrol, at most ``MOST``; ``patience`` seconds after the first did, or when ``everybody``
    has, the round is closed to more; then all of them have ``duration`` seconds to send. Whoever has sent nothing can
    leave: the others then send again, among themselves, as long as they are ``least``.
    """

    def __init__(
        self, *, collaboration: str, least: int, size: int, count: int, bound: float, patience: float, duration: float,
        everybody: Callable[[], Collection[str]],
    ) -> None:  # fmt: skip
        self._collaboration = collaboration
        self.authority: x509.Certificate | None = None  # who vouches for keys; without it, only the others check them
        self._least, self._size, self._count, self._bound = least, size, count, bound
        self._patience, self._duration, self._everybody = patience, duration, everybody
        self._round: Round | None = None
        self._over: OrderedDict[bytes, bool] = OrderedDict()  # whether its sum was applied

    def current(self, now: float) -> bytes:
        """The round in which one can enrol; while another is being finished there is none."""
        self._advance(now)
        if self._round is None:
            name = secrets.token_bytes(ROUND_BYTES)
            self._round = Round(id=name, first=name, opened=now)
        if self._round.closed is not None:
            raise Refused(Reason.WAIT, "a round is being finished; try again later.")
        return self._round.id

    def enrol(self, name: str, round_id: bytes, card: Card, now: float) -> None:
        """Take part. Whoever was restarted before the round closed can come with another key."""
        found = self._find(round_id, now)
        if found.closed is not None or (name not in found.cards and len(found.cards) == MOST):
            raise Refused(Reason.ROUND, "the round is closed; join the next.")
        if self.authority is not None:
            owner = check_card(card, self.authority, context_of(self._collaboration, round_id))
            if owner != name:
                raise Refused(Reason.UNKNOWN, f"the round's key is that of {owner!r}, not of {name!r}.")
        taken = {canonical(other.public) for who, other in found.cards.items() if who != name}
        if canonical(card.public) in taken:
            raise Refused(Reason.UNKNOWN, "somebody else in the round has the same key.")
        if not found.cards:
            found.opened = now
        found.cards[name] = card
        self._advance(now)

    def roster(self, name: str, round_id: bytes, now: float) -> bytes:
        """Everybody's keys, once nobody more can enrol, and the goodbyes of those who have left since."""
        found = self._find(round_id, now, first=True)
        if name not in found.cards:
            raise Refused(Reason.ROUND, "one must enrol in a round to see who is in it.")
        if found.closed is None:
            raise Refused(Reason.WAIT, f"the round has {len(found.cards)} participants so far; try again later.")
        return pack_roster([found.cards[who] for who in sorted(found.cards)], list(found.gone.values()))

    def leave(self, name: str, round_id: bytes, signature: bytes, now: float) -> None:
        """Let somebody go that has sent nothing. What the others have sent so far is of no use then."""
        found = self._find(round_id, now, first=True)
        if name not in found.cards or name in found.sent:
            raise Refused(Reason.ROUND, "only who has enrolled in a round, and sent nothing yet, can leave it.")
        if found.closed is None:
            del found.cards[name]
            return
        if name in found.gone:
            return
        check_goodbye(found.cards[name], signature, context_of(self._collaboration, found.first))
        goodbye = Goodbye(place=sorted(found.cards).index(name), signature=signature)
        found.gone[name] = goodbye
        found.id, found.closed = among(found.id, [goodbye]), now
        found.parts.clear()
        if found.waited_for < max(self._least, 2):
            self._end(applied=False)

    def send(self, name: str, round_id: bytes, data: bytes, now: float) -> Sum | None:
        """Keep a masked upload; the sum when it was the last. What was sent once cannot be changed."""
        found = self._find(round_id, now)
        if found.closed is None or name not in found.cards or name in found.gone:
            raise Refused(Reason.ROUND, "one must enrol in a round, and see who is in it, to send.")
        if len(data) != 8 * self._count:
            raise Refused(
                Reason.SHAPE, f"the upload has {len(data)} bytes; {self._count} numbers take {8 * self._count}."
            )
        if found.parts.setdefault(name, data) != data:
            raise Refused(Reason.REPLAYED, "another upload was sent for this round before.")
        found.sent.add(name)
        if len(found.parts) < found.waited_for:
            return None
        self._end(applied=False)  # until `applied` says otherwise
        total: Words = np.zeros(self._count, dtype=np.uint64)
        for part in found.parts.values():
            total += np.frombuffer(part, dtype="<u8")
        return Sum(
            round_id=round_id,
            indices=places(found.first, size=self._size, count=self._count),
            values=decode(total, self._bound, terms=len(found.parts)),
            participants=tuple(sorted(found.parts)),
        )

    def applied(self, round_id: bytes) -> None:
        """The sum is in the parameters."""
        self._over[round_id] = True

    def outcome(self, round_id: bytes, now: float) -> bytes:
        """`APPLIED`, or refused: not yet, or never."""
        self._advance(now)
        if self._over.get(round_id):
            return APPLIED
        if self._round is not None and self._round.id == round_id:
            raise Refused(Reason.WAIT, "the round is not finished; try again later.")
        raise Refused(Reason.ROUND, "the round was abandoned.")

    def _find(self, round_id: bytes, now: float, *, first: bool = False) -> Round:
        """The round of this name; that which it had ``first`` if that is asked for."""
        self._advance(now)
        if self._round is None or round_id != (self._round.first if first else self._round.id):
            raise Refused(Reason.ROUND, "the round is over, or somebody has left it.")
        return self._round

    def _advance(self, now: float) -> None:
        """Close or give up what has waited long enough."""
        found = self._round
        if found is None:
            return
        everybody = set(self._everybody())
        if found.closed is None:
            for name in found.cards.keys() - everybody:  # revoked
                del found.cards[name]
            waited = bool(found.cards) and now - found.opened >= self._patience
            complete = everybody <= set(found.cards)
            if len(found.cards) >= self._least and (waited or complete):
                found.closed = now
        elif (
            now - found.closed >= self._duration
            or found.cards.keys() - found.gone.keys() - found.parts.keys() - everybody
        ):
            self._end(applied=False)  # too late, or one that is waited for was revoked

    def _end(self, *, applied: bool) -> None:
        if self._round is not None:
            self._over[self._round.id] = applied
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
        self._round = None
