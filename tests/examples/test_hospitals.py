"""The example of three hospitals runs from top to bottom: together they learn what none learns alone."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("grpc", reason="the extra collab (grpcio) is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals.py"


@pytest.fixture
def hospitals() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hospitals", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_together_they_learn_what_none_learns_alone(
    hospitals: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hospitals, "EPOCHS", 24)  # on a busy machine the first to start trains alone for some
    monkeypatch.setattr(hospitals, "PROTOCOL", "asynchronous")  # nobody waits for a turn
    monkeypatch.setattr(sys, "argv", ["hospitals.py", "--out", str(tmp_path), "--rows", "800"])
    hospitals.main()
    text = capsys.readouterr().out
    found = {mode: [float(x) for x in re.findall(rf"{mode} +(0\.\d+)", text)] for mode in ("alone", "together")}
    assert len(found["alone"]) == len(found["together"]) == 3
    assert max(found["alone"]) < 0.55  # three of six diseases
    assert min(found["together"]) > max(found["alone"]) + 0.05
    assert len(re.findall(r"ε = (?:3\.[5-9]\d|4\.00), δ = 1e-05\) example-level", text)) == 3
