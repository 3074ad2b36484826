"""Rounds of masked uploads without a network: participants who do as they are told, and a server that may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from collaboration.network.helpers import PEOPLE, SIZE
from tacit.collaboration import Reason, Refused
from tacit.collaboration.network import Credentials, Service
from tacit.collaboration.network.masking import Mask, Words, encode
from tacit.collaboration.network.roster import Roster, unpack_places, unpack_roster
from tacit.collaboration.network.seat import _by_place
from tacit.collaboration.network.sharing import Deal

ROUND = bytes(range(16))
BOUND = 0.5


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def masks(keys: Path, names: Iterable[str] = PEOPLE, round_id: bytes = ROUND) -> list[Mask]:
    return [Mask(Credentials.read(keys, name), collaboration="c", round_id=round_id) for name in names]


def entered(keys: Path, names: Iterable[str] = PEOPLE, least: int = 2) -> tuple[dict[int, Mask], Roster]:
    """All of them in a round, by place, each having checked the others."""
    made = masks(keys, names)
    cards = [mask.card() for mask in made]
    rosters = [mask.enter(cards, least=least) for mask in made]
    assert all(roster == rosters[0] for roster in rosters)
    return {mask.place: mask for mask in made}, rosters[0]


def dealt(people: dict[int, Mask], dealers: Iterable[int]) -> dict[int, Deal]:
    """The dealers' shares, received by each of them."""
    deals = {place: Deal.unpack(people[place].deal(), people=len(people)) for place in dealers}
    for place in deals:
        people[place].receive({dealer: deal.entries[place] for dealer, deal in deals.items()})
    return deals


def added(parts: Iterable[Words]) -> Words:
    total: Words = np.sum(list(parts), axis=0, dtype=np.uint64)
    return total


def refused(reason: Reason, call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as error:
        call()
    assert error.value.reason is reason
    return str(error.value)


class Table:
    """A service and those who sit at its round; `ask` asks as one of them."""

    def __init__(self, service: Service, keys: Path, *names: str) -> None:
        self.service, self._keys = service, keys
        self.round_id = self.ask(names[0], "Round", bare=True)
        self.masks: dict[str, Mask] = {}
        for name in names:
            self.enrol(name)

    def ask(self, name: str, method: str, data: bytes = b"", *, bare: bool = False) -> bytes:
        return self.service.methods()[method](name, data if bare else self.round_id + data)

    def enrol(self, name: str) -> None:
        mask = Mask(Credentials.read(self._keys, name), collaboration="c" * 32, round_id=self.round_id)
        self.masks[name] = mask
        self.ask(name, "Enrol", mask.card().pack())

    def deal(self, *names: str) -> None:
        for name in names:
            self.masks[name].enter(unpack_roster(self.ask(name, "Roster")), least=2)
            self.ask(name, "Deal", self.masks[name].deal())

    def hidden(self, name: str, value: float) -> bytes:
        """The masked upload of somebody who has dealt."""
        people = len(self.masks[name].roster.names)
        self.masks[name].receive(_by_place(self.ask(name, "Shares"), people=people))
        values = np.full(SIZE // 2, value, dtype=np.float32)
        return self.masks[name].hide(encode(values, BOUND)).tobytes()

    def vouch(self, *names: str) -> None:
        for name in names:
            people = len(self.masks[name].roster.names)
            survivors = unpack_places(self.ask(name, "Survivors"), people=people)
            self.ask(name, "Vouch", self.masks[name].vouch(survivors))

    def shares(self, name: str) -> bytes:
        people = len(self.masks[name].roster.names)
        return self.masks[name].reveal(_by_place(self.ask(name, "Vouchers"), people=people))

    def finish(self, *names: str) -> list[bytes]:
        """Vouch and reveal, as many as are needed."""
        self.vouch(*names)
        return [self.ask(name, "Reveal", self.shares(name)) for name in names]
