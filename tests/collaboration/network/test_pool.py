"""Rounds of masked uploads through the service: they go on without the silent, and say why when they cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from collaboration.network.helpers import PEOPLE, SIZE, Killed, Place, agreement, begin
from collaboration.network.masked import BOUND, Clock, Table, refused
from tacit.collaboration import FlatParameters, Participant, Reason, SelectedUploads
from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network import Credentials, Link, Service, Store, find_shards
from tacit.collaboration.network.masking import places
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.network.pool import APPLIED, HELD
from tacit.collaboration.network.rounds import MaskedMembership
from tacit.collaboration.network.seat import Seat
from tacit.collaboration.selection import Agreed
from tacit.ledger import BudgetExceeded
from tacit.randomness import SecureSource


@pytest.fixture
def pooled(tmp_path: Path) -> tuple[Service, Clock]:
    clock = Clock()
    return Service(begin(tmp_path, agreement(pool=2)), lease=60.0, patience=10.0, clock=clock), clock


def applied(service: Service, round_id: bytes, value: float) -> bool:
    expected = np.zeros(SIZE, dtype=np.float32)
    expected[places(round_id, size=SIZE, count=SIZE // 2)] = value
    return np.array_equal(service.parameters()[1], expected)


def test_a_round(pooled: tuple[Service, Clock], keys: Path, tmp_path: Path) -> None:
    service, clock = pooled
    table = Table(service, keys, "ann", "bob")
    refused(Reason.WAIT, lambda: table.ask("ann", "Roster"))
    refused(Reason.ROUND, lambda: table.ask("carl", "Roster"))
    refused(Reason.WAIT, lambda: table.ask("ann", "Masked", bytes(4 * SIZE)))  # nobody knows yet among whom
    clock.now = 10.0  # carl does not come
    table.deal("ann")
    refused(Reason.WAIT, lambda: table.ask("ann", "Shares"))
    refused(Reason.ROUND, lambda: table.ask("ann", "Masked", bytes(4 * SIZE)))
    refused(Reason.WAIT, lambda: table.ask("carl", "Round", bare=True))
    other = table.masks["ann"].deal()
    refused(Reason.REPLAYED, lambda: table.ask("ann", "Deal", other[:-1] + bytes([other[-1] ^ 1])))
    refused(Reason.MALFORMED, lambda: table.ask("bob", "Deal", other[:-1]))
    table.deal("ann", "bob")
    ann = table.hidden("ann", 0.25)
    assert table.ask("ann", "Masked", ann) == HELD == table.ask("ann", "Masked", ann)
    refused(Reason.REPLAYED, lambda: table.ask("ann", "Masked", ann[:-1] + bytes([ann[-1] ^ 1])))
    refused(Reason.SHAPE, lambda: table.ask("bob", "Masked", ann[:-8]))
    refused(Reason.ROUND, lambda: table.ask("carl", "Masked", ann))
    for method in ("Outcome", "Survivors", "Vouchers"):
        refused(Reason.WAIT, lambda method=method: table.ask("ann", method))
    assert table.ask("bob", "Masked", table.hidden("bob", -0.125)) == HELD
    refused(Reason.UNKNOWN, lambda: table.ask("ann", "Vouch", b"nonsense"))
    assert service.parameters()[0] == 0 and not service.parameters()[1].any()
    table.vouch("ann", "bob")
    refused(Reason.UNKNOWN, lambda: table.ask("bob", "Reveal", table.shares("ann")))  # another's shares
    assert table.ask("ann", "Reveal", table.shares("ann")) == HELD == table.ask("ann", "Reveal", table.shares("ann"))
    assert table.ask("bob", "Reveal", table.shares("bob")) == APPLIED
    assert table.ask("ann", "Outcome") == APPLIED
    assert applied(service, table.round_id, 0.125)
    refused(Reason.ROUND, lambda: table.ask("ann", "Masked", ann))
    refused(Reason.ROUND, lambda: table.ask("carl", "Outcome"))
    assert table.ask("carl", "Round", bare=True) != table.round_id
    service.close()
    again = Service(Store(tmp_path))
    assert applied(again, table.round_id, 0.125)
    refused(Reason.SHAPE, lambda: again.turn("ann"))
    again.close()


@pytest.mark.parametrize("silent", ["before dealing", "before sending", "after sending"])
def test_a_round_goes_on_when_a_participant_vanishes_without_a_goodbye(
    pooled: tuple[Service, Clock], keys: Path, silent: str
) -> None:
    service, clock = pooled
    table = Table(service, keys, *PEOPLE)  # everybody: closed at once; two of three are enough
    table.deal("ann", "bob", *(["carl"] if silent != "before dealing" else []))
    clock.now += 61 if silent == "before dealing" else 0
    for name, value in (("ann", 0.25), ("bob", -0.125)):
        table.ask(name, "Masked", table.hidden(name, value))
    late = table.hidden("carl", 0.5) if silent != "before dealing" else bytes(4 * SIZE)
    if silent == "after sending":
        table.ask("carl", "Masked", late)
    if silent == "before sending":
        refused(Reason.WAIT, lambda: table.ask("ann", "Survivors"))
        clock.now += 61
        table.ask("ann", "Survivors")
        assert "did not arrive in time" in refused(Reason.ROUND, lambda: table.ask("carl", "Masked", late))
    assert table.finish("ann", "bob") == [HELD, APPLIED]
    assert table.ask("ann", "Outcome") == APPLIED
    assert applied(service, table.round_id, 0.125 if silent != "after sending" else 0.625)
    if silent != "after sending":
        refused(Reason.ROUND, lambda: table.ask("carl", "Masked", late))
        assert "went on without you" in refused(Reason.ROUND, lambda: table.ask("carl", "Outcome"))
    assert [person["uploads"] for person in service.overview()] == [1, 1, int(silent == "after sending")]
    service.close()


def test_below_the_threshold_the_round_is_abandoned_with_a_sentence(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, clock = pooled
    table = Table(service, keys, *PEOPLE)
    table.deal(*PEOPLE)
    table.ask("ann", "Masked", table.hidden("ann", 0.25))
    bob = table.hidden("bob", 0.25)
    clock.now = 60.0
    for method in ("Outcome", "Survivors"):
        assert "1 of 3 participants have sent uploads, and 2 must have" in refused(
            Reason.ROUND, lambda method=method: table.ask("ann", method)
        )
    refused(Reason.ROUND, lambda: table.ask("bob", "Masked", bob))
    assert service.parameters()[0] == 0
    assert table.ask("ann", "Round", bare=True) != table.round_id
    service.close()


@pytest.mark.parametrize("phase", ["dealing", "signing", "revealing"])
def test_too_few_in_any_phase_end_the_round(pooled: tuple[Service, Clock], keys: Path, phase: str) -> None:
    service, clock = pooled
    table = Table(service, keys, *PEOPLE)
    table.deal("ann", *(("bob", "carl") if phase != "dealing" else ()))
    if phase != "dealing":
        for name in PEOPLE:
            table.ask(name, "Masked", table.hidden(name, 0.25))
        table.vouch("ann", *(("bob",) if phase == "revealing" else ()))
        if phase == "revealing":
            table.ask("ann", "Reveal", table.shares("ann"))
    clock.now = 61.0
    sent = {"dealing": "shares", "signing": "signatures", "revealing": "revealed shares"}[phase]
    text = refused(Reason.ROUND, lambda: table.ask("ann", "Outcome"))
    assert f"1 of 3 participants have sent {sent}, and 2 must have" in text
    assert service.parameters()[0] == 0
    service.close()


def test_a_participant_can_leave_before_uploading_and_the_others_do_not_wait(
    pooled: tuple[Service, Clock], keys: Path
) -> None:
    service, _ = pooled
    table = Table(service, keys, *PEOPLE)
    table.deal(*PEOPLE)
    table.ask("ann", "Masked", table.hidden("ann", 0.25))
    refused(Reason.ROUND, lambda: table.ask("ann", "Leave"))  # she has sent something
    table.ask("carl", "Leave")
    table.ask("carl", "Leave")  # asked again because no answer came
    refused(Reason.ROUND, lambda: table.ask("carl", "Masked", table.hidden("carl", 0.5)))
    table.ask("bob", "Masked", table.hidden("bob", -0.125))
    assert table.finish("bob", "ann") == [HELD, APPLIED]
    assert applied(service, table.round_id, 0.125)
    service.close()


def test_too_few_do_not_go_on(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, clock = pooled
    table = Table(service, keys, "ann", "bob")
    clock.now = 10.0
    table.deal("ann", "bob")
    table.ask("ann", "Masked", table.hidden("ann", 0.25))
    table.ask("bob", "Leave")
    refused(Reason.ROUND, lambda: table.ask("ann", "Survivors"))
    refused(Reason.ROUND, lambda: table.ask("ann", "Outcome"))
    assert service.parameters()[0] == 0 and table.ask("ann", "Round", bare=True) != table.round_id
    service.close()


def test_leaving_before_enrolment_closes_removes_a_participant_from_the_round(
    pooled: tuple[Service, Clock], keys: Path
) -> None:
    service, clock = pooled
    table = Table(service, keys, "ann", "bob")
    table.ask("bob", "Leave")
    clock.now = 20.0
    refused(Reason.WAIT, lambda: table.ask("ann", "Roster"))
    refused(Reason.ROUND, lambda: table.ask("bob", "Roster"))
    service.close()


def test_a_round_that_does_not_add_up_is_abandoned(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, clock = pooled
    table = Table(service, keys, "ann", "bob")
    clock.now = 10.0
    table.deal("ann", "bob")
    table.ask("ann", "Masked", table.hidden("ann", 0.25))
    table.hidden("bob", 0.25)
    table.ask("bob", "Masked", bytes(4 * SIZE))  # not masked at all
    with pytest.raises(ValueError, match="the round was abandoned: the sum of the round is beyond"):
        table.finish("ann", "bob")
    assert service.parameters()[0] == 0
    refused(Reason.ROUND, lambda: table.ask("ann", "Outcome"))
    service.close()


class Person:
    """A participant over the network whose change is always the same, and who keeps what it has uploaded."""

    def __init__(self, link: Link, keys: Path, folder: Path, name: str, move: float, spend: int = 99) -> None:
        self.name, self.changes = name, list[np.ndarray]()
        self.flat, agreed = FlatParameters(nn.Linear(7, 5)), Agreed(0.5)
        inner, self.made = SelectedUploads(agreed, bound=BOUND, source=SecureSource()), 0

        def train() -> None:
            self.flat.vector[:] += np.float32(move)

        def uploads(change: Vector) -> tuple[Positions, Vector]:
            if self.made == spend:
                time.sleep(0.5)  # the others have sent by then
                raise BudgetExceeded("spent")
            self.made += 1
            self.sent = inner(change)
            return self.sent

        shard = find_shards([link])[0]
        person, outbox = Participant(name, self.flat, train, uploads), open_outbox(folder / name, name, [shard])
        own = Credentials.read(keys, name)
        self.member = MaskedMembership(person, shard, outbox, credentials=own, agreed=agreed)

    def exchange(self, rounds: int) -> None:
        for _ in range(rounds):
            self.member.exchange()
            indices, values = self.sent
            change = np.zeros(SIZE)
            change[indices] = values
            self.changes.append(change)
        assert self.member.outbox.unsent() == []


def together(people: list[Person], rounds: int) -> dict[str, BaseException]:
    """All of them at once; return what ended whom."""
    ended: dict[str, BaseException] = {}

    def run(person: Person) -> None:
        try:
            person.exchange(rounds)
        except (BudgetExceeded, Killed) as error:
            ended[person.name] = error
        finally:
            person.member.close()

    threads = [threading.Thread(target=run, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return ended


def everything(people: list[Person]) -> np.ndarray:
    return np.sum([change for person in people for change in person.changes], axis=0)


def test_masked_uploads_over_the_network_are_the_plain_sum(
    serve: Callable[..., Place], link: Callable[..., Link], keys: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement(pool=3)), lease=30.0, patience=30.0)
    people = [
        Person(link(place.address, name), keys, tmp_path, name, 0.0625 * (1 + k)) for k, name in enumerate(PEOPLE)
    ]
    assert together(people, 2) == {}
    uploads, parameters = place.service.parameters()
    assert uploads == 2 and all(len(person.changes) == 2 and not person.member.lost for person in people)
    assert parameters.astype(np.float64) == pytest.approx(everything(people), abs=1e-6)


def test_a_participant_whose_budget_is_spent_leaves_and_the_others_finish(
    serve: Callable[..., Place], link: Callable[..., Link], keys: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement(pool=2)), lease=600.0, patience=600.0)
    people = [
        Person(link(place.address, name), keys, tmp_path, name, 0.0625 * (1 + k), spend=1 if name == "carl" else 99)
        for k, name in enumerate(PEOPLE)
    ]
    assert set(together(people, 2)) == {"carl"}
    assert [len(person.changes) for person in people] == [2, 2, 1]
    assert all(person.made == len(person.changes) and not person.member.lost for person in people)
    assert place.service.parameters()[0] == 2
    assert place.service.parameters()[1].astype(np.float64) == pytest.approx(everything(people), abs=1e-6)


@pytest.mark.parametrize("sent", [False, True])
def test_a_participant_killed_in_a_round_does_not_end_it(
    serve: Callable[..., Place], link: Callable[..., Link], keys: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, sent: bool,
) -> None:  # fmt: skip
    """carl dies before his upload is sent, or after: the others get their sum, with his upload in it if it was sent."""
    place = serve(begin(tmp_path / "server", agreement(pool=2)), lease=2.0, patience=30.0)
    people = [
        Person(link(place.address, name), keys, tmp_path, name, 0.0625 * (1 + k)) for k, name in enumerate(PEOPLE)
    ]
    carl, finish = people[2], Seat.finish

    def die(*_: object, **__: object) -> None:
        raise Killed

    def die_if_carl(seat: Seat) -> None:
        die() if seat.mask._credentials.name == "carl" else finish(seat)

    if sent:
        monkeypatch.setattr(Seat, "finish", die_if_carl)
    else:
        carl.member.keep = die  # type: ignore[method-assign]
    assert set(together(people, 1)) == {"carl"}
    assert place.service.parameters()[0] == 1 and not people[0].member.lost and not people[1].member.lost
    total = place.service.parameters()[1].astype(np.float64)
    moved = np.abs(total).max()
    assert moved == pytest.approx(0.0625 * (1 + 2 + 3 * sent), abs=1e-6)
    if sent:  # he comes back: the outbox knows that his upload is in the sum
        shard = find_shards([link(place.address, "carl")])[0]
        outbox = open_outbox(tmp_path / "carl", "carl", [shard])
        again = MaskedMembership(
            Participant("carl", FlatParameters(nn.Linear(7, 5)), lambda: None, lambda change: (change, change)),
            shard, outbox, credentials=Credentials.read(keys, "carl"), agreed=Agreed(0.5),
        )  # fmt: skip
        assert len(outbox.unsent()) == 1
        again.deliver()
        assert outbox.unsent() == [] and again.lost == 0
        again.close()
