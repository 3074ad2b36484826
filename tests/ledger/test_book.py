"""The ledger in memory and in a file: recording, receipts, gates, headers, threads and forks."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.ledger import (
    Adjacency,
    Budget,
    BudgetExceeded,
    Everyone,
    GaussianSum,
    Header,
    LaplaceSum,
    Ledger,
    LedgerUnavailable,
    Poisson,
    Receipt,
    Selection,
    Step,
)


def step(noise: float = 2.0, unit: str = "example") -> Step:
    return Step(
        Poisson(rate=0.01, unit=unit),
        (
            GaussianSum(group="a", clip_norm=1.0, noise_std=noise),
            LaplaceSum(group="b", clip_norm=1.0, scale=3.0, dimension=1),
        ),
    )


@pytest.fixture(params=["memory", "file"])
def ledger(request: Any, tmp_path: Path) -> Iterator[Ledger]:
    with Ledger() if request.param == "memory" else Ledger.open(tmp_path / "ledger.jsonl") as made:
        yield made


def test_equal_steps_in_a_row_are_one_entry(ledger: Ledger) -> None:
    for noise in (1.0, 1.0, 2.0, 1.0, 1):
        ledger.record(step(noise))
    assert len(ledger) == 5
    assert ledger.entries == ((step(1.0), 2), (step(2.0), 1), (step(1.0), 2))
    assert [(s, list(q), c) for s, q, c in ledger][1] == (step(2.0).sampling, list(step(2.0).queries), 1)


def test_an_empty_ledger_is_still_a_ledger(ledger: Ledger) -> None:
    assert ledger
    assert len(ledger) == 0
    assert list(ledger) == []
    assert ledger.header == Header()


def test_the_digest_tells_steps_counts_and_headers_apart_but_not_places(tmp_path: Path) -> None:
    digests = set()
    for header in (Header(), Header(purpose="x")):
        memory, file = Ledger(header), Ledger.open(tmp_path / str(len(digests)), header)
        for noise in (1.0, 1.0, 2.0):
            assert memory.digest == file.digest
            digests.add(memory.digest)
            memory.record(step(noise))
            file.record(step(noise))
        assert Ledger.load(tmp_path / str(len(digests) - 3)).digest == memory.digest
    assert len(digests) == 6


def test_a_receipt_is_good_for_one_draw_and_one_release_of_each_group(ledger: Ledger) -> None:
    receipt = ledger.record(step())
    assert receipt.step == step()
    assert receipt.draw() == step().sampling
    with pytest.raises(RuntimeError, match="already drawn"):
        receipt.draw()
    assert receipt.unspent == ("a", "b")
    assert receipt.spend("b") == step().queries[1]
    with pytest.raises(RuntimeError, match="'b' of this step was already released"):
        receipt.spend("b")
    with pytest.raises(ValueError, match="'c'; the recorded step answers 'a', 'b'"):
        receipt.spend("c")
    assert receipt.spend("a") == step().queries[0]
    assert receipt.unspent == ()


def test_a_receipt_cannot_be_made_or_multiplied() -> None:
    receipt = Ledger().record(step())
    with pytest.raises(TypeError, match=r"Ledger\.record"):
        Receipt()
    for multiply in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="two releases"):
            multiply(receipt)


def test_a_receipt_spends_once_among_many_threads() -> None:
    for _ in range(50):
        receipt, got = Ledger().record(step()), []
        start = threading.Barrier(4)

        def spend(receipt: Receipt = receipt, got: list[Any] = got, start: threading.Barrier = start) -> None:
            start.wait()
            with contextlib.suppress(RuntimeError):
                got.append(receipt.spend("a"))

        threads = [threading.Thread(target=spend) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1


def test_a_ledger_cannot_be_copied(ledger: Ledger) -> None:
    for multiply in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"Ledger\.load"):
            multiply(ledger)


def test_a_step_of_another_unit_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match=r"unit is 'user'.*'example'"):
        ledger.record(step(unit="user"))
    hidden = Selection(group="best", trials="poisson", mean=3.0, candidate=((step(unit="user"), 1),))
    with pytest.raises(ValueError, match="unit is 'user'"):
        ledger.record(Step(Everyone(), (hidden,)))
    with pytest.raises(ValueError, match="records a Step, not Poisson"):
        ledger.record(step().sampling)  # type: ignore[arg-type]
    assert len(ledger) == 0


def test_a_gate_stops_the_step_before_it_is_written(ledger: Ledger) -> None:
    seen = []

    def gate(book: Ledger, asked: Step) -> None:
        seen.append((len(book), asked))
        if len(book) >= 2:
            raise BudgetExceeded.before(Budget(1.0, 1e-5), steps=len(book))

    ledger.guard(gate)
    ledger.record(step())
    ledger.record(step(3.0))
    digest = ledger.digest
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            ledger.record(step())
    assert seen == [(0, step()), (1, step(3.0)), (2, step()), (2, step())]
    assert len(ledger) == 2
    assert ledger.digest == digest


def test_a_second_gate_does_not_replace_the_first(ledger: Ledger) -> None:
    def refuse(book: Ledger, asked: Step) -> None:
        raise BudgetExceeded("no")

    ledger.guard(refuse)
    ledger.guard(lambda book, asked: None)
    with pytest.raises(BudgetExceeded):
        ledger.record(step())


def test_a_gate_may_not_record(ledger: Ledger) -> None:
    ledger.guard(lambda book, asked: book.record(asked) and None)  # type: ignore[func-returns-value]
    with pytest.raises(RuntimeError, match="only look"):
        ledger.record(step())
    assert len(ledger) == 0


def test_nothing_is_recorded_after_close_or_in_a_loaded_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        ledger.record(step())
    ledger.close()
    with pytest.raises(LedgerUnavailable, match=r"closed; use Ledger\.open"):
        ledger.record(step())
    with pytest.raises(LedgerUnavailable, match=r"for reading; use Ledger\.open"):
        Ledger.load(path).record(step())
    assert len(ledger) == len(Ledger.load(path)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("adjacency", Adjacency.REPLACE_ONE),
        ("unit", "user"),
        ("secure_randomness", False),
        ("purpose", "another"),
        ("fingerprint", "abc"),
    ],
)
def test_a_header_that_contradicts_the_stored_one_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger.open(path, Header(purpose="p")).close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match=field):
        Ledger.open(path, Header(**({"purpose": "p"} | {field: value})))
    assert path.read_bytes() == before
    with Ledger.open(path, Header(purpose="p", library="tacit 99")) as ledger:
        assert ledger.header == Header(purpose="p")
    with Ledger.open(path) as ledger:
        assert ledger.header.purpose == "p"


def test_many_threads_record_on_one_ledger(ledger: Ledger) -> None:
    def work(noise: float) -> None:
        for _ in range(40):
            ledger.record(step(noise))

    threads = [threading.Thread(target=work, args=(noise,)) for noise in (1.0, 1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger) == sum(count for _, count in ledger.entries) == 120
    assert sum(count for one, count in ledger.entries if one == step(2.0)) == 40


def _in_child(ledger: Ledger, receipt: Receipt, pipe: Any) -> None:
    words = []
    for call in (lambda: ledger.record(step()), receipt.draw, lambda: receipt.spend("a")):
        try:
            call()
            words.append("done")
        except (LedgerUnavailable, RuntimeError) as error:
            words.append(str(error))
    ledger.close()
    pipe.send(words)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_may_not_use_the_ledger_nor_a_receipt(ledger: Ledger) -> None:
    receipt = ledger.record(step())
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(ledger, receipt, there))
    child.start()
    assert here.poll(20)
    assert all("forked child" in word for word in here.recv())
    child.join()
    receipt.spend("a")
    ledger.record(step())
    assert len(ledger) == 2


def test_a_ledger_that_promises_secure_randomness_takes_no_other() -> None:
    ledger = Ledger(Header(secure_randomness=True))
    step = Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=1.0),))
    with pytest.raises(ValueError, match="promises secure randomness"):
        ledger.record(step, secure=False)
    assert not len(ledger)
    Ledger(Header(secure_randomness=False)).record(step, secure=False)
