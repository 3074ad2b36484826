"""Columns that number the records are left out: by their name, or by noisy counts that were paid for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tacit.cli import main
from tacit.ledger import Header, Ledger
from tacit.randomness import SeededSource
from tacit.tables.columns import Category, Number, Undeclared
from tacit.tables.discovery import Discovery
from tacit.tables.histograms import EDGES, counts
from tacit.tables.identifiers import may_name_records, names_records, numbers_records
from tacit.tables.run_facts import remarks_by_text
from tacit.tables.schema import Schema

RECORDS = 3000


@pytest.mark.parametrize(
    "name", ["", "id", "ID", "_id", "Unnamed: 0", "rownames", "row_id", "Record ID", "#", "index", "rec_no", "UUID"]
)
def test_names_that_number_records(name: str) -> None:
    assert names_records(name)


@pytest.mark.parametrize("name", ["customer_id", "age", "paid", "price index", "number", "no", "X", "北", "line"])
def test_other_names(name: str) -> None:
    assert not names_records(name)


def test_names_that_end_like_identifiers_are_doubtful() -> None:
    assert all(map(may_name_records, ["PassengerId", "customer_id", "patient id", "userID"]))
    assert not any(map(may_name_records, ["id", "paid", "grid", "covid", "AID", "identity"]))


@pytest.fixture
def bakery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tacit.tables.rule._STEPS", 20)
    draw = np.random.default_rng(0)
    lines = [f"{place},{1000 - place},{draw.integers(9)},{'ab'[place % 2]}" for place in range(900)]
    path = tmp_path / "bakery.csv"
    path.write_text("\n".join(["id,customer_id,loaves,kind", *lines]) + "\n")
    return path


def columns_of_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], str]:
    with pytest.raises(SystemExit) as stop:
        main(["train", "bakery.csv", "--target", "kind", "--classes", "a,b", "--epsilon", "4", "--json", *words])
    captured = capsys.readouterr()
    assert stop.value.code == 0, captured.err
    facts = json.loads((Path(json.loads(captured.out)["out"]) / "run.json").read_text())
    return {name: one["origin"] for name, one in facts["columns"].items()}, captured.err


def test_the_command_line_says_which_names_are_not_used_and_which_are_doubtful(
    bakery: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origins, said = columns_of_run([], capsys)
    assert "not used: 'id', whose name" in said and "--ignore customer_id" in said
    assert origins["id"].startswith("dropped: its name") and "discovered" in origins["loaves"]
    origins, said = columns_of_run(["--ignore", "customer_id,loaves", "--keep-ids"], capsys)
    assert set(origins) == {"id", "kind"} and "discovered" in origins["id"]
    assert "not used" not in said and "warning: 'customer_id'" not in said


@pytest.mark.parametrize(("names", "text"), [("bread", "no column 'bread'"), ("kind", "the column to predict")])
def test_ignoring_what_is_not_there_or_the_target_is_refused(
    bakery: Path, names: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "bakery.csv", "--target", "kind", "--ignore", names])
    assert stop.value.code == 2 and text in capsys.readouterr().err and not (bakery.parent / "runs").exists()


def test_a_table_of_which_nothing_can_be_used_says_why_and_what_it_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mild.csv"
    days = [f"{place % 28 + 1}/07/{1900 + place // 28},{place},{place % 7}" for place in range(2000)]
    path.write_text("\n".join(["day,id,temp", *days]) + "\n")
    words = ["--target", "temp", "--task", "regression", "--target-bounds", "0", "7", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stop:
        main(["train", str(path), *words])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and "'day': its entries look like dates; declare it" in error
    assert "'id': its name says" in error and "Finding this out cost" in error


def noisy(numbers: np.ndarray, std: float = 5.0) -> np.ndarray:
    return counts(numbers.astype(float)) + np.random.default_rng(1).normal(scale=std, size=len(EDGES) - 1)


def test_noisy_counts_show_row_numbers_in_any_order() -> None:
    for numbers in (np.arange(1, RECORDS + 1), np.arange(RECORDS)[::-1]):
        assert numbers_records(noisy(numbers), 5.0, RECORDS)


def test_other_numbers_are_no_row_numbers() -> None:
    source = np.random.default_rng(0)
    for numbers in (
        source.integers(18, 90, RECORDS),
        source.lognormal(8, 1, RECORDS),
        np.arange(1, RECORDS + 1) + 5000,
    ):
        assert not numbers_records(noisy(numbers), 5.0, RECORDS)
    assert not numbers_records(noisy(np.arange(1, RECORDS + 1), 500.0), 500.0, RECORDS)  # noise hides the pattern


def test_discovery_leaves_both_out_and_asks_nothing_about_a_name() -> None:
    names = ("id", "patient", "age", "y")
    columns = {name: Category(values=("0", "1")) if name == "y" else Undeclared() for name in names}
    schema, source, ledger = Schema(columns=columns, target="y"), np.random.default_rng(0), Ledger(Header())
    rows = {
        "id": np.arange(RECORDS) + 7000.0,
        "patient": source.permutation(RECORDS) + 1.0,
        "age": source.integers(18, 90, RECORDS).astype(float),
        "y": np.array(["0"] * RECORDS),
    }
    ledger = Ledger(Header(secure_randomness=False))
    discovery = Discovery(schema, noise_multiplier=3.0, slack=1e-6)
    found, _ = discovery.release(
        lambda: [rows], records=RECORDS, ledger=ledger, source=SeededSource(1), fits=lambda schema: True
    )
    assert set(found.columns) == {"age", "y"} and isinstance(found.columns["age"], Number)
    remarks = discovery.remarks(RECORDS)
    assert "its name says" in remarks["id"] and "like those of the rows" in remarks["patient"]
    groups = {query.group for step, _ in ledger.entries for query in step.queries}
    assert "bounds/patient" in groups and "bounds/id" not in groups


def test_a_declared_identifier_is_used() -> None:
    columns = {"id": Number(low=None, high=None), "y": Category(values=("0", "1"))}
    discovery = Discovery(Schema(columns=columns, target="y"), noise_multiplier=3.0, slack=1e-6)
    assert set(discovery.least.columns) == {"id", "y"}


def test_columns_with_one_remark_share_a_sentence() -> None:
    [several, one] = remarks_by_text({**{f"x{place}": "nothing" for place in range(20)}, "day": "a date"}, {"day"})
    assert several.startswith("DROPPED: the 20 columns 'x0', ") and several.endswith("and 12 more, of each: nothing.")
    assert one == "The column 'day': a date."
