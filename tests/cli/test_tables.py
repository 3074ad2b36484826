"""Tables on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tables.conftest import SCHEMA, people, write_csv
from tacit.cli import main


def tacit(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_csv(tmp_path / "people.csv", people(3000))


def test_from_a_file_to_predictions(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit("train", table, "--epsilon", "2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] > 0.8 and facts["test_is_private"] and facts["epsilon"] <= 2
    out = Path(facts["out"])
    assert {path.name for path in out.iterdir()} == {
        "ledger.jsonl",
        "model.json",
        "model.safetensors",
        "report.html",
        "run.json",
    }
    new = write_csv(table.parent / "new.csv", {k: v for k, v in people(20, seed=5).items() if k != "employed"})
    assert tacit("predict", out, new, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    lines = Path(facts["output"]).read_text().split()
    assert lines[0] == "employed" and len(lines) == 21 and set(lines[1:]) <= {"no", "yes"}
    assert tacit("predict", out, new) == 2  # it would write over an answer
    assert "exists" in capsys.readouterr().err


def test_without_a_schema_everything_is_found_out_privately(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit("train", table, "--target", "employed", "--epsilon", "4", "--json", "--test-fraction", "0.1") == 0
    captured = capsys.readouterr()
    assert "found out privately" in captured.err
    facts = json.loads(captured.out)
    assert facts["test_accuracy"] > 0.75 and facts["epsilon"] <= 4
    first = (Path(facts["out"]) / "ledger.jsonl").read_text()
    assert "values/school" in first and "bounds/age" in first


def test_a_draft_says_that_it_looked(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit("data", "schema", table, "--target", "employed", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["private"] is False
    assert tacit("train", table) == 2
    assert "draft" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--lot-size", "0"), ("--epochs", "-1"), ("--epsilon", "0.001")])
def test_bad_settings_leave_nothing_behind(table: Path, option: str, value: str) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit("train", table, option, value) == 2
    assert not (table.parent / "runs").exists() or not list((table.parent / "runs").iterdir())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["missing.csv"], "no file"),
        (["people.csv"], "--target"),
        (["people.csv", "--target", "wealth"], "no column 'wealth'"),
        (["people.csv", "--target", "employed", "--epsilon", "0"], "epsilon"),
        (["people.csv", "--target", "employed", "--model", "forest"], "model is 'forest'"),
        (["people.csv", "--target", "employed", "--recipe", "abadi"], "is a table"),
        (["mnist", "--target", "employed"], "are for tables"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    table: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit("train", *words) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tacit: ") and text in error
