"""Dates, currencies, decimal commas and free text: read where they are declared, told of where they are not."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.cli import main
from tacit.ledger import Ledger
from tacit.tables import load_model
from tacit.tables.columns import MOST_NGRAMS, Number, Text, Undeclared
from tacit.tables.encoding import Encoding
from tacit.tables.entries import numeric
from tacit.tables.looks import Look, _bins
from tacit.tables.ngrams import buckets_of
from tacit.tables.notation import KINDS, Notation, date_formats, kinds
from tacit.tables.schema import Schema

COMMA, MONEY, BOTH = Notation(decimal=","), Notation(currency=True), Notation(decimal=",", currency=True)
ISO, GERMAN = Notation(date="iso"), Notation(date="%d.%m.%Y")


@pytest.mark.parametrize(
    ("notation", "entry", "number"),
    [
        (COMMA, "1,5", 1.5),
        (COMMA, "1.234,56", 1234.56),
        (COMMA, "1.234", 1234.0),
        (COMMA, "1 234,5", 1234.5),
        (COMMA, "-3", -3.0),
        (COMMA, "1.5", None),  # a point separates thousands here, and there are three digits in each group
        (COMMA, "€ 1,5", None),
        (MONEY, "$1,234.56", 1234.56),
        (MONEY, "(12.50)", -12.5),
        (MONEY, "USD 7", 7.0),
        (MONEY, "12 %", 12.0),
        (MONEY, "1,23", None),
        (BOTH, "1.234,56 €", 1234.56),
        (BOTH, "CHF 1'234,00", 1234.0),
        (ISO, "1970-01-02", 1.0),
        (ISO, "1970-01-01T12:00", 0.5),
        (ISO, "1970-01-01T12:00+06:00", 0.25),
        (ISO, "2.1.1970", None),
        (GERMAN, "02.01.1970", 1.0),
        (Notation(date="iso", part="weekday"), "2024-01-01", 1.0),
        (Notation(date="iso", part="hour"), "2024-01-01 17:30", 17.0),
        (Notation(date="iso", part="month"), "2024-12-31", 12.0),
    ],
)
def test_entries_are_read_as_they_are_declared(notation: Notation, entry: str, number: float | None) -> None:
    found = notation.number(entry)
    assert np.isnan(found) if number is None else found == pytest.approx(number)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("2024-01-31", "date"),
        ("31.01.2024", "date"),
        ("2024-01-31T10:00:00", "date"),
        ("12,50", "comma"),
        ("1.234,5", "comma"),
        ("$5.00", "currency"),
        ("1,234", "currency"),
        ("12 EUR", "currency"),
        ("it was not so bad", "text"),
        ("good", None),
        ("A-17", None),
        ("PAL0708", None),
        ("USD 17", "currency"),
        ("Jan 1 2000", "date"),
        ("September 15, 2012", "date"),
        ("5-Mar-12", "date"),
    ],
)
def test_the_kind_of_an_entry(entry: str, kind: str | None) -> None:
    found = dict(zip(KINDS, kinds(np.array([entry], dtype=object)).tolist(), strict=True))
    assert found == {name: float(name == kind) for name in KINDS}


def test_the_error_for_a_date_names_its_format() -> None:
    dates = np.array(["2012/01/31"], dtype=object)
    with pytest.raises(ValueError, match=r'not a date like 2024-12-31; declare .* "format": "%Y/%m/%d", or correct'):
        numeric("day", dates, notation=Notation(date="iso"))
    assert date_formats("03/04/2012") == ("%d/%m/%Y", "%m/%d/%Y")
    assert date_formats("31.12.2012 23:59") == ("%d.%m.%Y %H:%M",)
    assert date_formats("Jan 1 2000") == ("%b %d %Y",) and date_formats("3 March 2012") == ("%d %B %Y",)
    assert date_formats("12") == ()


def test_a_record_adds_one_to_one_place_of_the_histogram() -> None:
    """The look charges a sensitivity of 1 a column; an entry in two places would have √2."""
    for entry in ("3", "3,5", "$3", "2024-01-01", "a b c d e", "word", "", "NaN", "inf", "1e400"):
        counted = _bins("x", Undeclared(), np.array([entry], dtype=object), 1)
        assert counted.sum() <= 1 and set(counted.tolist()) <= {0.0, 1.0}
    assert len(Look({"x": Undeclared()}, 1.0, 1e-6).step("example").queries) == 2


SCHEMA: dict[str, Any] = {
    "target": "late",
    "columns": {
        "when": {"type": "date", "low": "2020-01-01", "high": "2022-12-31", "format": "%d.%m.%Y"},
        "weekday": {"type": "date", "of": "when", "format": "%d.%m.%Y", "part": "weekday"},
        "price": {"type": "number", "low": 0, "high": 100, "decimal": ",", "currency": True},
        "note": {"type": "text"},
        "late": {"type": "category", "values": ["no", "yes"]},
    },
}


def rows(count: int, seed: int = 0) -> list[list[str]]:
    draw = np.random.default_rng(seed)
    days, prices = draw.integers(0, 1000, count), draw.uniform(0, 100, count)
    bad = draw.random(count) < 0.5
    found = []
    for day, price, worse in zip(days.tolist(), prices.tolist(), bad.tolist(), strict=True):
        when = np.datetime64("2020-01-01") + day
        sunday = (day + 2) % 7 == 6
        words = "the parcel was broken and wet" if worse else "all of it came as ordered"
        score = 2.0 * worse - 1.0 + 2.0 * sunday + (price - 50) / 50
        text = f"{words}, number {draw.integers(0, 10_000)}"
        year, month, number = str(when).split("-")
        found.append(
            [f"{number}.{month}.{year}", f"{price:.2f} €".replace(".", ","), text, "yes" if score > 0 else "no"]
        )
    return found


@pytest.fixture
def parcels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "parcels.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";").writerows([["when", "price", "note", "late"], *rows(4000)])
    return path


def train(*words: str | Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    with pytest.raises(SystemExit) as stop:
        main(["train", *map(str, words), "--json"])
    captured = capsys.readouterr()
    assert stop.value.code == 0, captured.err
    return json.loads(captured.out), captured.err


def test_declared_dates_amounts_and_texts_are_used(parcels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parcels.with_suffix(".schema.json").write_text(json.dumps(SCHEMA))
    facts, _ = train(parcels, "--epsilon", "8", "--test-fraction", "0.2", capsys=capsys)
    assert facts["test_accuracy"] > 0.8
    story = json.loads((Path(facts["out"]) / "run.json").read_text())
    assert {name: one["type"] for name, one in story["columns"].items()} == {
        "when": "date",
        "weekday": "date",
        "price": "number",
        "note": "text",
        "late": "category",
    }
    assert any("are text, which boosting does not read" in note for note in story["notes"])
    model = load_model(facts["out"])
    assert model.provenance["note"] == {"type": "text", "origin": "declared"} and set(model.schema.texts) == {"note"}
    late = {"when": ["04.01.2020"], "price": ["99,00 €"], "note": ["the parcel was broken and wet"]}
    fine = {"when": ["06.01.2020"], "price": ["1,00 €"], "note": ["all of it came as ordered"]}
    chances = model.probabilities({name: np.array(late[name] + fine[name]) for name in late})[:, 1]
    assert chances[0] > 0.7 > 0.3 > chances[1]


def test_text_alone_is_enough(parcels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {name: SCHEMA["columns"][name] for name in ("note", "late")}
    parcels.with_suffix(".schema.json").write_text(json.dumps({"target": "late", "columns": columns}))
    facts, _ = train(parcels, "--epsilon", "4", "--test-fraction", "0", capsys=capsys)
    notes = ["the parcel was broken and wet", "all of it came as ordered"]
    chances = load_model(facts["out"]).probabilities({"note": np.array(notes)})[:, 1]
    assert chances[0] > chances[1] + 0.2


def test_undeclared_ones_are_said_to_be_dropped(parcels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, _ = train(parcels, "--target", "late", "--model", "linear", "--epsilon", "8", capsys=capsys)
    story = json.loads((Path(facts["out"]) / "run.json").read_text())
    assert story["columns"]["when"]["origin"].startswith("dropped: its entries look like dates; declare it")
    assert story["columns"]["price"]["origin"].startswith("dropped: its entries look like amounts with a currency")
    assert story["columns"]["note"]["type"] == "text"  # found by its type
    assert sum(note.startswith("DROPPED") for note in story["notes"]) == 2
    groups = {q.group for step, _ in Ledger.load(Path(facts["out"]) / "ledger.jsonl").entries for q in step.queries}
    assert "bounds/note" in groups  # what it is was paid for


def test_schemas_of_all_types_come_back_from_json() -> None:
    schema = Schema.from_json(SCHEMA)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ({"type": "date", "low": "yesterday", "high": "2024-01-01"}, "is no date"),
        ({"type": "date", "low": "2024-01-01"}, "high is missing"),
        ({"type": "date", "part": "minute"}, "part is 'minute'"),
        ({"type": "date", "part": "month", "low": "2024-01-01"}, "its values are known"),
        ({"type": "date", "low": "2024-01-01", "high": "2025-01-01", "format": "dmy"}, "format is 'dmy'"),
        ({"type": "number", "low": 0, "high": 1, "decimal": ";"}, "decimal is ';'"),
        ({"type": "number", "low": 0, "high": 1, "currency": "EUR"}, "currency is 'EUR'"),
        ({"type": "text", "buckets": 1}, "buckets is 1"),
        ({"type": "text", "ngrams": 9}, "ngrams is 9"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(column: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Schema.from_json({**SCHEMA, "columns": {**SCHEMA["columns"], "when": column}})


def test_a_text_has_a_norm_of_one_and_no_more_than_so_many_ngrams() -> None:
    texts = ["", "one", " ".join(f"w{place}" for place in range(1000)), "a b a b a b"]
    schema = Schema(
        columns={"note": Text(buckets=512), "y": Number(low=0, high=1)},
        target="y",
    )
    encoding = Encoding(schema)
    features = encoding.expand(encoding.compact({"note": np.array(texts, dtype=object)}))
    assert features.shape == (4, 512)
    assert np.linalg.norm(features, axis=1).tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert len(buckets_of(texts[2], 2**16, 2)) == MOST_NGRAMS
    assert len(buckets_of("a b a b a b", 2**16, 2)) == 4  # a, b, a b, b a
