"""``tacit reproduce``: the list, one figure, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 15 and "figure5       Abadi et al. 2016, Figure 5" in out
    code, out, _ = run(capsys, "--json")
    assert {"figure2", "headline"} <= {entry["name"] for entry in json.loads(out)["experiments"]}


def test_one_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "figure2", "--out", str(tmp_path / "new" / "out"), "--json")
    facts = json.loads(out)
    assert code == 0 and facts["name"] == "figure2" and facts["quick"] is False
    assert [Path(path).name for path in facts["files"]] == ["figure2.md", "figure2.csv", "figure2.png"]
    assert all(Path(path).exists() for path in facts["files"])
    moments = next(c for c in facts["comparisons"] if "400 epochs, moments" in c["what"])
    assert (moments["paper"], round(moments["ours"], 3)) == (2.55, 2.576)
    assert not (tmp_path / "new" / "out" / "runs").exists()  # nothing was trained


def test_a_table_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "figure2", "--quick", "--out", str(tmp_path))
    assert code == 0 and "24.22" in out and "2.58" in out and "written: " in out
    assert "24.22" not in err  # the bar alone


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "figure7", "--out", str(tmp_path / "none"))
    assert (code, out) == (2, "") and err.startswith("tacit: experiment is 'figure7'; choose one of headline,")
    assert len(err.splitlines()) == 1 and not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "figure2", "--out", str(tmp_path / "file"))
    assert code == 2 and "which is a file; give a directory" in err
    code, _, err = run(capsys, "figure2", "--out", str(tmp_path), "--seeds", "0")
    assert code == 2 and "seeds is 0" in err
