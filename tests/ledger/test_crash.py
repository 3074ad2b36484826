"""A crash at any moment: never fewer steps than were released, and at most the one in flight more."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tacit.ledger import GaussianSum, Ledger, Poisson, Step, journal
from tacit.ledger.reading import read

A, B, C = (
    Step(Poisson(rate=0.01), (GaussianSum(group="gradient", clip_norm=4.0, noise_std=noise),))
    for noise in (4.0, 8.0, 16.0)
)

WRITER = """
import os, sys
from tacit.ledger import GaussianSum, Ledger, Poisson, Step
path, kinds = sys.argv[1], int(sys.argv[2])
steps = [Step(Poisson(rate=0.01), (GaussianSum(group="g", clip_norm=1.0, noise_std=1.0 + i),)) for i in range(kinds)]
ledger = Ledger.open(path)
os.write(1, b"o")
while True:
    for step in steps:
        ledger.record(step)
        os.write(1, b"r")
"""


@pytest.mark.parametrize("kinds", [1, 2], ids=["identical", "alternating"])
def test_kill_9_never_loses_a_released_step(tmp_path: Path, kinds: int) -> None:
    path, chance = tmp_path / "ledger.jsonl", random.Random(kinds)
    recorded = released = 0
    for _ in range(25):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(kinds)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert select.select([writer.stdout], [], [], 30)[0]
        time.sleep(chance.choice([0, 0.03]) * chance.random())
        writer.send_signal(signal.SIGKILL)
        now = writer.stdout.read().count(b"r")
        writer.wait()
        writer.stdout.close()
        found = len(Ledger.load(path))
        assert found - recorded - now in (0, 1)
        recorded, released = found, released + now
    assert released > 5  # enough to lose, on a machine under load too
    with Ledger.open(path) as ledger:
        assert len(ledger) == recorded
        ledger.record(A)
    assert len(Ledger.load(path)) == recorded + 1


class Disk:
    """Remembers what the writer did to the file: ("put", data, offset), ("cut", size), ("sync",) and ("return",)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        put, cut, sync = journal._put, os.ftruncate, os.fsync
        patch.setattr(journal, "_put", lambda fd, data, at: (self.log.append(("put", data, at)), put(fd, data, at)))
        patch.setattr(journal, "_sync", lambda fd: self.log.append(("sync",)))
        patch.setattr(os, "ftruncate", lambda fd, size: (self.log.append(("cut", size)), cut(fd, size)))
        patch.setattr(os, "fsync", lambda fd: (self.log.append(("sync",)), sync(fd)))


def torn(image: bytes, data: bytes, at: int, cuts: range) -> set[bytes]:
    """What an unfinished write can leave: its first part, its last part, or its last part after zeros."""
    states = set()
    for cut in cuts:
        under = image[at : at + len(data)]
        for mixed in (data[:cut] + under[cut:], under[:cut].ljust(cut, b"\0") + data[cut:]):
            states.add(image[:at] + mixed + image[at + len(data) :])
    return states


def replay(image: bytes, log: list[tuple[Any, ...]], fine: int) -> list[tuple[int, set[bytes]]]:
    """For every moment of the log: how many steps had been released, and every state a crash can leave."""
    moments, released = [(0, {image})], 0
    for kind, *rest in log:
        if kind == "put":
            data, at = rest
            moments.append((released, torn(image, data, at, range(0, len(data) + 1, fine))))
            image = image[:at] + data + image[at + len(data) :]
        elif kind == "cut":
            image = image[: rest[0]]
        released += kind == "return"
        moments.append((released, {image}))
    return moments


def unsynced(log: list[tuple[Any, ...]]) -> int:
    """The most writes that were waiting for the disk at once; none may wait when a step is released."""
    most = now = 0
    for kind, *_ in log:
        now = 0 if kind == "sync" else now + (kind == "put")
        most = max(most, now)
        assert kind != "return" or now == 0
    return most


def steps_of(image: bytes) -> list[Step]:
    return [step for step, count in read(image, "j").runs for _ in range(count)]


def test_every_torn_state_reads_as_the_steps_released_or_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, script = tmp_path / "ledger.jsonl", [A, A, A, B, A, C, C, B]
    ledger = Ledger.open(path)
    start = path.read_bytes()
    disk = Disk(monkeypatch)
    for step in script:
        ledger.record(step)
        disk.log.append(("return",))
    assert unsynced(disk.log) == 1  # each write waits for the one before: a crash tears one at most
    states = 0
    for released, images in replay(start, disk.log, 1):
        for image in images:
            found = steps_of(image)
            assert found in (script[:released], script[: released + 1])
            states += 1
    assert states > 3000


def test_a_crash_during_the_repair_of_a_crash_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, script = tmp_path / "ledger.jsonl", [A, A, B, A]
    ledger = Ledger.open(path)
    start = path.read_bytes()
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        for step in script:
            ledger.record(step)
            disk.log.append(("return",))
    ledger.close()
    for _, images in replay(start, disk.log, 61):
        for image in images:
            wanted = steps_of(image)
            path.write_bytes(image)
            with monkeypatch.context() as patch:
                repair = Disk(patch)
                ledger = Ledger.open(path)
            assert len(ledger) == len(wanted)
            kinds = [kind for kind, *_ in repair.log]
            assert "cut" not in kinds or kinds[kinds.index("cut") + 1] == "sync"
            for _, later in replay(image, repair.log, 23):
                assert all(steps_of(state) == wanted for state in later)
            ledger.record(C)
            assert steps_of(path.read_bytes()) == [*wanted, C]
            ledger.close()


def test_a_new_journal_is_safe_in_its_directory_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = journal.sync
    monkeypatch.setattr(journal, "sync", lambda path: (synced.append(path), real(path)))
    Ledger.open(tmp_path / "a" / "b" / "ledger.jsonl").close()
    assert set(synced) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
