"""Bad inputs of tables: one sentence with the remedy, exit code 2, nothing charged and nothing left behind."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tables.conftest import SCHEMA, people, write_csv
from tacit.cli import main
from tacit.tables.registry import Registry

GOOD = ("--target", "employed", "--classes", "no,yes")


def schema(**changes: object) -> str:
    """Return the schema's text with one column changed."""
    return json.dumps({**SCHEMA, "columns": {**SCHEMA["columns"], **changes}})


FILES: dict[str, str | bytes] = {
    "empty.csv": "",
    "header.csv": "age,school,town,employed\n",
    "twice.csv": "age,age,employed\n1,2,no\n",
    "nameless.csv": ",age,,employed\n1,2,3,no\n",
    "umlaut.csv": "größe,employed\n1,no\n".encode("cp1252"),
    "ragged.csv": "age,employed\n1,no\n2,yes,3\n",
    "quote.csv": 'age,employed\n"1,no\n',
    "latin.csv": "age,employed\nä,no\n".encode("latin-1") * 3,
    "t.xlsx": b"PK",
    "t.json": "[]",
    "t.pkl": b"\x80",
    "t.parquet": b"PAR1 not",
    "t.feather": b"ARROW not",
    "t.duckdb": b"x",
    "t.csv.gz": b"not gzip",
    "t.jsonl": "[1]\n",
    "few.csv": "age,employed\n" + "1,no\n2,yes\n" * 5,
    "draft.json": json.dumps({**SCHEMA, "comment": "NOT PRIVATE: a draft"}),
    "broken.json": "{",
    "list.json": "[]",
    "no_target.json": json.dumps({"columns": SCHEMA["columns"]}),
    "no_type.json": schema(age={"low": 0}),
    "half.json": schema(age={"type": "number", "low": 0}),
    "turned.json": schema(age={"type": "number", "low": 9, "high": 1}),
    "nan.json": schema(age={"type": "number", "low": "x", "high": 1}),
    "bins.json": schema(age={"type": "number", "low": 0, "high": 9, "bins": [3, 2]}),
    "knot.json": schema(age={"type": "number", "low": 0, "high": 9, "knots": [3]}),
    "values.json": schema(town={"type": "category", "values": []}),
    "again.json": schema(town={"type": "category", "values": ["A", "A"]}),
    "field.json": schema(town={"type": "category", "values": ["A"], "colour": "red"}),
    "other.json": schema(town={"type": "category", "values": ["A"], "other": "yes"}),
    "missing.json": schema(town={"type": "category", "values": ["A"], "missing": "Z"}),
    "one_class.json": schema(employed={"type": "category", "values": ["no"]}),
    "strict.json": schema(town={"type": "category", "values": ["A"]}),
    "word.json": schema(school={"type": "number", "low": 0, "high": 9}),
    "absent.json": schema(height={"type": "number", "low": 0, "high": 9}),
}

CASES: list[tuple[tuple[str, ...], str]] = [
    (("train", "none.csv", *GOOD), "there is no file none.csv"),
    (("train", "empty.csv", *GOOD), "is empty"),
    (("train", "header.csv", *GOOD), "has no rows"),
    (("train", "twice.csv", *GOOD), "more than one column called 'age'"),
    (("train", "ragged.csv", *GOOD), "3 fields, not 2"),
    (("train", "quote.csv", *GOOD), "quotation mark not closed"),
    (("train", "nameless.csv", *GOOD), "2 columns without a name"),
    (("train", "latin.csv", *GOOD), "latin.csv is not in UTF-8"),
    (("train", "umlaut.csv", *GOOD), "iconv -f CP1252 -t UTF-8 umlaut.csv > new.csv"),
    (("train", "t.xlsx", *GOOD), "save the sheet as CSV"),
    (("train", "t.json", *GOOD), "one object a line"),
    (("train", "t.pkl", *GOOD), "a pickle"),
    (("train", "t.parquet", *GOOD), "not a whole Parquet file"),
    (("train", "t.feather", *GOOD), "not a whole Feather"),
    (("train", "t.duckdb", *GOOD), "say which table"),
    (("train", "t.csv.gz", *GOOD), "not a CSV file"),
    (("train", "t.jsonl", *GOOD), "no JSON object"),
    (("train", "t.db", *GOOD), "say which table"),
    (("train", "t.db::nobody", *GOOD), "check its name"),
    (("train", "people.csv::people", *GOOD), "is no database"),
    (("train", "few.csv", *GOOD), "too few"),
    (("train", "people.csv"), "which column to predict"),
    (("train", "people.csv", "--target", "height"), "no column 'height'"),
    (("train", "people.csv", "--target", "age", "--task", "regression"), "--target-bounds LOW HIGH"),
    (("train", "people.csv", "--target", "age", "--target-bounds", "9", "1"), "low must be below high"),
    (("train", "people.csv", "--target", "age", "--target-bounds", "0", "nan"), "finite"),
    (
        ("train", "people.csv", "--target", "age", "--target-bounds", "0", "9", "--classes", "a,b"),
        "leave one of the two",
    ),
    (("train", "people.csv", *GOOD, "--task", "regression"), "--classes are not of a number"),
    (("train", "people.csv", "--target", "employed", "--task", "guess"), "choose classification or regression"),
    (("train", "people.csv", "--target", "employed", "--classes", "no"), "list two or more"),
    (("train", "people.csv", "--target", "employed", "--classes", "a,b"), "not among the declared values"),
    (("train", "people.csv", *GOOD, "--epsilon", "0"), "epsilon is 0"),
    (("train", "people.csv", *GOOD, "--epsilon", "-1"), "epsilon is -1"),
    (("train", "people.csv", *GOOD, "--epsilon", "nan"), "epsilon is nan"),
    (("train", "people.csv", *GOOD, "--epsilon", "x"), "'x' is not a number"),
    (("train", "people.csv", *GOOD, "--delta", "1"), "delta is 1"),
    (("train", "people.csv", *GOOD, "--epsilon", "0.0001"), "too few"),
    (("train", "people.csv", *GOOD, "--model", "tree"), "choose one of auto, linear, mlp, boosted"),
    (("train", "people.csv", *GOOD, "--model", "boosted", "--epochs", "3"), "for models trained by descent"),
    (("train", "people.csv", *GOOD, "--model", "boosted", "--epsilon", "0.001"), "too few for boosting"),
    (("train", "people.csv", *GOOD, "--test", "people.csv"), "the records that are trained on"),
    (("train", "people.csv", *GOOD, "--test-fraction", "1"), "test fraction is 1"),
    (("train", "people.csv", *GOOD, "--resume"), "--resume needs --out"),
    (("train", "people.csv", *GOOD, "--resume", "--out", "nowhere"), "no run to resume in nowhere"),
    (("train", "people.csv", *GOOD, "--norms"), "--norms is for images"),
    (("train", "mnist", "--target", "employed"), "--target is for tables"),
    (("train", "people.csv", *GOOD, "--data-name", " "), "the name of the data set is empty"),
    *(
        (("train", "people.csv", "--schema", name), text)
        for name, text in {
            "none.json": "there is no file none.json",
            "draft.json": "still a draft",
            "broken.json": "is not JSON",
            "list.json": "a schema is a JSON object",
            "no_target.json": "names no target",
            "no_type.json": "type is None",
            "half.json": "low or high is missing",
            "turned.json": "low must be below high",
            "nan.json": "finite number",
            "bins.json": "they must rise",
            "knot.json": "two or more",
            "values.json": "at least one",
            "again.json": "each value once",
            "field.json": "has no colour",
            "other.json": "true or false",
            "missing.json": "one of the values",
            "one_class.json": "one class only",
            "strict.json": "not among the declared values",
            "word.json": "is not a number",
            "absent.json": "no column 'height'",
        }.items()
    ),
]


@pytest.mark.parametrize(("words", "text"), CASES, ids=[" ".join(words)[:70] for words, _ in CASES])
def test_bad_inputs_are_one_sentence_and_cost_nothing(
    words: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_csv(tmp_path / "people.csv", people(600))
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    sqlite3.connect(tmp_path / "t.db").close()
    before = {path.name for path in tmp_path.iterdir()} | {"t.db"}
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error
    assert error.strip().splitlines()[-1].startswith("tacit: ")
    assert {path.name for path in tmp_path.iterdir()} <= before  # no run, no folder
    assert Registry(table).spent() == (0.0, 0.0)


def test_there_are_58_bad_inputs_or_more() -> None:
    assert len({words for words, _ in CASES}) >= 58
