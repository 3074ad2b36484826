"""The example of federated averaging runs from top to bottom, and says what it cost."""

from __future__ import annotations

import contextlib
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated_averaging.py"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--quick"])


def test_quick(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):  # where the text is not here
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    if out.startswith("There is no text/tinyshakespeare.txt"):
        pytest.skip("the text is not here; set TACIT_DATA to the folder that has text/tinyshakespeare.txt")
    losses = [float(value) for value in re.findall(r"loss ([\d.]+) nats", out)]
    assert len(losses) == 3
    assert losses[-1] < 4.0  # a guess at random costs 4.17
    found = re.search(r"\(ε = ([\d.]+), δ = 0.001\) user-level, add/remove, Poisson", out)
    assert found and float(found[1]) <= 10.0


def test_without_the_text_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "house" / "examples" / EXAMPLE.name
    copy.parent.mkdir(parents=True)
    shutil.copy(EXAMPLE, copy)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        runpy.run_path(str(copy), run_name="__main__")
    out = capsys.readouterr().out
    assert out.startswith("There is no text/tinyshakespeare.txt; put it in") and out.count("\n") == 1
