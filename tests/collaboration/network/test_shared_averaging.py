"""Averaging whose noise participants add under masks: the server sees noisy sums, and every ledger says the same."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from collaboration.network.helpers import PEOPLE
from collaboration.network.masked import Clock, refused
from tacit.accounting import account
from tacit.collaboration import Averaging, LocalDpSgd, Reason, Refused, average, contribute
from tacit.collaboration.network import Credentials, codec
from tacit.collaboration.network.averaging import WORK
from tacit.collaboration.network.averaging_terms import AveragingTerms
from tacit.collaboration.network.roster import threshold_of
from tacit.collaboration.network.seat import take_seat
from tacit.collaboration.network.shared_averaging import SharedAveragingService
from tacit.collaboration.network.shared_contributing import LEDGER, SharedRounds
from tacit.ledger import Budget, Ledger

INPUTS = torch.randn(90, 5, generator=torch.Generator().manual_seed(1))
LABELS = (INPUTS[:, 0] > 0).long()


def build() -> nn.Module:
    return nn.Linear(5, 2)


def averaging(folder: Path, **changes: Any) -> Averaging:
    terms: dict[str, Any] = {"population": 3, "lot_size": 3, "clip_norm": 0.5, "rounds": 2, "least": 2, "colluding": 0}
    terms |= {"network": build, "folder": folder, "budget": Budget(200.0, 1e-5), "noise_by": "participants"}
    return Averaging(**(terms | changes))


def in_threads(*work: Callable[[], object]) -> list[BaseException]:
    """All at once; return what failed."""
    failed: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except Exception as error:  # the caller looks at it
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return failed


def test_a_whole_run_says_both_guarantees_of_its_own_ledgers(tmp_path: Path, keys: Path) -> None:
    found: dict[str, Any] = {}
    with average(averaging(tmp_path / "server"), admit=PEOPLE, keys=keys, listen="127.0.0.1:0") as server:

        def take_part(number: int, name: str) -> None:
            rows = slice(30 * number, 30 * number + 30)
            privacy = LocalDpSgd(epsilon=8.0, delta=1e-5) if name == "ann" else None
            found[name] = contribute(server.address, name=name, keys=keys, folder=tmp_path / name, network=build,
                                     dataset=(INPUTS[rows], LABELS[rows]), privacy=privacy, most_epsilon=200.0,
                                     masked=True, learning_rate=0.5)  # fmt: skip

        assert in_threads(*(partial(take_part, number, name) for number, name in enumerate(PEOPLE))) == []
        assert server.service.rounds == 2
    central = account(Ledger.load(tmp_path / "server" / "ledger.jsonl"), delta=1e-5)
    assert central.unit == "participant" and 100 < central.epsilon <= 200.0
    for name, one in found.items():
        own = Ledger.load(tmp_path / name / LEDGER)
        assert len(own) == 2 and account(own, delta=1e-5).epsilon == central.epsilon == one.central_epsilon
        assert "our own ledger; if at most 0 of 2 tell the server theirs" in one.report()
        assert str(central) in one.report() and (one.local is not None) == (name == "ann")
    assert found["ann"].local.whole.unit == "example" and found["ann"].local.whole.epsilon <= 8.0
    assert torch.equal(found["ann"].model.weight, found["bob"].model.weight)


class Wire:
    """A link without a network; it keeps what was sent."""

    address = "here"

    def __init__(self, service: SharedAveragingService, name: str) -> None:
        self._methods, self._name = service.methods(), name
        self.sent: list[tuple[str, bytes]] = []

    def call(self, method: str, request: bytes) -> bytes:
        pause = threading.Event()
        for _ in range(20_000):
            try:
                answer = self._methods[method](self._name, request)
                self.sent.append((method, request))
                return answer
            except Refused as refusal:
                if refusal.reason is not Reason.WAIT:
                    raise
            pause.wait(0.002)
        raise AssertionError(f"{method} waits for ever")


def rounds_of(service: SharedAveragingService, keys: Path, folder: Path, name: str) -> tuple[SharedRounds, Wire]:
    return rounds_of_terms(service, keys, folder, name, service.methods()["Terms"](name, b""))


def rounds_of_terms(
    service: SharedAveragingService, keys: Path, folder: Path, name: str, text: bytes
) -> tuple[SharedRounds, Wire]:
    wire = Wire(service, name)
    return SharedRounds(wire, Credentials.read(keys, name), text, folder / name), wire  # type: ignore[arg-type]


@pytest.mark.parametrize("silent", [0, 1])
def test_the_noise_of_those_who_remain_is_at_least_what_the_ledger_says(
    tmp_path: Path, keys: Path, silent: int
) -> None:
    """Changes of zero, so that the model moves by noise alone: with all three, and with one that vanishes."""
    now = Clock()
    wide = partial(nn.Linear, 400, 10)
    own = averaging(tmp_path / "server", network=wide, rounds=1, budget=Budget(5.0, 1e-5), patience=5.0)
    service = SharedAveragingService(own, PEOPLE, clock=now)
    service.trust((keys / "ca.pem").read_bytes())
    before = service._averager.parameters.copy()
    people = [rounds_of(service, keys, tmp_path, name) for name in PEOPLE]

    def vanish() -> None:  # deals, and is never heard of again; the others have sent by the end of the phase
        one, wire = people[2]
        take_seat(wire, one._credentials, collaboration=one._collaboration, least=2, outbox=one._answers)
        while sum(method == "Masked" for _, other in people[:2] for method, _ in other.sent) < 2:
            threading.Event().wait(0.002)
        now.now = 6.0

    def send(number: int) -> None:
        people[number][0].send(torch.zeros(before.size))

    assert in_threads(partial(send, 0), partial(send, 1), vanish if silent else partial(send, 2)) == []
    assert service.rounds == 1
    event = own.shared_sum(before.size).event()
    moved = (service._averager.parameters - before) * own.lot_size
    expected = event.noise_std * np.sqrt((3 - silent) / own.least)
    assert float(moved.std()) == pytest.approx(expected, rel=0.06)  # 5 standard deviations of the estimate
    masked = [request for _, wire in people for method, request in wire.sent if method == "Masked"]
    assert len(masked) == 3 - silent
    for request in masked:  # single ones look uniform: each of 16 leading digits 251 times on average
        high = np.frombuffer(request[16:], dtype="<u8") >> np.uint64(60)
        assert np.bincount(high.astype(np.int64), minlength=16).min() > 160
    service.close()


def test_the_participants_ledger_stops_it_whatever_the_server_says(tmp_path: Path, keys: Path) -> None:
    own = averaging(tmp_path / "server", rounds=2, budget=Budget(20.0, 1e-5))
    service = SharedAveragingService(own, PEOPLE[:2])
    people = [rounds_of(service, keys, tmp_path, name)[0] for name in PEOPLE[:2]]
    send = [partial(one.send, torch.zeros(12)) for one in people]
    for _ in range(2):
        assert in_threads(*send) == []
    service._stopped, service._averager.rounds = "", 0  # a server that wants more rounds than were agreed on
    failed = in_threads(*send)
    assert len(failed) == 2 and all("over the budget" in str(error) for error in failed)
    assert all(len(one.ledger) == 2 for one in people)
    service.close()


def test_a_sum_that_is_too_long_is_not_taken_and_stays_charged(tmp_path: Path) -> None:
    service = SharedAveragingService(averaging(tmp_path), PEOPLE)
    before = service._averager.parameters.copy()
    refused(Reason.BOUND, lambda: service._averager.take(np.full(12, 2**50), 3))
    assert np.array_equal(service._averager.parameters, before) and len(service._averager.ledger) == 1
    service.close()


def test_after_the_last_round_enrolments_are_refused(tmp_path: Path) -> None:
    service = SharedAveragingService(averaging(tmp_path, rounds=1), PEOPLE)
    work = service.methods()["Work"]
    assert work("ann", b"")[:1] == WORK
    service._averager.take(np.zeros(12, dtype=np.int64), 3)
    assert "all 1 rounds were made" in refused(Reason.ROUND, lambda: service.methods()["Round"]("ann", b""))
    answer = work("ann", b"")
    assert answer[:1] != WORK and codec.split_token(answer[1:])[0] > 0
    refused(Reason.UNKNOWN, lambda: work("eve", b""))
    service.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lot_size": 2}, "noise by the participants is for rounds of all"),
        ({"seed": 1}, "without a seed"),
        ({"least": 1}, "at least two of 3 are in a sum"),
        ({"least": 4}, "at least two of 3 are in a sum"),
        ({"colluding": 2}, "fewer collude than are in it"),
        ({"noise_by": "nobody"}, "choose 'server' or 'participants'"),
    ],
)
def test_terms_without_a_proof_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        averaging(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"colluding": -100},
        {"colluding": 2},
        {"colluding": True},
        {"least": 1},
        {"least": 4},
        {"noise_multiplier": float("nan")},
        {"delta": 0.0},
        {"epsilon": "8"},
        {"noise_by": "nobody"},
        {"more": 1},
    ],
)
def test_a_participant_refuses_terms_with_which_its_noise_would_not_suffice(
    tmp_path: Path, keys: Path, changes: dict[str, Any]
) -> None:
    """With 100 fewer than none colluding each would add 1/102 of the variance, on a ledger that says all of it."""
    honest = json.loads(AveragingTerms.of(averaging(tmp_path), build(), 12).pack())
    rounds = partial(SharedRounds, None, Credentials.read(keys, "ann"), folder=tmp_path / "ann")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the server's terms are not those .* nothing was sent"):
        rounds(text=json.dumps({**honest, **changes}).encode())
    assert not (tmp_path / "ann").exists()
    rounds(text=json.dumps(honest).encode()).close()


@pytest.mark.parametrize(
    ("population", "least", "colluding", "lies"),
    [(3, 2, 0, True), (3, 2, 1, False), (3, 3, 1, True), (5, 3, 1, False), (5, 4, 1, True), (5, 4, 3, False)],
)
def test_the_report_says_whether_the_guarantee_holds_for_a_server_that_lies(
    tmp_path: Path, keys: Path, population: int, least: int, colluding: int, lies: bool
) -> None:
    own = averaging(tmp_path, population=population, lot_size=population, least=least, colluding=colluding)
    text = AveragingTerms.of(own, build(), 12).pack()
    rounds = SharedRounds(None, Credentials.read(keys, "ann"), text, tmp_path / "ann")  # type: ignore[arg-type]
    assert rounds.assumed.endswith("and the server keeps to the protocol") == (not lies)
    for people in range(least, population + 1):  # what 2t > n + c of the proof says of the smallest rounds too
        assert not lies or 2 * threshold_of(people, least) > people + colluding
    rounds.close()


def test_a_round_of_more_than_the_terms_say_gets_no_upload(tmp_path: Path, keys: Path) -> None:
    service = SharedAveragingService(averaging(tmp_path / "server"), PEOPLE)
    text = service.methods()["Terms"]("ann", b"").replace(b'"population": 3', b'"population": 2')
    service._masked.pool._collaboration = hashlib.sha256(text).hexdigest()
    first, wire = rounds_of_terms(service, keys, tmp_path, "ann", text)

    def sit(name: str) -> None:
        link, credentials = Wire(service, name), Credentials.read(keys, name)
        take_seat(link, credentials, collaboration=first._collaboration, least=2, outbox=first._answers)

    failed = in_threads(partial(first.send, torch.zeros(12)), partial(sit, "bob"), partial(sit, "carl"))
    assert [str(error) for error in failed] == [
        "the round has 3 participants, and the server's terms are for 2; nothing was sent."
    ]
    assert len(first.ledger) == 0 and not any(method == "Masked" for method, _ in wire.sent)
    service.close()


def test_a_participant_refuses_terms_with_a_larger_delta(tmp_path: Path, keys: Path) -> None:
    own = averaging(tmp_path / "s", budget=Budget(8.0, 0.5))
    with (
        average(own, admit=PEOPLE, keys=keys, listen="127.0.0.1:0") as server,
        pytest.raises(ValueError, match=r"ε = 8 at δ = 0\.5, and yours is to be at most 8 at 1e-05; nothing was sent"),
    ):
        contribute(server.address, name="ann", keys=keys, network=build, dataset=(INPUTS, LABELS), masked=True,
                   most_epsilon=8.0, folder=tmp_path / "ann")  # fmt: skip


def test_colluding_participants_make_everybody_add_more(tmp_path: Path) -> None:
    plain, wary = averaging(tmp_path, least=3), averaging(tmp_path, least=3, colluding=1)
    assert wary.shared_sum(12).event() == plain.shared_sum(12).event()
    assert wary.shared_sum(12).own_steps == pytest.approx(plain.shared_sum(12).own_steps * np.sqrt(3 / 2))


def test_a_single_participant_that_knows_its_own_noise_is_expected_unless_told_otherwise() -> None:
    assert Averaging.colluding == 1


def test_a_participant_that_insists_on_masks_refuses_a_server_that_adds_the_noise(tmp_path: Path, keys: Path) -> None:
    own = averaging(tmp_path / "s", noise_by="server")
    with (
        average(own, admit=PEOPLE, keys=keys, listen="127.0.0.1:0") as server,
        pytest.raises(ValueError, match="the server adds the noise and sees them; nothing was sent"),
    ):
        contribute(server.address, name="ann", keys=keys, network=build, dataset=(INPUTS, LABELS), masked=True,
                   folder=tmp_path / "ann")  # fmt: skip
    with pytest.raises(ValueError, match="needs certificates"):
        average(averaging(tmp_path / "t"), admit=PEOPLE)
