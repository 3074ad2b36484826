"""A participant's seat in a round of masked uploads: what it asks the server, and checks, before and after it sends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.masking import Mask
from tacit.collaboration.network.roster import unpack_items, unpack_places, unpack_roster
from tacit.collaboration.refusals import Reason, Refused

log = logging.getLogger("tacit")

_ATTEMPTS = 5


class Asks(Protocol):
    """Anything that asks the server: a `Link`."""

    address: str

    def call(self, method: str, request: bytes) -> bytes: ...


class Answered(Protocol):
    """Remembers which rounds were answered."""

    def answered(self, round_id: bytes) -> bool: ...

    def answer(self, round_id: bytes) -> None: ...


class Disorder(ValueError):
    """A round is not what it should be. Nothing was sent in it."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A place in a round whose members and dealers are known and checked; an upload can be masked among them."""

    link: Asks
    round_id: bytes
    mask: Mask

    def leave(self) -> None:
        """Tell the server not to wait for us; if it does not hear it, it waits as long as for anybody who is silent."""
        try:
            self.link.call("Leave", self.round_id)
        except Refused as refusal:
            log.info("the round could not be left: %s", refusal)

    @contextmanager
    def left_if_wrong(self, outbox: Answered) -> Iterator[None]:
        """Leave the round, for good, if what the server shows is not in order; raises `Disorder`."""
        try:
            yield
        except ValueError as error:
            outbox.answer(self.round_id)
            self.leave()
            raise Disorder(str(error)) from error

    def finish(self) -> None:
        """After one's upload was taken: sign who the survivors are, and reveal one share of each dealer.

        Refused with `Reason.ROUND` if the round was over before, with or without us.
        """
        people = len(self.mask.roster.names)
        survivors = unpack_places(self.link.call("Survivors", self.round_id), people=people)
        signature = self.mask.vouch(survivors)
        try:
            self.link.call("Vouch", self.round_id + signature)
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:  # enough others have signed before
                raise
        vouchers = _by_place(self.link.call("Vouchers", self.round_id), people=people)
        self.link.call("Reveal", self.round_id + self.mask.reveal(vouchers))


def take_seat(link: Asks, credentials: Credentials, *, collaboration: str, least: int, outbox: Answered) -> Seat:
    """Enrol in rounds until one is in order: ``least`` members at least, all vouched for, enough of whom have dealt."""
    attempts = 0
    while True:
        round_id = link.call("Round", b"")
        if outbox.answered(round_id):
            raise ValueError(f"the server {link.address} repeats a round that was answered before; nothing was sent.")
        mask = Mask(credentials, collaboration=collaboration, round_id=round_id)
        seat = Seat(link=link, round_id=round_id, mask=mask)
        try:
            link.call("Enrol", round_id + mask.card().pack())
            cards = link.call("Roster", round_id)
            with seat.left_if_wrong(outbox):
                mask.enter(unpack_roster(cards), least=least)
            link.call("Deal", round_id + mask.deal())
            shares = link.call("Shares", round_id)
            with seat.left_if_wrong(outbox):
                mask.receive(_by_place(shares, people=len(mask.roster.names)))
        except Disorder as error:
            attempts += 1
            if attempts == _ATTEMPTS:
                raise
            log.warning("a round was not in order and is left: %s", error)
            continue
        except Refused as refusal:
            if refusal.reason is not Reason.ROUND:
                raise
            continue  # it closed just before, or was abandoned
        log.info("a round of %s", ", ".join(mask.roster.names))
        return seat


def _by_place(data: bytes, *, people: int) -> dict[int, bytes]:
    """Return a list that begins with places by place."""
    items = unpack_items(data)
    places = unpack_places(items[0] if items else b"", people=people)
    if len(places) != len(items) - 1:
        raise Refused(Reason.MALFORMED, f"there are {len(items) - 1} items for {len(places)} places.")
    return dict(zip(places, items[1:], strict=True))
