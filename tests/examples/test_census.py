"""The census example: its table and figure; training on the real records in the slow run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tacit.data import locate

EXAMPLE = Path(__file__).parents[2] / "examples" / "census.py"


@pytest.fixture
def census() -> ModuleType:
    spec = importlib.util.spec_from_file_location("census", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_table_and_figure(census: ModuleType, tmp_path: Path) -> None:
    results = {"network": {epsilon: [0.7, 0.8] for epsilon in census.EPSILONS}}
    assert "| network | 75.00 ± 5.00 | 75.00 ± 5.00 |" in census.markdown(results, [0.74, 0.74], 0.6)
    census.draw(tmp_path / "census.png", results, 0.74, 0.6)
    assert (tmp_path / "census.png").stat().st_size > 10_000


@pytest.mark.slow
def test_it_learns_who_is_employed(
    census: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if locate("pums") is None:
        pytest.skip("the census records are not here; see `tacit data`")
    monkeypatch.setattr(sys, "argv", ["census.py", "--out", str(tmp_path), "--repetitions", "1"])
    monkeypatch.setattr(census, "EPSILONS", (1.0,))
    census.main()
    assert (tmp_path / "census.md").read_text() in capsys.readouterr().out
    accuracy = [
        float(line.split("|")[2].split("±")[0]) for line in (tmp_path / "census.md").read_text().splitlines()[2:4]
    ]
    assert min(accuracy) > 72
