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

from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network.codec import ROUND_BYTES
from tacit.collaboration.network.masking import MOST, Card, Words, decode, pack_roster, places
from tacit.collaboration.server import Reason, Refused

NAME = "(pool)"
"""Under which sums are applied; no participant can have it."""
HELD, APPLIED = b"\x02", b"\x00"
_REMEMBERED = 100


@dataclass(kw_only=True)
class Round:
    """One of them; ``closed`` is when nobody more could enrol."""

    id: bytes
    opened: float
    cards: dict[str, Card] = field(default_factory=dict)
    closed: float | None = None
    parts: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A complete one."""

    round_id: bytes
    indices: Positions
    values: Vector
    participants: tuple[str, ...]


class Pool:
    """``least`` participants enrol, at most ``MOST``; ``patience`` seconds after the first did, or when ``everybody``
    has, the round is closed to more; then all of them have ``duration`` seconds to send.
    """

    def __init__(
        self, *, least: int, size: int, count: int, bound: float, patience: float, duration: float,
        everybody: Callable[[], Collection[str]],
    ) -> None:  # fmt: skip
        self._least, self._size, self._count, self._bound = least, size, count, bound
        self._patience, self._duration, self._everybody = patience, duration, everybody
        self._round: Round | None = None
        self._over: OrderedDict[bytes, bool] = OrderedDict()  # whether its sum was applied

    def current(self, now: float) -> bytes:
        """The round in which one can enrol; while another is being finished there is none."""
        self._advance(now)
        if self._round is None:
            self._round = Round(id=secrets.token_bytes(ROUND_BYTES), opened=now)
        if self._round.closed is not None:
            raise Refused(Reason.WAIT, "a round is being finished; try again later.")
        return self._round.id

    def enrol(self, name: str, round_id: bytes, card: Card, now: float) -> None:
        """Take part. Whoever was restarted before the round closed can come with another key."""
        found = self._find(round_id, now)
        if found.closed is not None or (name not in found.cards and len(found.cards) == MOST):
            raise Refused(Reason.ROUND, "the round is closed; join the next.")
        if not found.cards:
            found.opened = now
        found.cards[name] = card
        self._advance(now)

    def roster(self, name: str, round_id: bytes, now: float) -> bytes:
        """Everybody's keys, once nobody more can enrol."""
        found = self._find(round_id, now)
        if name not in found.cards:
            raise Refused(Reason.ROUND, "one must enrol in a round to see who is in it.")
        if found.closed is None:
            raise Refused(Reason.WAIT, f"the round has {len(found.cards)} participants so far; try again later.")
        return pack_roster([found.cards[who] for who in sorted(found.cards)])

    def send(self, name: str, round_id: bytes, data: bytes, now: float) -> Sum | None:
        """Keep a masked upload; the sum when it was the last. What was sent once cannot be changed."""
        found = self._find(round_id, now)
        if found.closed is None or name not in found.cards:
            raise Refused(Reason.ROUND, "one must enrol in a round, and see who is in it, to send.")
        if len(data) != 8 * self._count:
            raise Refused(
                Reason.SHAPE, f"the upload has {len(data)} bytes; {self._count} numbers take {8 * self._count}."
            )
        if found.parts.setdefault(name, data) != data:
            raise Refused(Reason.REPLAYED, "another upload was sent for this round before.")
        if len(found.parts) < len(found.cards):
            return None
        self._end(applied=False)  # until `applied` says otherwise
        total: Words = np.zeros(self._count, dtype=np.uint64)
        for part in found.parts.values():
            total += np.frombuffer(part, dtype="<u8")
        return Sum(
            round_id=round_id,
            indices=places(round_id, size=self._size, count=self._count),
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

    def _find(self, round_id: bytes, now: float) -> Round:
        self._advance(now)
        if self._round is None or self._round.id != round_id:
            raise Refused(Reason.ROUND, "the round is over; join the next.")
        return self._round

    def _advance(self, now: float) -> None:
        """Close or give up what has waited long enough."""
        found = self._round
        if found is None:
            return
        if found.closed is None:
            waited = bool(found.cards) and now - found.opened >= self._patience
            complete = set(self._everybody()) <= set(found.cards)
            if len(found.cards) >= self._least and (waited or complete):
                found.closed = now
        elif now - found.closed >= self._duration:
            self._end(applied=False)

    def _end(self, *, applied: bool) -> None:
        if self._round is not None:
            self._over[self._round.id] = applied
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
        self._round = None
