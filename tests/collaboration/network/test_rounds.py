"""Masked sums among people who do not keep to the rules, and with a server that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import nn

from collaboration.network.helpers import PEOPLE, agreement, begin
from collaboration.network.masked import BOUND, ROUND, Clock, Table, masks, refused
from collaboration.network.test_masking import looks_uniform
from tacit.collaboration import Download, FlatParameters, Participant, Reason, Refused, SelectedUploads
from tacit.collaboration.network import Credentials, Service, Shard, Store, codec, make_keys
from tacit.collaboration.network.masking import Mask, encode, own_mask
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.network.pool import APPLIED
from tacit.collaboration.network.roster import Card, context_of, pack_roster, signed_keys, unpack_roster
from tacit.collaboration.network.rounds import MaskedMembership
from tacit.collaboration.selection import Agreed
from tacit.ledger import BudgetExceeded
from tacit.randomness import SecureSource

FIELD = 2**255 - 19


@pytest.fixture
def pooled(tmp_path: Path) -> tuple[Service, Clock]:
    clock = Clock()
    return Service(begin(tmp_path, agreement(pool=2)), lease=60.0, patience=10.0, clock=clock), clock


def signed(keys: Path, name: str, public: bytes, sealing: bytes = b"") -> Card:
    """A card of somebody who shows whatever public key it likes."""
    own = Credentials.read(keys, name)
    key = serialization.load_pem_private_key(own.key, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    sealing = sealing or X25519PrivateKey.generate().public_key().public_bytes_raw()
    signature = key.sign(signed_keys(context_of("c", ROUND), public, sealing), ec.ECDSA(hashes.SHA256()))
    certificate = x509.load_pem_x509_certificate(own.certificate).public_bytes(serialization.Encoding.DER)
    return Card(public=public, sealing=sealing, signature=signature, certificate=certificate)


def test_a_twin_of_another_participants_key_does_not_cancel_masks(keys: Path) -> None:
    """carl shows 1/u for ann's key u, which is her point plus one of order two: other bytes, but the same secret with
    everybody, because scalars are even. Between ann and carl, bob's two masks must not cancel.
    """
    ann, bob = masks(keys, ("ann", "bob"))
    public = ann.card().public
    twin = pow(int.from_bytes(public, "little"), -1, FIELD).to_bytes(32, "little")
    probe = X25519PrivateKey.generate()
    secrets = {probe.exchange(X25519PublicKey.from_public_bytes(key)) for key in (public, twin)}
    assert len(secrets) == 1 and twin != public
    cards = [ann.card(), bob.card(), signed(keys, "carl", twin)]
    for mask in (ann, bob):
        mask.enter(cards, least=3)
    bob._shares = dict.fromkeys(range(3), (b"", b""))  # all three have dealt; what, does not matter here
    values = encode(np.random.default_rng(3).uniform(-BOUND, BOUND, size=2000).astype(np.float32), BOUND)
    left = bob.hide(values) - values - own_mask(bob._seed, bob.roster, 1, range(3), 2000)
    assert not (left == 0).any() and looks_uniform(left)
    assert 800 < int((left & np.uint64(1)).sum()) < 1200  # nor are they the same twice


def test_keys_that_are_not_ones_own(keys: Path) -> None:
    ann, bob = masks(keys, ("ann", "bob"))
    public = ann.card().public
    number = int.from_bytes(public, "little")
    for copied in (public, (number | 2**255).to_bytes(32, "little")):
        with pytest.raises(ValueError, match="two in the round have the same key"):
            bob.enter([ann.card(), bob.card(), signed(keys, "carl", copied)], least=3)
        with pytest.raises(ValueError, match="two in the round have the same key"):
            bob.enter([ann.card(), bob.card(), signed(keys, "carl", masks(keys)[2].card().public, copied)], least=3)
    for low in (0, 1, FIELD - 1, FIELD, FIELD + 1, 2**255):
        with pytest.raises(Refused, match="no certificate of the authority vouches"):  # before anything is released
            bob.enter([ann.card(), bob.card(), signed(keys, "carl", low.to_bytes(32, "little"))], least=3)


def test_a_pool_takes_only_signed_keys(pooled: tuple[Service, Clock], keys: Path, tmp_path: Path) -> None:
    """Else one participant could end the round for all others, who see it only when it is closed."""
    service, clock = pooled
    service.trust((keys / "ca.pem").read_bytes())
    table = Table(service, keys, "ann", "bob")
    round_id, made = table.round_id, table.masks
    own = Mask(Credentials.read(keys, "carl"), collaboration="c" * 32, round_id=round_id).card()
    make_keys(tmp_path / "other", participants=["carl"])
    false = Mask(Credentials.read(tmp_path / "other", "carl"), collaboration="c" * 32, round_id=round_id)
    for card, reason in (
        (replace(own, signature=bytes(65_000), certificate=bytes(65_000)), Reason.MALFORMED),
        (replace(own, signature=b"x", certificate=b"y"), Reason.UNKNOWN),
        (replace(own, public=bytes(32)), Reason.UNKNOWN),
        (false.card(), Reason.UNKNOWN),
        (made["bob"].card(), Reason.UNKNOWN),
        (signed(keys, "carl", bytes(32)), Reason.UNKNOWN),
    ):
        refused(reason, lambda card=card: table.ask("carl", "Enrol", card.pack()))  # type: ignore[misc]
    clock.now = 10.0
    assert made["ann"].enter(unpack_roster(table.ask("ann", "Roster")), least=2).names == ("ann", "bob")
    service.close()


def test_a_pool_remembers_what_it_has_applied(pooled: tuple[Service, Clock], keys: Path, tmp_path: Path) -> None:
    """It died before anybody heard of it; and an old folder is found out by what the server counts."""
    service, clock = pooled
    assert service.agree("ann")[:8] == bytes(8)
    table = Table(service, keys, "ann", "bob")
    clock.now = 10.0
    table.deal("ann", "bob")
    for name in ("ann", "bob"):
        table.ask(name, "Masked", table.hidden(name, 0.25))
    table.finish("ann", "bob")
    service._state.store.close()
    again = Service(Store(tmp_path))
    outcome = again.methods()["Outcome"]
    assert outcome("ann", table.round_id) == APPLIED
    refused(Reason.ROUND, lambda: outcome("carl", table.round_id))
    refused(Reason.ROUND, lambda: outcome("ann", bytes(16)))
    assert [person["uploads"] for person in again.overview()] == [1, 1, 0]
    due, _ = codec.split_token(again.agree("ann"))
    assert due == 1
    shard = Shard(link=Wire(again, "ann"), agreement=again.agreement, due=due)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="old copy, or another participant has the same name"):
        member(keys, tmp_path / "fresh", shard, Agreed(0.5))
    again.close()


def test_a_round_does_not_wait_for_a_revoked_participant(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, _ = pooled
    table = Table(service, keys, *PEOPLE)
    table.deal(*PEOPLE)
    for name in ("ann", "bob"):
        table.ask(name, "Masked", table.hidden(name, 0.25))
    refused(Reason.WAIT, lambda: table.ask("ann", "Survivors"))
    service._state.store.revoke("carl")
    service._state._changes = -1
    assert table.finish("ann", "bob")[-1] == APPLIED
    again = Table(service, keys, "ann", "bob")  # everybody there is: closed at once
    assert len(unpack_roster(again.ask("ann", "Roster"))) == 2
    service.close()


class Wire:
    """A link without a network; ``before`` each question something may happen."""

    address = "here"

    def __init__(self, service: Service, name: str, before: Callable[[str], None] = lambda method: None) -> None:
        self._methods, self._name, self._before = service.methods(), name, before
        self.asked: list[str] = []

    def call(self, method: str, request: bytes) -> bytes:
        self._before(method)
        self.asked.append(method)
        return self._methods[method](self._name, request)

    def pull(self, fraction: float, *, size: int, into: np.ndarray) -> Download:
        into[:] = 0
        return Download(indices=None, values=into)


def member(keys: Path, folder: Path, shard: Shard, agreed: Agreed, **options: Any) -> MaskedMembership:
    uploads = SelectedUploads(agreed, bound=BOUND, source=SecureSource())
    person = Participant("ann", FlatParameters(nn.Linear(7, 5)), lambda: None, uploads)
    own = Credentials.read(keys, "ann")
    outbox = open_outbox(folder, "ann", [shard])
    return MaskedMembership(person, shard, outbox, credentials=own, agreed=agreed, **options)


def duet(keys: Path, folder: Path, **options: Any) -> tuple[Service, Wire, MaskedMembership, list[bytes]]:
    """ann, as she is, and bob, who comes before she enrols and sends before she asks what became of it."""
    service = Service(begin(folder / "server", agreement(pool=2), people=("ann", "bob")))
    tables: list[Table] = []

    def before(method: str) -> None:
        if method == "Enrol":
            tables.append(Table(service, keys, "bob"))
            rounds.append(tables[-1].round_id)
        elif method == "Deal":
            tables[-1].deal("bob")
        elif method == "Masked":
            tables[-1].ask("bob", "Masked", tables[-1].hidden("bob", 0.125))
        elif method == "Vouch":
            tables[-1].vouch("bob")
        elif method == "Outcome":
            tables[-1].ask("bob", "Reveal", tables[-1].shares("bob"))

    rounds: list[bytes] = []
    wire = Wire(service, "ann", before)
    shard = Shard(link=wire, agreement=service.agreement, due=0)  # type: ignore[arg-type]
    return service, wire, member(keys, folder / "ann", shard, Agreed(0.5), **options), rounds


def test_a_round_that_is_repeated_gets_no_answer(keys: Path, tmp_path: Path) -> None:
    """Two sums of one round, with and without somebody, on the same parameters, would show its term."""
    service, wire, ann, rounds = duet(keys, tmp_path)
    ann.exchange()
    assert service.parameters()[0] == 1
    wire._methods["Round"] = lambda name, request: rounds[0]
    sent = wire.asked.count("Masked")
    with pytest.raises(ValueError, match="repeats a round that was answered before"):
        ann.exchange()
    assert wire.asked.count("Masked") == sent and wire.asked.count("Enrol") == 1
    ann.close()


def test_a_participant_without_budget_does_not_enrol(keys: Path, tmp_path: Path) -> None:
    def ready() -> None:
        raise BudgetExceeded("spent")

    service, wire, ann, _ = duet(keys, tmp_path, ready=ready)
    with pytest.raises(BudgetExceeded):
        ann.exchange()
    assert "Enrol" not in wire.asked and ann.done == 0
    ann.close()
    service.close()


def test_a_round_that_is_not_in_order_is_left_for_the_next(keys: Path, tmp_path: Path) -> None:
    """Neither ended nor charged by it; what was trained goes into the next."""
    service, wire, ann, rounds = duet(keys, tmp_path)
    true = wire._methods["Roster"]

    def false(name: str, request: bytes) -> bytes:
        cards = unpack_roster(true(name, request))
        return pack_roster([replace(card, signature=b"x") for card in cards] if len(rounds) < 3 else cards)

    wire._methods["Roster"] = false
    trained = []
    ann.participant.training = lambda: trained.append(1)
    ann.exchange()
    assert len(rounds) == 3 and wire.asked.count("Leave") == 2 and trained == [1]
    assert (ann.done, ann.lost, service.parameters()[0]) == (1, 0, 1)
    wire._methods["Roster"] = lambda name, request: pack_roster([])
    with pytest.raises(ValueError, match="the round has 0 participants"):
        ann.exchange()  # a server that has no other is not asked for ever
    assert ann.done == 1
    ann.close()
    service.close()
