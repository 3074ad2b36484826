"""A test table is for records that are not trained on: an exact score on those would cost nothing and tell of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tables.conftest import SCHEMA, people, write_csv
from tacit.cli import main
from tacit.tables import overlap
from tacit.tables.overlap import check_rows_differ
from tacit.tables.reading import from_columns
from tacit.tables.schema import Schema

Table = dict[str, np.ndarray]


def with_pay(count: int, seed: int) -> Table:
    pay = np.random.default_rng(seed).lognormal(10, 1, count).round(2)
    return {**people(count, seed), "pay": pay.astype(str)}


def rows(table: Table, chosen: object) -> Table:
    return {name: values[chosen] for name, values in table.items()}


DECLARED = Schema.from_json(
    {**SCHEMA, "columns": {**SCHEMA["columns"], "pay": {"type": "number", "low": 0, "high": 1e6}}}
)
UNDECLARED = Schema.from_json(
    {**SCHEMA, "columns": {**SCHEMA["columns"], "pay": {"type": "private"}, "age": {"type": "private"}}}
)


def check(train: Table, test: Table, schema: Schema = DECLARED) -> None:
    def pieces(table: Table) -> Callable[[], object]:
        return lambda: from_columns(table, schema.columns)

    check_rows_differ(pieces(train), pieces(test), schema, records=len(train["age"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", [DECLARED, UNDECLARED])
def test_a_test_table_of_training_rows_is_refused(schema: Schema) -> None:
    train, other = with_pay(3000, 1), with_pay(1000, 2)
    check(train, other, schema)
    order = np.random.default_rng(0).permutation(3000)
    mixed = {name: np.concatenate([other[name], train[name][:100]]) for name in train}
    for test in (rows(train, order), rows(train, slice(500)), mixed):
        with pytest.raises(ValueError, match="rows of the test table are rows of the training table"):
            check(train, test, schema)


def test_equal_rows_of_different_people_are_no_overlap() -> None:
    """Six columns with few values have the same rows in any two tables."""
    few = Schema.from_json({**SCHEMA, "columns": {**SCHEMA["columns"], "age": {"type": "ignore"}}})
    check(people(3000, 1), people(1000, 2), few)
    check(people(3000, 1), people(1000, 2), Schema.from_json(SCHEMA))


def test_large_tables_are_compared_by_a_part_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_MOST_COMPARED", 300)
    train = with_pay(3000, 1)
    check(train, with_pay(1000, 2))
    with pytest.raises(ValueError, match="rows of the test table"):
        check(train, rows(train, slice(1000)))


@pytest.mark.parametrize("kind", ["itself", "link", "copy", "part"])
def test_training_records_are_not_scored_exactly(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train = with_pay(2000, 1)
    path, test = write_csv(tmp_path / "people.csv", train), tmp_path / "test.csv"
    (tmp_path / "people.schema.json").write_text(json.dumps(DECLARED.to_json()))
    if kind == "link":
        test.symlink_to(path)
    elif kind == "copy":
        shutil.copy(path, test)
    elif kind == "part":
        write_csv(test, rows(train, slice(0, 2000, 4)))
    with pytest.raises(SystemExit) as stop:
        main(["train", str(path), "--test", str(path if kind == "itself" else test)])
    [error] = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and "leave --test out" in error
    assert not (tmp_path / "runs").exists()
