"""Tables on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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
        "privacy.json",
        "report.html",
        "run.json",
    }
    page = (out / "report.html").read_text()
    assert "with noise, paid for" in page and "test figures have no noise" not in page
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
    assert "finds the types of the columns privately" in captured.err
    facts = json.loads(captured.out)
    assert facts["test_accuracy"] > 0.75 and facts["epsilon"] <= 4
    first = (Path(facts["out"]) / "ledger.jsonl").read_text()
    assert "values/school" in first and "bounds/age" in first
    assert tacit("predict", facts["out"], table, "--json") == 0  # a model whose classes were found can be read again
    assert json.loads(capsys.readouterr().out)["rows"] == 3000


def test_a_public_test_table_is_said_to_be_public(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps({**SCHEMA, "target": "age"}))
    test = write_csv(table.parent / "test.csv", people(500, seed=3))
    assert tacit("train", table, "--test", test, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] is None and facts["test_mean_absolute_error"] < 20 and not facts["test_is_private"]
    page = (Path(facts["out"]) / "report.html").read_text()
    assert "Mean absolute test error" in page and "public test set; not private, not covered" in page
    assert "test figures have no noise" in page


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
        (["--clip", "0"], "clip norm is 0"),
        (["--clip", "nan"], "clip norm is nan"),
        (["--epochs", "inf"], "epochs is inf"),
        (["--lot-size", "0"], "lot size is 0"),
        (["--test-fraction", "1"], "test fraction is 1"),
        (["--model", "forest"], "model is 'forest'"),
        (["--out", "taken"], "holds other files"),
        (["--test", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--test", "short.csv"], "no column 'employed'"),
    ],
)
def test_options_are_checked_before_the_records_are_read(
    table: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last row is no row of this table, and nobody gets as far."""
    table.write_text(table.read_text() + "1,some,A,yes,too many\n")
    (table.parent / "short.csv").write_text("age,school,town\n30,some,A\n")
    (table.parent / "taken").mkdir()
    (table.parent / "taken" / "file").write_text("something else")
    assert tacit("train", table, "--target", "employed", *words) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert text in error
    assert not (table.parent / "runs").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["missing.csv"], "no file"),
        (["people.csv"], "--target"),
        (["people.csv", "--target", "wealth"], "no column 'wealth'"),
        (["people.csv", "--target", "employed", "--epsilon", "0"], "epsilon"),
        (["people.csv", "--target", "employed", "--model", "forest"], "model is 'forest'"),
        (["people.csv", "--target", "employed", "--recipe", "abadi"], "is a table"),
        (["mnist", "--target", "employed"], "--target is for tables"),
    ],
)
def test_train_reports_a_wrong_argument_in_one_line(
    table: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit("train", *words) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tacit: ") and text in error


HEADER = "age,school,town,employed\n"
ROWS = "30,some,A,yes\n70,none,B,no\n" * 50


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (HEADER, "no rows"),
        ("age,school,town\n30,some,A\n", "no column 'employed'"),
        (HEADER + ROWS + "old,some,A,yes\n", "row 101: 'old' is not a number"),
        (HEADER + ROWS + "30,phd,A,yes\n", "row 101: 'phd' is not among the declared values"),
        (HEADER + ROWS + "30,some,A,nan\n", "row 101: the entry is missing; leave the row out"),
        (HEADER + ROWS + "30,some,A\n", "line 102: 3 fields, not 4"),
        (HEADER + ROWS + '30,"some,A,yes\n', "quotation mark"),
        (HEADER.replace("town", "age") + ROWS, "more than one column called 'age'"),
        (HEADER + "30,some,A,yes\n70,none,B,no\n" * 8, "too few for epsilon 0.5"),
        (b"\xff\xfe" + HEADER.encode("utf-16-le"), "UTF-8"),
        ((HEADER + ROWS + "30,some,Z\u00fcrich,yes\n").encode("latin-1"), "UTF-8"),
    ],
)
def test_a_bad_table_is_one_sentence_and_leaves_nothing(
    table: Path, text: str | bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    table.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = sorted(table.parent.rglob("*"))
    assert tacit("train", table, "--epsilon", "0.5") == 2
    [error] = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("tacit: ") and words in error
    assert sorted(table.parent.rglob("*")) == before


@pytest.mark.parametrize("damage", ["half", "middle", "twice", "nothing"])
def test_a_bad_parquet_file_is_one_sentence(table: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the sklearn extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the sklearn extra is not installed")
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    columns = {name: arrow.array(values.tolist()) for name, values in people(3000).items()}
    names = [*columns, *(["age"] if damage == "twice" else [])]
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.Table.from_arrays([columns[name] for name in names], names=names), path)
    whole = path.read_bytes()
    cut = {"half": whole[: len(whole) // 2], "middle": whole[:100] + bytes(900) + whole[1000:], "nothing": b""}
    path.write_bytes(cut.get(damage, whole))
    assert tacit("train", path) == 2
    [error] = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("tacit: ")
    assert ("more than one column" if damage == "twice" else "not a whole Parquet file") in error
    assert not (table.parent / "runs").exists()


def test_a_table_without_rows_is_not_predicted(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit("train", table, "--epsilon", "2", "--json") == 0
    out = json.loads(capsys.readouterr().out)["out"]
    (table.parent / "new.csv").write_text("age,school,town\n")
    before = sorted(table.parent.iterdir())
    assert tacit("predict", out, table.parent / "new.csv") == 2
    assert "has no rows" in capsys.readouterr().err
    assert sorted(table.parent.iterdir()) == before


def test_a_number_is_predicted_from_the_command_line(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--target", "age", "--task", "regression", "--target-bounds", "-10", "100", "--epsilon", "4", "--json"]
    assert tacit("train", table, *options) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] is None and facts["test_mean_absolute_error"] < 17  # the mean alone is 18 off
    assert facts["undiscovered_share"] is None
    assert tacit("predict", facts["out"], table, "--json") == 0
    lines = Path(json.loads(capsys.readouterr().out)["output"]).read_text().split()[1:]
    assert all(-10 <= float(line) <= 100 for line in lines)


def test_declared_classes_are_not_looked_for_however_rare(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table.read_text().splitlines()
    rows = [rows[0], *(row.rsplit(",", 1)[0] + (",yes" if place < 5 else ",no") for place, row in enumerate(rows[1:]))]
    table.write_text("\n".join(rows) + "\n")
    assert tacit("train", table, "--target", "employed", "--classes", "no, yes", "--epsilon", "1", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["steps"] == 300 and facts["undiscovered_share"] is None and facts["test_accuracy"] > 0.9
    assert "values/employed" not in (Path(facts["out"]) / "ledger.jsonl").read_text()


def test_a_number_with_many_values_is_asked_about_unless_it_is_said_to_have_classes(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", "age", "--epsilon", "30"]
    assert tacit("train", table, *options) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "'age' looks like a number" in error and "--target-bounds LOW HIGH" in error and "rest is unspent" in error
    assert tacit("train", table, *options, "--task", "classification", "--json") == 0
    assert json.loads(capsys.readouterr().out)["test_accuracy"] < 0.1


def test_a_parquet_file_with_a_number_as_target_is_asked_about_before_any_charge(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the sklearn extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the sklearn extra is not installed")
    columns = people(2000) | {"wage": np.random.default_rng(0).normal(30, 5, 2000)}
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.table({name: arrow.array(values.tolist()) for name, values in columns.items()}), path)
    assert tacit("train", path, "--target", "wage") == 2
    assert "is it one to predict? Say --task regression" in capsys.readouterr().err
    assert not (table.parent / "runs").exists()
    assert tacit("train", path, "--target", "wage", "--target-bounds", "0", "100", "--json") == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--task", "ranking"], "choose classification or regression"),
        (["--task", "regression"], "needs the bounds of 'employed'"),
        (["--task", "regression", "--classes", "no,yes"], "--classes are not of a number"),
        (["--target-bounds", "0", "1", "--classes", "no,yes"], "leave one of the two out"),
        (["--target-bounds", "1", "0"], "low must be below high"),
        (["--target-bounds", "0", "inf"], "must be a finite number"),
        (["--classes", "no"], "list two or more"),
        (["--classes", "no,no"], "give each value once"),
    ],
)
def test_train_refuses_contradictory_target_options_and_writes_no_run(
    table: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit("train", table, "--target", "employed", *words) == 2
    assert text in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (table.parent / "runs").exists()


def test_the_command_line_and_the_schema_may_not_contradict_each_other(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit("train", table, "--task", "regression") == 2
    assert "declares the target 'employed' as a category, and --task is regression" in capsys.readouterr().err


def test_a_delta_of_one_in_the_number_of_records_is_warned_of(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit("train", table, "--epsilon", "2", "--delta", "1e-3", "--json") == 0
    captured = capsys.readouterr()
    assert "warning: δ = 0.001 is not below 1/" in captured.err
    notes = json.loads((Path(json.loads(captured.out)["out"]) / "run.json").read_text())["notes"]
    assert any("is not below 1/3000" in note for note in notes)


def test_a_boosted_model_is_chosen_explained_drawn_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    hour, work = draw.integers(0, 24, 3000), draw.integers(0, 2, 3000)
    rides = np.where(work == 1, 300 * np.exp(-((hour - 8) ** 2) / 6), 300 * np.exp(-((hour - 15) ** 2) / 9)).round()
    write_csv(tmp_path / "bikes.csv", {"hour": hour, "work": work, "rides": rides})
    words = ("--target", "rides", "--task", "regression", "--target-bounds", "0", "300", "--epsilon", "3")
    assert tacit("train", "bikes.csv", *words, "--out", "run") == 0
    assert "The model is boosted: " in capsys.readouterr().out
    shapes = json.loads((tmp_path / "run" / "shapes.json").read_text())
    assert {"hour", "work"} <= {column for term in shapes["terms"] for column in term["columns"]}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h2>The model</h2>" in page and "<h3>hour × work</h3>" in page
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["name"] == "table/boosted"
    assert tacit("train", "bikes.csv", *words, "--model", "boosted", "--clip", "1", "--out", "other") == 2
    assert "for models trained by descent" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert tacit("predict", "run", "bikes.csv", "--json") == 0


def test_damaged_shapes_are_left_out_of_the_report(tmp_path: Path, table: Path) -> None:
    from tacit.reports import report

    words = ("--target", "employed", "--epsilon", "4", "--model", "boosted", "--out", tmp_path / "run")
    assert tacit("train", table, *words) == 0
    path = tmp_path / "run" / "shapes.json"
    for text in (
        "[1]",
        '{"terms": [{"columns": ["<b>"], "cells": 3, "edges": [], "adds": []}, 5]}',
        "{",
        '{"terms": 1}',
    ):
        path.write_text(text)
        assert "<b>" not in report(tmp_path / "run").read_text()


def test_predictions_come_with_chances_kept_columns_and_notes(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table.parent / "people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit("train", table, "--epsilon", "2", "--out", "run") == 0
    capsys.readouterr()
    rows = people(6, seed=5)
    new = {"id": np.array(list("abcdef")), **rows, "town": np.array(["A", "B", "Z", "Z", "A", "B"])}
    write_csv(table.parent / "new.csv", new)
    assert tacit("predict", "run", "new.csv", "--proba", "--keep", "id, town", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["unseen"] == {"town": 2} and facts["missing"] == {}
    lines = [line.split(",") for line in Path(facts["output"]).read_text().splitlines()]
    assert lines[0] == ["id", "town", "employed", "P(no)", "P(yes)"] and [line[0] for line in lines[1:]] == list(
        "abcdef"
    )
    for line in lines[1:]:
        chances = dict(zip(("no", "yes"), map(float, line[3:]), strict=True))
        assert abs(sum(chances.values()) - 1) < 1e-4 and line[2] == max(chances, key=lambda name: chances[name])
    assert tacit("predict", "run", "new.csv", "--keep", "height", "--out", "x.csv") == 2
    assert "no column 'height'" in capsys.readouterr().err
    assert tacit("predict", "run", "new.csv", "--keep", "id,id", "--out", "x.csv") == 2
    assert "keep each once" in capsys.readouterr().err and not Path("x.csv").exists()
    assert tacit("predict", "run", "new.csv", "--keep", "employed", "--out", "x.csv") == 0  # beside the predictions
    assert Path("x.csv").read_text().splitlines()[0] == "employed,predicted employed"


def test_a_run_is_loaded_in_python_and_predicts_frames(table: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from tacit.tables import load_model

    assert tacit("train", table, "--target", "employed", "--epsilon", "4", "--out", "run") == 0
    frame = pandas.DataFrame(people(50, seed=9))
    model = load_model("run")
    assert set(model.predict(frame)) <= {"no", "yes"}
    assert np.allclose(model.probabilities(frame).sum(axis=1), 1)
    assert model.encoding.schema.to_json()["target"] == "employed"


def test_a_table_comes_in_on_standard_input(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with table.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert tacit("train", "-", "--target", "employed", "--epsilon", "4", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test_accuracy"] > 0.75 and Path(facts["out"]).name == "stdin"


def test_a_draft_is_said_to_be_one_after_its_comment_was_deleted(table: Path) -> None:
    assert tacit("data", "schema", table, "--target", "employed") == 0
    path = table.with_suffix(".schema.json")
    draft = json.loads(path.read_text())
    del draft["comment"]
    draft["columns"]["age"] |= {"low": 0, "high": 100}  # known without looking
    path.write_text(json.dumps(draft))
    assert tacit("train", table, "--epsilon", "2", "--out", "run") == 0
    columns = json.loads(Path("run/run.json").read_text())["columns"]
    assert "READ OFF THE RECORDS" in columns["town"]["origin"] and "declared" in columns["age"]["origin"]
    assert "READ OFF" not in columns["age"]["origin"]
    assert "READ OFF THE RECORDS" in Path("run/report.html").read_text()


def test_the_report_can_be_signed_and_has_a_twin_for_programs(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit("train", table, "--target", "employed", "--epsilon", "4", "--out", "run") == 0
    twin = json.loads(Path("run/privacy.json").read_text())
    assert twin["private"] and 3.5 < twin["guarantee"]["epsilon"] <= 4 and twin["signoff"]["who"] is None
    assert twin["columns"]["age"] == {"type": "number", "origin": "discovered with noise, and charged"}
    assert twin["data"]["runs"] == 1 and twin["ledger"]["steps"] > 0 and twin["score"]["paid"]
    documented = (Path(__file__).parents[2] / "docs" / "privacy-json.md").read_text()
    assert all(f"`{name}`" in documented for name in twin)
    Path("run/signoff.toml").write_text('who = "A. <b>Officer"\ndate = 2026-11-18\njustification = "agreed"\n')
    assert tacit("report", "run") == 0
    page = Path("run/report.html").read_text()
    assert (
        "A. &lt;b&gt;Officer" in page
        and "2026-11-18" in page
        and "Released with noise, and charged." in page
        and "The data" in page
    )
    assert json.loads(Path("run/privacy.json").read_text())["signoff"]["justification"] == "agreed"
    Path("bad.toml").write_text("boss = 1\n")
    assert tacit("report", "run", "--signoff", "bad.toml") == 2
    assert "'boss'; a sign-off has who" in capsys.readouterr().err
