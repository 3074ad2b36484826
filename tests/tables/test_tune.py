"""Tuning on a table: one selection is charged, within the budget, and only the best run is released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tables.conftest import SCHEMA, people, write_csv
from tacit.accounting import account
from tacit.cli import main
from tacit.ledger import Ledger, Selection
from tacit.tables.registry import Registry


def tune(*words: str | Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[dict[str, Any], str]:
    with pytest.raises(SystemExit) as stop:
        main(["tune", *map(str, words), "--json"])
    captured = capsys.readouterr()
    assert stop.value.code == code, captured.err
    return json.loads(captured.out) if not code else {}, captured.err


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tacit.tables.rule._STEPS", 40)
    return write_csv(tmp_path / "people.csv", people(3000))


@pytest.mark.parametrize(
    ("model", "declared", "settings"), [("linear", True, 12), ("boosted", True, 6), ("auto", False, 6)]
)
def test_all_of_it_costs_no_more_than_the_budget(
    table: Path, model: str, declared: bool, settings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if declared:
        table.with_suffix(".schema.json").write_text(json.dumps(SCHEMA))
    words = ("--target", "employed", "--epsilon", "4", "--trials", "1.5", "--model", model)
    facts, _ = tune(table, *words, capsys=capsys)
    assert facts["test_accuracy"] > 0.6 and facts["test_is_private"] and facts["epsilon"] <= 4
    out = Path(facts["out"])
    ledger = Ledger.load(out / "ledger.jsonl")
    *looks, (last, count) = ledger.entries
    assert count == 1 and isinstance(last.queries[0], Selection)
    assert len(looks) == (0 if model == "linear" else 1 if declared else 3)  # no step of any run is in it
    assert account(ledger, delta=1e-5).epsilon <= 4
    epsilon, _ = Registry(table).spent()
    assert epsilon == pytest.approx(facts["epsilon"])
    notes = json.loads((out / "run.json").read_text())["notes"]
    assert any(note.startswith(f"Chosen of {settings} settings") for note in notes)
    assert "tuning" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--trials", "1"], "trials is 1"), (["--test-fraction", "0"], "above 0"), (["--epsilon", "0.01"], "too few")],
)
def test_a_refused_tuning_costs_nothing_and_writes_no_run(
    table: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table.with_suffix(".schema.json").write_text(json.dumps(SCHEMA))
    _, error = tune(table, *words, capsys=capsys, code=2)
    assert text in error and not (table.parent / "runs" / "people").exists()
    assert Registry(table).spent() == (0.0, 0.0)
