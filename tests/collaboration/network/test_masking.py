"""Masked sums: exact, hidden until complete, and only among people somebody vouches for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from torch import nn

from collaboration.network.helpers import PEOPLE, SIZE, Place, agreement, begin
from tacit.collaboration import FlatParameters, Participant, Reason, Refused, SelectedUploads
from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network import Credentials, Link, Service, Store, find_shards, make_keys
from tacit.collaboration.network.masking import (
    Card,
    Goodbye,
    Mask,
    Words,
    among,
    decode,
    encode,
    pack_roster,
    places,
    unpack_roster,
)
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.network.pool import APPLIED, HELD
from tacit.collaboration.network.rounds import MaskedMembership, Seat
from tacit.collaboration.selection import Agreed
from tacit.ledger import BudgetExceeded
from tacit.randomness import SecureSource

ROUND = bytes(range(16))
BOUND = 0.5


def masks(keys: Path, names: tuple[str, ...] = PEOPLE, round_id: bytes = ROUND) -> list[Mask]:
    return [Mask(Credentials.read(keys, name), collaboration="c", round_id=round_id) for name in names]


def test_the_sum_is_exact_and_single_terms_look_random(keys: Path) -> None:
    rng = np.random.default_rng(1)
    values = [rng.uniform(-BOUND, BOUND, size=5000).astype(np.float32) for _ in PEOPLE]
    made = masks(keys)
    roster, gone = unpack_roster(pack_roster([mask.card() for mask in made]))
    assert gone == []
    hidden = [m.hide(v, bound=BOUND, roster=roster, least=3) for m, v in zip(made, values, strict=True)]
    total = hidden[0] + hidden[1] + hidden[2]
    plain = encode(values[0], BOUND) + encode(values[1], BOUND) + encode(values[2], BOUND)
    assert np.array_equal(total, plain)
    assert decode(total, BOUND, terms=3) == pytest.approx(sum(v.astype(np.float64) for v in values), abs=1e-6)
    for seen in (*hidden, hidden[0] + hidden[1], hidden[0] - encode(values[0], BOUND)):
        bits = np.unpackbits(seen.view(np.uint8)).mean()
        assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(64 * 5000)
        with pytest.raises(Refused, match="beyond what its participants could have sent"):
            decode(seen, BOUND, terms=3)


def test_other_rounds_and_other_rosters_have_other_masks(keys: Path) -> None:
    values = np.zeros(100, dtype=np.float32)
    ann, bob, carl = masks(keys)
    two, three = [ann.card(), bob.card()], [ann.card(), bob.card(), carl.card()]
    first = ann.hide(values, bound=BOUND, roster=two, least=2)
    second = ann.hide(values, bound=BOUND, roster=three, least=2)
    assert not np.array_equal(first, second)
    both = first + bob.hide(values, bound=BOUND, roster=three, least=2)  # a server that shows different people around
    with pytest.raises(Refused):
        decode(both, BOUND, terms=2)


def test_keys_that_nobody_vouches_for(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path, participants=["bob"])
    ann, bob = masks(keys, ("ann", "bob"))
    false = Mask(Credentials.read(tmp_path, "bob"), collaboration="c", round_id=ROUND)
    older = Mask(Credentials.read(keys, "bob"), collaboration="c", round_id=bytes(16))
    server = Mask(Credentials.read(keys, "server"), collaboration="c", round_id=ROUND)
    values = np.zeros(4, dtype=np.float32)
    good = [ann.card(), bob.card()]
    assert ann.hide(values, bound=BOUND, roster=good, least=2).size == 4
    swapped = replace(bob.card(), public=ann.card().public)
    broken = replace(bob.card(), certificate=b"nonsense")
    for card in (false.card(), older.card(), server.card(), swapped, broken):
        with pytest.raises(Refused, match=r"vouches|not a participant's"):
            ann.hide(values, bound=BOUND, roster=[ann.card(), card], least=2)
    for roster, least in (
        ([ann.card()], 1),
        (good, 3),
        ([bob.card(), masks(keys, ("carl",))[0].card()], 2),
        ([*good, bob.card()], 2),
    ):
        with pytest.raises(ValueError, match="nothing was sent"):
            ann.hide(values, bound=BOUND, roster=roster, least=least)
    for data in (b"", b"\1\0", pack_roster(good)[:-1], pack_roster(good) + b"x"):
        with pytest.raises(Refused):
            unpack_roster(data)
    with pytest.raises(Refused):
        Card.unpack(bytes(10))


def test_the_places_of_a_round_are_the_same_for_all_and_others_next_time() -> None:
    found = places(ROUND, size=1000, count=100)
    assert np.array_equal(found, places(ROUND, size=1000, count=100))
    assert found.size == np.unique(found).size == 100 and found.max() < 1000
    assert not np.array_equal(found, places(bytes(16), size=1000, count=100))


# -- rounds ----------------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pooled(tmp_path: Path) -> tuple[Service, Clock]:
    clock = Clock()
    return Service(begin(tmp_path, agreement(pool=2)), lease=60.0, patience=10.0, clock=clock), clock


def enrol(service: Service, keys: Path, *names: str) -> tuple[bytes, dict[str, Mask]]:
    round_id = service.round(names[0])
    made = {n: Mask(Credentials.read(keys, n), collaboration="c" * 32, round_id=round_id) for n in names}
    for name, mask in made.items():
        service.enrol(name, round_id + mask.card().pack())
    return round_id, made


def hidden(service: Service, name: str, round_id: bytes, mask: Mask, value: float) -> bytes:
    roster, gone = unpack_roster(service.roster(name, round_id))
    values = np.full(SIZE // 2, value, dtype=np.float32)
    words = mask.hide(values, bound=BOUND, roster=roster, least=2, gone=gone)
    return among(round_id, gone) + words.tobytes()


def refused(reason: Reason, call: Callable[[], object]) -> None:
    with pytest.raises(Refused) as error:
        call()
    assert error.value.reason is reason


def test_a_round(pooled: tuple[Service, Clock], keys: Path, tmp_path: Path) -> None:
    service, clock = pooled
    round_id, made = enrol(service, keys, "ann", "bob")
    refused(Reason.WAIT, lambda: service.roster("ann", round_id))
    refused(Reason.ROUND, lambda: service.roster("carl", round_id))
    refused(Reason.ROUND, lambda: service.masked("ann", round_id + bytes(4 * SIZE)))  # nobody knows yet among whom
    clock.now = 10.0  # carl does not come
    ann = hidden(service, "ann", round_id, made["ann"], 0.25)
    refused(Reason.WAIT, lambda: service.round("carl"))
    assert service.masked("ann", ann) == HELD
    assert service.masked("ann", ann) == HELD
    refused(Reason.REPLAYED, lambda: service.masked("ann", ann[:-1] + bytes([ann[-1] ^ 1])))
    refused(Reason.SHAPE, lambda: service.masked("bob", ann[:-8]))
    refused(Reason.ROUND, lambda: service.masked("carl", ann))
    refused(Reason.WAIT, lambda: service.outcome("ann", round_id))
    assert service.parameters()[0] == 0 and not service.parameters()[1].any()
    assert service.masked("bob", hidden(service, "bob", round_id, made["bob"], -0.125)) == APPLIED
    assert service.outcome("ann", round_id) == APPLIED
    expected = np.zeros(SIZE, dtype=np.float32)
    expected[places(round_id, size=SIZE, count=SIZE // 2)] = 0.125
    assert np.array_equal(service.parameters()[1], expected)
    refused(Reason.ROUND, lambda: service.masked("ann", ann))
    assert service.round("carl") != round_id
    service.close()
    again = Service(Store(tmp_path))
    assert np.array_equal(again.parameters()[1], expected)
    refused(Reason.SHAPE, lambda: again.turn("ann"))
    again.close()


def test_a_round_that_somebody_does_not_finish_is_abandoned(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, clock = pooled
    round_id, made = enrol(service, keys, *PEOPLE)  # everybody: closed at once
    for name in ("ann", "bob"):
        service.masked(name, hidden(service, name, round_id, made[name], 0.25))
    clock.now = 60.0
    refused(Reason.ROUND, lambda: service.outcome("ann", round_id))
    refused(Reason.ROUND, lambda: service.masked("carl", round_id + bytes(4 * SIZE)))
    assert service.parameters()[0] == 0
    assert service.round("ann") != round_id
    service.close()


def test_a_participant_can_leave_before_uploading_and_the_round_completes(
    pooled: tuple[Service, Clock], keys: Path
) -> None:
    service, clock = pooled
    round_id, made = enrol(service, keys, *PEOPLE)
    before = hidden(service, "ann", round_id, made["ann"], 0.25)
    service.masked("ann", before)
    refused(Reason.ROUND, lambda: service.leave("ann", round_id + made["ann"].goodbye()))  # she has sent something
    refused(Reason.UNKNOWN, lambda: service.leave("carl", round_id + made["bob"].goodbye()))  # somebody else's
    refused(Reason.UNKNOWN, lambda: service.leave("carl", round_id + made["carl"].card().signature))
    clock.now = 50.0
    service.leave("carl", round_id + made["carl"].goodbye())
    service.leave("carl", round_id + made["carl"].goodbye())  # asked again because no answer came
    refused(Reason.ROUND, lambda: service.masked("ann", before))
    refused(Reason.ROUND, lambda: service.outcome("ann", round_id))  # so she asks who is left
    refused(Reason.ROUND, lambda: service.leave("ann", round_id + made["ann"].goodbye()))  # still not
    _, gone = unpack_roster(service.roster("ann", round_id))
    now = among(round_id, gone)
    again = hidden(service, "ann", round_id, made["ann"], 0.25)
    assert again[:16] == now != round_id and again[16:] != before[16:]
    refused(Reason.ROUND, lambda: service.masked("carl", now + before[16:]))
    clock.now = 109.0  # there is time again since the goodbye
    assert service.masked("ann", again) == HELD
    assert service.masked("bob", hidden(service, "bob", round_id, made["bob"], -0.125)) == APPLIED
    assert service.outcome("ann", now) == APPLIED
    expected = np.zeros(SIZE, dtype=np.float32)
    expected[places(round_id, size=SIZE, count=SIZE // 2)] = 0.125
    assert np.array_equal(service.parameters()[1], expected)
    assert [person["uploads"] for person in service.overview()] == [1, 1, 0]
    service.close()


def test_too_few_do_not_go_on(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, clock = pooled
    round_id, made = enrol(service, keys, "ann", "bob")
    clock.now = 10.0
    service.masked("ann", hidden(service, "ann", round_id, made["ann"], 0.25))
    service.leave("bob", round_id + made["bob"].goodbye())
    refused(Reason.ROUND, lambda: service.roster("ann", round_id))
    refused(Reason.ROUND, lambda: service.outcome("ann", round_id))
    assert service.parameters()[0] == 0 and service.round("ann") != round_id
    service.close()


def test_leaving_before_enrolment_closes_removes_a_participant_from_the_round(
    pooled: tuple[Service, Clock], keys: Path
) -> None:
    service, clock = pooled
    round_id, made = enrol(service, keys, "ann", "bob")
    service.leave("bob", round_id + made["bob"].goodbye())
    clock.now = 20.0
    refused(Reason.WAIT, lambda: service.roster("ann", round_id))
    refused(Reason.ROUND, lambda: service.roster("bob", round_id))
    service.close()


def test_uploads_sent_before_a_participant_left_stay_masked(keys: Path) -> None:
    """Even with what the others send afterwards: the masks among all and among those who remain are different."""
    made = masks(keys)
    roster = [mask.card() for mask in made]
    gone = [Goodbye(place=2, signature=made[2].goodbye())]
    values = np.full(2000, 0.25, dtype=np.float32)

    def hide(mask: Mask, gone: list[Goodbye]) -> Words:
        return mask.hide(values, bound=BOUND, roster=roster, least=2, gone=gone)

    first = [hide(mask, []) for mask in made[:2]]
    second = [hide(mask, gone) for mask in made[:2]]
    assert np.array_equal(second[0] + second[1], 2 * encode(values, BOUND))
    for mixed in (first[0] + first[1], first[0] + second[1], first[0] - second[0], first[1] - second[1]):
        high = (mixed >> np.uint64(56)).astype(np.int64)
        assert len(np.unique(mixed)) == 2000 and stats.chisquare(np.bincount(high, minlength=256)).pvalue > 1e-9


def test_goodbyes_that_are_not_in_order(keys: Path) -> None:
    made = masks(keys)
    roster = [mask.card() for mask in made]
    values = np.zeros(4, dtype=np.float32)
    other = masks(keys, round_id=bytes(16))[2]

    def hide(*gone: Goodbye, least: int = 2) -> Words:
        return made[0].hide(values, bound=BOUND, roster=roster, least=least, gone=gone)

    carl = Goodbye(place=2, signature=made[2].goodbye())
    hide(carl)
    with pytest.raises(ValueError, match="the round has 2 participants, not 3"):
        hide(carl, least=3)
    with pytest.raises(ValueError, match="who was not in it"):
        hide(Goodbye(place=3, signature=made[2].goodbye()))
    with pytest.raises(ValueError, match="own key is missing"):
        hide(Goodbye(place=0, signature=made[0].goodbye()))
    for wrong in (made[1].goodbye(), other.goodbye(), made[2].card().signature, b""):
        with pytest.raises(Refused, match="a goodbye is not signed"):
            hide(Goodbye(place=2, signature=wrong))


def test_a_round_that_does_not_add_up_is_abandoned(pooled: tuple[Service, Clock], keys: Path) -> None:
    service, clock = pooled
    round_id, made = enrol(service, keys, "ann", "bob")
    clock.now = 10.0
    service.masked("ann", hidden(service, "ann", round_id, made["ann"], 0.25))
    refused(Reason.ROUND, lambda: service.masked("bob", round_id + bytes(4 * SIZE)))  # not masked at all
    assert service.parameters()[0] == 0
    refused(Reason.ROUND, lambda: service.outcome("ann", round_id))
    service.close()


def test_masked_uploads_over_the_network_are_the_plain_sum(
    serve: Callable[..., Place], link: Callable[..., Link], keys: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement(pool=3)), lease=30.0, patience=30.0)
    sent: dict[str, list[np.ndarray]] = {name: [] for name in PEOPLE}

    def run(name: str, move: float) -> None:
        model = nn.Linear(7, 5)
        flat, agreed = FlatParameters(model), Agreed(0.5)

        def train() -> None:
            flat.vector[:] += np.float32(move)

        uploads = SelectedUploads(agreed, bound=BOUND, source=SecureSource())
        shard = find_shards([link(place.address, name)])[0]
        own = Credentials.read(keys, name)
        person = Participant(name, flat, train, uploads)
        outbox = open_outbox(tmp_path / name, name, [shard])
        member = MaskedMembership(person, shard, outbox, credentials=own, agreed=agreed)
        for _ in range(2):
            upload = member.exchange()
            change = np.zeros(SIZE)
            change[upload.indices] = upload.values
            sent[name].append(change)
        assert member.outbox.unsent() == [] and member.lost == 0
        member.close()

    threads = [threading.Thread(target=run, args=(name, 0.0625 * (1 + k))) for k, name in enumerate(PEOPLE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all(len(rounds) == 2 for rounds in sent.values())
    uploads, parameters = place.service.parameters()
    assert uploads == 2
    assert parameters.astype(np.float64) == pytest.approx(sum(sum(rounds) for rounds in sent.values()), abs=1e-6)


def test_a_participant_whose_budget_is_spent_leaves_and_the_others_finish(
    serve: Callable[..., Place], link: Callable[..., Link], keys: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement(pool=2)), lease=600.0, patience=600.0)
    sent: dict[str, list[np.ndarray]] = {name: [] for name in PEOPLE}
    stopped: list[str] = []

    def run(name: str, move: float) -> None:
        flat, agreed = FlatParameters(nn.Linear(7, 5)), Agreed(0.5)

        def train() -> None:
            flat.vector[:] += np.float32(move)

        inner, made = SelectedUploads(agreed, bound=BOUND, source=SecureSource()), []

        def uploads(change: Vector) -> tuple[Positions, Vector]:
            if name == "carl" and made:
                time.sleep(1.0)  # the others have sent by then, masked with him among them
                raise BudgetExceeded("spent")
            made.append(change)
            return inner(change)

        own = Credentials.read(keys, name)
        shard = find_shards([link(place.address, name)])[0]
        person = Participant(name, flat, train, uploads)
        outbox = open_outbox(tmp_path / name, name, [shard])
        member = MaskedMembership(person, shard, outbox, credentials=own, agreed=agreed)
        try:
            for _ in range(2):
                upload = member.exchange()
                change = np.zeros(SIZE)
                change[upload.indices] = upload.values
                sent[name].append(change)
        except BudgetExceeded:
            stopped.append(name)
        assert member.outbox.unsent() == [] and member.lost == 0
        assert len(made) == len(sent[name])  # nothing was drawn again
        member.close()

    threads = [threading.Thread(target=run, args=(name, 0.0625 * (1 + k))) for k, name in enumerate(PEOPLE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert stopped == ["carl"] and [len(sent[name]) for name in PEOPLE] == [2, 2, 1]
    uploads, parameters = place.service.parameters()
    assert uploads == 2
    assert parameters.astype(np.float64) == pytest.approx(sum(sum(rounds) for rounds in sent.values()), abs=1e-6)


def test_a_server_that_shows_other_people_later_gets_nothing_more(keys: Path) -> None:
    """Without a goodbye nobody masks again, whoever is missing from the roster."""
    made = masks(keys)
    cards = [mask.card() for mask in made]

    class Lying:
        def call(self, method: str, request: bytes) -> bytes:
            return pack_roster(cards[:2])

    member = MaskedMembership.__new__(MaskedMembership)
    member._link = Lying()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="others in the round than before"):
        member._remaining(Seat(round_id=ROUND, mask=made[0], roster=cards, gone=[]))
