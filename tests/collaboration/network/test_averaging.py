"""Averaging over our own service: the server's noise protects whole participants, and its ledger says how much."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from collaboration.network.helpers import PEOPLE
from collaboration.network.masked import refused
from tacit.accounting import account
from tacit.collaboration import Averaging, LocalDpSgd, Reason, Refused, average, contribute
from tacit.collaboration.network import codec
from tacit.collaboration.network.averaging import WORK, AveragingService
from tacit.collaboration.network.database import StorageFailed
from tacit.ledger import Budget, Ledger

INPUTS = torch.randn(90, 5, generator=torch.Generator().manual_seed(1))
LABELS = (INPUTS[:, 0] > 0).long()


def build() -> nn.Module:
    return nn.Linear(5, 2)


def averaging(folder: Path, **changes: Any) -> Averaging:
    terms: dict[str, Any] = {"population": 3, "lot_size": 3, "clip_norm": 0.5, "rounds": 4, "least": 3}
    return Averaging(**{"network": build, "folder": folder, "budget": Budget(200.0, 1e-5), **terms, **changes})


def test_a_whole_run_says_both_guarantees(tmp_path: Path, keys: Path) -> None:
    found: dict[str, Any] = {}
    with average(averaging(tmp_path / "server"), admit=PEOPLE, keys=keys, listen="127.0.0.1:0") as server:

        def take_part(number: int, name: str) -> None:
            rows = slice(30 * number, 30 * number + 30)
            privacy = LocalDpSgd(epsilon=8.0, delta=1e-5) if name == "ann" else None
            found[name] = contribute(server.address, name=name, keys=keys, folder=tmp_path / name, network=build,
                                     dataset=(INPUTS[rows], LABELS[rows]), privacy=privacy, most_epsilon=200.0,
                                     learning_rate=0.5)  # fmt: skip

        threads = [threading.Thread(target=take_part, args=each) for each in enumerate(PEOPLE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.service.rounds == 4
    ledger = Ledger.load(tmp_path / "server" / "ledger.jsonl")
    central = account(ledger, delta=1e-5)
    assert len(ledger) == 4 and central.unit == "participant" and central.epsilon <= 200.0
    for name, one in found.items():
        assert (
            one.rounds == 4 and one.central_epsilon == pytest.approx(central.epsilon) and str(central) in one.report()
        )
        assert (one.local is not None) == (name == "ann")
    assert found["ann"].local.whole.unit == "example" and found["ann"].local.whole.epsilon <= 8.0
    assert torch.equal(found["ann"].model.weight, found["bob"].model.weight)


def test_a_participant_that_leaves_early_gets_no_guarantee(tmp_path: Path, keys: Path) -> None:
    """No ε is known then; 0 would be a promise."""
    with average(averaging(tmp_path / "server"), admit=PEOPLE, keys=keys, listen="127.0.0.1:0") as server:
        left = contribute(server.address, name="ann", keys=keys, folder=tmp_path / "ann", network=build,
                          dataset=(INPUTS[:30], LABELS[:30]), learning_rate=0.5, ended=lambda: True)  # fmt: skip
    assert left.central_epsilon is None and "not told" in left.report()


def work(service: AveragingService, name: str) -> tuple[int, np.ndarray]:
    answer = service.work(name)
    assert answer[:1] == WORK
    number, body = codec.split_token(answer[1:])
    return number, codec.unpack_download(bytes(body), size=12).values


def change(number: int, value: float) -> bytes:
    values = np.full(12, value, dtype=np.float32)
    return codec.pack_token(number) + codec.pack_upload(0, np.arange(12), values, size=12)


def test_the_server_clips_whatever_it_is_sent(tmp_path: Path) -> None:
    """With little noise, a participant moves the mean by about S / lot_size at most, and NaN by nothing."""
    own = averaging(tmp_path, noise_multiplier=0.02, budget=Budget(1e5, 1e-5), rounds=1)
    service = AveragingService(own, PEOPLE)
    for name in PEOPLE[:2]:
        with pytest.raises(Refused, match="others are waited for"):
            service.work(name)
    before = work(service, "carl")[1]
    service.change("ann", change(0, 1e6))
    service.change("bob", change(0, math.nan))
    with pytest.raises(Refused, match="the round is over, or you were not drawn"):
        service.change("ann", change(0, 1.0))  # one answer each
    with pytest.raises(Refused, match="the round is over"):
        service.change("carl", change(1, 1.0))
    service.change("carl", change(0, 0.0))
    assert service.rounds == 1
    moved = service._averager.parameters - before
    assert float(np.linalg.norm(moved)) == pytest.approx(0.5 / 3, abs=0.08)  # 7 standard deviations of the noise
    service.close()


def test_a_round_goes_on_without_silent_participants_and_stays_charged(tmp_path: Path) -> None:
    now = [0.0]
    service = AveragingService(averaging(tmp_path, patience=60.0, least=1), PEOPLE, clock=lambda: now[0])
    number, _ = work(service, "ann")
    service.change("ann", change(number, 0.1))
    assert service.rounds == 0
    now[0] = 61.0
    assert work(service, "ann")[0] == 1  # the next round; bob and carl counted as zero
    with pytest.raises(Refused, match="the round is over"):
        service.change("bob", change(0, 0.1))
    service.close()  # round 1 was charged, and is lost
    assert len(Ledger.load(tmp_path / "ledger.jsonl")) == 2
    again = AveragingService(averaging(tmp_path, patience=60.0, least=1), PEOPLE)
    assert again.rounds == 1
    again.close()


def test_the_budget_ends_it(tmp_path: Path) -> None:
    own = averaging(tmp_path, least=1, noise_multiplier=5.0, budget=Budget(1.5, 1e-5), rounds=50)
    service = AveragingService(own, PEOPLE)
    rounds = 0
    while (answer := service.work("ann"))[:1] == WORK:
        for name in PEOPLE:
            service.change(name, change(rounds, 0.01))
        rounds += 1
    assert 0 < rounds < 50 and b"over the budget" in answer
    assert account(Ledger.load(tmp_path / "ledger.jsonl"), delta=1e-5).epsilon <= 1.5
    service.close()


@pytest.mark.parametrize("fails", ["the model", "the ledger"])
def test_a_full_disk_is_one_sentence_and_nothing_more_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    service = AveragingService(averaging(tmp_path / "s", least=1), PEOPLE)
    charged = len(service._averager.ledger)

    def full(*arguments: object, **options: object) -> None:
        raise StorageFailed("the disk is full; free some space and start again.")

    with monkeypatch.context() as patch:
        if fails == "the ledger":
            patch.setattr(service._averager.ledger, "record", full)
        else:
            patch.setattr(service._averager, "_save", full)
            service.work("ann")
            service._waiting.clear()  # all have answered
            charged += 1
        refused(Reason.UNAVAILABLE, lambda: service.work("ann"))
    for name in PEOPLE:
        assert "the disk is full" in refused(Reason.UNAVAILABLE, lambda name=name: service.work(name))  # type: ignore[misc]
    assert len(service._averager.ledger) == charged and service.rounds == 0
    assert caplog.text.count("the server's state cannot be written") == 1
    service.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"network": lambda: nn.Linear(4, 2)}, "the network here is not the server's: here module"),
        ({"most_epsilon": 100.0}, "promises a participant ε = 200 at δ = 1e-05, and yours is to be at most 100"),
        ({"name": "eve"}, "'eve' is not known"),
    ],
)
def test_a_difference_is_explained_before_anything_is_sent(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with average(averaging(tmp_path / "s"), admit=PEOPLE, listen="127.0.0.1:0") as server:
        own = {"name": "ann", "network": build, "dataset": (INPUTS, LABELS), "folder": tmp_path / "own", **options}
        with pytest.raises((ValueError, Refused), match=sentence):
            contribute(server.address, **own)
        assert len(server.service._averager.ledger) == 0


def test_names_and_slots_are_checked(tmp_path: Path) -> None:
    make: Callable[[Any], Any] = lambda people: AveragingService(averaging(tmp_path), people)  # noqa: E731
    for people in (["ann", "ann"], ["a", "b", "c", "d"], ["(pool)"]):
        with pytest.raises(ValueError, match=r"\.$"):
            make(people)
