"""Target values that private discovery does not find: no score counts them as predicted right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tables.conftest import people, write_csv
from tacit.cli import main
from tacit.ledger import Budget, Header, Ledger
from tacit.tables.encoding import UNKNOWN, Encoding
from tacit.tables.model import TableModel
from tacit.tables.reading import from_columns, read
from tacit.tables.schema import Schema
from tacit.tables.training import TableOutcome, train_table

PRIVATE = {"type": "category", "values": "private"}


def tacit(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


def five_classes(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a table whose target has two common classes and a tail of rare ones, which features tell apart."""
    draw = np.random.default_rng(seed)
    group = draw.choice(5, count, p=[0.03, 0.42, 0.03, 0.47, 0.05])
    rare = np.array([f"rare {place}" for place in draw.integers(0, 400, count)])
    names = np.array(["", "beta", "", "delta", ""])[group]
    return {
        "x": (group + draw.normal(0, 0.3, count)).round(3).astype(str),
        "z": draw.normal(0, 1, count).round(3).astype(str),
        "kind": np.where(names == "", rare, names),
    }


def trained(table: dict[str, np.ndarray], target: object = PRIVATE, **options: object) -> TableOutcome:
    number = {"type": "number", "low": -2, "high": 6}
    schema = Schema.from_json({"target": "kind", "columns": {"x": number, "z": number, "kind": target}})
    return train_table(
        lambda: from_columns(table, schema.columns),
        schema,
        budget=Budget(epsilon=3.0, delta=1e-5),
        ledger=Ledger(Header(secure_randomness=False)),
        seed=1,
        **options,  # type: ignore[arg-type]
    )


def test_an_undiscovered_value_is_no_class() -> None:
    schema = Schema.from_json(
        {
            "target": "kind",
            "columns": {
                "x": {"type": "number", "low": 0, "high": 1},
                "kind": {**PRIVATE, "values": ["a", "b"], "other": True},
            },
        }
    )
    rows = {"x": np.array(["0", "0", "1"]), "kind": np.array(["a", "c", "b"])}
    assert Encoding(schema).targets(rows).tolist() == [0, UNKNOWN, 1]


@pytest.mark.parametrize("private", [True, False])
def test_the_score_is_the_one_that_predictions_have(private: bool) -> None:
    test = five_classes(4000, seed=9)
    options = {} if private else {"test": from_columns(test, ["x", "z", "kind"])}
    outcome = trained(five_classes(20_000), **options)
    true = float((outcome.model.predict(test) == test["kind"]).mean())
    assert outcome.score is not None and outcome.score.private is private
    assert outcome.score.value == pytest.approx(true, abs=0.04 if private else 1e-6)
    assert true < 0.92  # eleven in a hundred have a class that was not found
    assert outcome.undiscovered is not None and abs(outcome.undiscovered.share - 0.11) < 0.02


def test_a_declared_target_has_no_undiscovered_share() -> None:
    table = five_classes(3000)
    values = {"type": "category", "values": sorted(set(table["kind"]))}
    assert trained(table, values).undiscovered is None


def test_a_numeric_target_without_a_schema_fails_and_leaves_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reported an accuracy of 0.9994, of which its predictions had 0.0019."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    table = people(4000)
    table["wage"] = np.where(draw.random(4000) < 0.002, 0.0, draw.lognormal(7, 1, 4000).round(2)).astype(str)
    path = write_csv(tmp_path / "wages.csv", table)
    assert tacit("train", path, "--target", "wage", "--epsilon", "3") == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "'wage' is mostly undiscovered" in error and "number" in error
    entries = Ledger.open(tmp_path / "runs" / "wages" / "ledger.jsonl", None).entries
    assert [query.group for step, _ in entries for query in step.queries] == ["values/wage"]
    spent = float(error.split("cost ")[1].split(" ")[0])
    assert 0 < spent < 1


def test_five_classes_without_a_schema_report_the_accuracy_that_predictions_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reported 0.485 where 0.390 was true: rare classes counted as the first."""
    monkeypatch.chdir(tmp_path)
    path = write_csv(tmp_path / "kinds.csv", five_classes(12_000))
    fresh = five_classes(6000, seed=5)
    new = write_csv(tmp_path / "new.csv", fresh)
    assert tacit("train", path, "--target", "kind", "--epsilon", "3", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    predicted = TableModel.load(Path(facts["out"]))
    schema = predicted.encoding.schema
    true = np.concatenate([predicted.predict(piece) for piece in read(new, schema.features, numbers=schema.numbers)])
    accuracy = float((true == fresh["kind"]).mean())
    assert facts["test_accuracy"] == pytest.approx(accuracy, abs=5 * facts["test_noise_std"] + 0.03)
    assert facts["undiscovered_share"] == pytest.approx(0.11, abs=0.03) and facts["undiscovered_noise_std"] > 0
    notes = json.loads((Path(facts["out"]) / "run.json").read_text())["notes"]
    assert any("not discovered" in note and "wrong prediction" in note for note in notes)


def test_a_target_with_a_rare_class_is_not_refused_after_paying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = people(3000)
    table["ill"] = np.where(np.arange(3000) < 12, "yes", "no")
    path = write_csv(tmp_path / "ill.csv", table)
    assert tacit("train", path, "--target", "ill", "--epsilon", "1", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] > 0.95 and facts["steps"] == 0 and facts["epsilon"] < 0.6
    model = TableModel.load(Path(facts["out"]))
    assert set(model.predict(people(50))) == {"no"}
    assert "always predicts it" in (Path(facts["out"]) / "report.html").read_text()
