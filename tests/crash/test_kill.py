"""A training run killed with SIGKILL again and again, and resumed: no charge is lost, no noise comes twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tacit

TRAINER = Path(__file__).with_name("trainer.py")
HOOKS = (
    "about to record",
    "in the journal, before a write",
    "in the journal, half a write",
    "in the journal, before the disk has it",
    "in the journal, after the disk has it",
    "recorded, nobody drawn",
    "recorded, not yet released",
    "released, not yet used",
    "saving a checkpoint",
)


class Trainer:
    """A process that runs the training again and again, each time in a fork that dies when it is told to."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self._process = folder, process

    def train(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def charged(self) -> int:
        path = self.folder / "ledger.jsonl"
        return len(tacit.Ledger.load(path)) if path.exists() else 0

    def released(self) -> list[dict[str, Any]]:
        """Releases of gradients; the counts of adaptive clipping are released together with them."""
        path = self.folder / "releases.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


@contextmanager
def trainer(folder: Path, steps: int) -> Iterator[Trainer]:
    paths = [str(Path(tacit.__file__).parents[1]), str(TRAINER.parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TRAINER), str(folder), str(steps)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as process:
        yield Trainer(folder, process)
        assert process.stdin is not None
        process.stdin.close()


def killed_and_resumed(folder: Path, kills: int, steps: int, most_calls: int) -> None:
    chance = random.Random(kills)
    with trainer(folder, steps) as training:
        for number in range(kills):
            if number % 3 == 0:
                hook = HOOKS[number // 3 % len(HOOKS)]
                order: dict[str, Any] = {"hook": hook, "count": chance.randint(1, 8)}
            else:
                order = {"calls": chance.randint(1, most_calls)}
            before = training.charged()
            assert training.train(order) == -signal.SIGKILL, f"the run ended before {order}; give it more steps"
            assert training.charged() >= before
            assert training.charged() >= len(training.released()), order
            if order.get("hook") == "recorded, not yet released":
                assert training.charged() > len(training.released())  # charged for nothing, never the other way
        assert training.train({}) == 0
        released = training.released()
        assert training.charged() >= len(released) >= steps
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == steps
    assert result["accuracy"] > 0.9
    noises = [tuple(entry["noise"]) for entry in released]
    assert len(set(noises)) == len(noises)
    repeated = len(released) - len({entry["step"] for entry in released})
    assert repeated > 0  # some steps were done again, each with new noise and a charge of its own


def test_killed_twenty_times(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, kills=27, steps=400, most_calls=4000)


@pytest.mark.slow
def test_killed_two_hundred_times(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, kills=210, steps=3000, most_calls=4000)


def test_a_full_disk_stops_the_run_before_another_release(tmp_path: Path) -> None:
    """The kernel itself refuses to let the journal grow."""
    with trainer(tmp_path, 100) as training:
        assert training.train({"bytes": 8000}) == 3
        assert "LedgerUnavailable" in (tmp_path / "error.txt").read_text()
        done = training.released()
        assert 0 < len(done) <= training.charged() <= len(done) + 1
        assert training.train({}) == 0  # with room again it goes on, and everything stays charged
        assert training.charged() >= len(training.released()) >= 100
