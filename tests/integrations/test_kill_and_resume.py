"""A process that is killed in the middle of a lot is resumed by the same script, and pays for the lost steps."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.ledger import Ledger

TESTS = Path(__file__).parents[1]
NEEDED = {"transformers": ("transformers", "accelerate"), "lightning": ("lightning",), "accelerate": ("accelerate",)}


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(TESTS), str(Path(tacit.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-m", "integrations.killed", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    "framework", ["transformers", *(pytest.param(name, marks=pytest.mark.slow) for name in ("accelerate", "lightning"))]
)
def test_a_killed_training_is_resumed_within_its_budget(framework: str, tmp_path: Path) -> None:
    for package in NEEDED[framework]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    resumed = start(framework, str(tmp_path), "5")
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    found: dict[str, Any] = json.loads(resumed.stdout.splitlines()[-1])
    assert found["killed_by"] == signal.SIGKILL
    assert found["held"] == 6  # the sixth lot was charged, drawn and lost
    assert "the ledger has 3 steps that were charged after the checkpoint" in resumed.stderr
    # Three steps were lost, and the noise stays what it was: the budget ends the run before all eight are taken.
    assert found["step"] == 5 and found["charged"] == len(Ledger.load(tmp_path / "ledger.jsonl")) == 8
    assert 2.9 < found["epsilon"] <= 3.0
