"""The example of federated averaging runs from top to bottom, and says what it cost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated_averaging.py"


def run(script: Path, **environment: str) -> str:
    paths = os.pathsep.join(filter(None, [str(EXAMPLE.parents[1] / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(script), "--quick"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quick() -> None:
    out = run(EXAMPLE)
    if out.startswith("There is no text/tinyshakespeare.txt"):
        pytest.skip("the text is not here; set TACIT_DATA to the folder that has text/tinyshakespeare.txt")
    losses = [float(value) for value in re.findall(r"loss ([\d.]+) nats", out)]
    assert len(losses) == 3
    assert losses[-1] < 4.0  # a guess at random costs 4.17
    found = re.search(r"\(ε = ([\d.]+), δ = 0.001\) user-level, add/remove, Poisson", out)
    assert found and float(found[1]) <= 10.0


def test_without_the_text_it_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "house" / "examples" / EXAMPLE.name
    copy.parent.mkdir(parents=True)
    shutil.copy(EXAMPLE, copy)
    out = run(copy, TACIT_DATA=str(tmp_path), HOME=str(tmp_path))
    assert out.startswith("There is no text/tinyshakespeare.txt; put it in") and out.count("\n") == 1
