"""Schemas: declared, checked, never read off the records."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.tables.columns import Category, Number
from tacit.tables.known import KNOWN
from tacit.tables.schema import Schema

GOOD = {
    "target": "y",
    "columns": {
        "age": {"type": "number", "low": 0, "high": 100},
        "pay": {"type": "number", "bins": [1, 10, 100], "missing": "own"},
        "town": {"type": "category", "values": "private"},
        "wealth": {"type": "number", "low": "private", "high": "private"},
        "name": {"type": "ignore"},
        "y": {"type": "category", "values": [0, 1]},
    },
}


def test_a_schema_comes_back_as_it_was() -> None:
    schema = Schema.from_json(GOOD)
    assert schema.classes == ("0", "1") and schema.private == ("town", "wealth")
    assert list(schema.features) == ["age", "pay", "town", "wealth"]
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"type": "number", "low": 0}, "declare both"),
        ({"type": "number"}, "declare both"),
        ({"type": "number", "low": 3, "high": 3}, "low must be below high"),
        ({"type": "number", "low": "private", "high": 3}, "make both private"),
        ({"type": "number", "low": float("nan"), "high": 3}, "finite"),
        ({"type": "number", "low": 0, "high": 9, "bins": [3, 2]}, "must rise"),
        ({"type": "number", "low": 0, "high": 9, "missing": "zero"}, "finite number"),
        ({"type": "category"}, "values is missing"),
        ({"type": "category", "values": []}, "at least one"),
        ({"type": "category", "values": ["a", "a"]}, "each value once"),
        ({"type": "category", "values": ["a"], "missing": "b"}, "one of the values"),
        ({"type": "category", "values": "auto"}, "must be a list"),
        ({"type": "integer"}, "type is 'integer'"),
        ({"type": "number", "low": 0, "high": 1, "scale": 2}, "has no scale"),
        ("number", "type is None"),
    ],
)
def test_the_schema_names_the_error_in_a_column(column: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schema.from_json({"target": "y", "columns": {"x": column, "y": {"type": "category", "values": ["0", "1"]}}})


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"type": "private"}, "must be declared"),
        ({"type": "number", "low": "private", "high": "private"}, "must be declared"),
        ({"type": "category", "values": ["only"]}, "one class only"),
        ({"type": "number", "low": 0, "high": 9, "bins": [3]}, "make it a category"),
        ({"type": "number", "low": 0, "high": 9, "missing": 3}, "cannot be missing"),
    ],
)
def test_a_target_must_be_declared(target: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schema.from_json({"target": "y", "columns": {"x": {"type": "number", "low": 0, "high": 1}, "y": target}})


def test_a_column_needs_bounds_or_says_that_it_pays_for_them() -> None:
    """There is no third way: bounds of None are private, and private columns cannot be encoded."""
    from tacit.tables.encoding import Encoding

    assert Number(low=None, high=None).private and Category(values=None).private
    with pytest.raises(ValueError, match="released privately first"):
        Encoding(Schema.from_json(GOOD))


ATOMS = st.none() | st.booleans() | st.floats() | st.text()
ANYTHING = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(ANYTHING)
def test_any_json_is_a_schema_or_a_sentence(data: object) -> None:
    for whole in (data, {"columns": data, "target": "y"}, {"columns": {"x": data, "y": data}, "target": "y"}):
        with suppress(ValueError):
            Schema.from_json(whole)


@pytest.mark.parametrize("name", KNOWN)
def test_known_schemas_are_schemas(name: str) -> None:
    import tacit.tables.known

    Schema.load(Path(tacit.tables.known.__file__).parent / "schemas" / f"{name}.json")


def test_a_draft_is_refused_until_it_was_edited(tmp_path: Path) -> None:
    from tacit.tables.proposal import propose

    (tmp_path / "t.csv").write_text("x,y\n1,0\n2.5,1\n" + "".join(f"{i},0\n" for i in range(40)))
    draft = propose(tmp_path / "t.csv", target="y")
    assert draft["columns"]["x"] == {"type": "number", "low": 0.0, "high": 39.0}
    with pytest.raises(ValueError, match="still a draft"):
        Schema.from_json(draft)
    draft["comment"] = "bounds from the form that was filled in"
    assert Schema.from_json(draft).classes == ("0", "1")


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        Schema.load(tmp_path / "s.json")


def test_a_draft_finds_dates_and_their_format(tmp_path: Path) -> None:
    from tacit.tables.proposal import propose

    days = [f"{day:02}/{month:02}/2012" for month in (1, 2) for day in range(1, 15)]
    rows = [f"{day},{month},{month % 2}" for month, day in enumerate(days)]
    (tmp_path / "t.csv").write_text("\n".join(["born,size,y", *rows, ",3,1"]))
    draft = propose(tmp_path / "t.csv", target="y")
    assert draft["columns"]["born"] == {
        "type": "date",
        "low": "2012-01-01",
        "high": "2012-02-14",
        "format": "%d/%m/%Y",
        "missing": "own",
    }
    Schema.from_json({**draft, "comment": ""})


def test_a_draft_says_where_day_and_month_could_be_either(tmp_path: Path) -> None:
    from tacit.tables.proposal import propose

    days = [f"{day:02}/{month:02}/2012" for month in (1, 2, 3) for day in range(1, 13)]
    (tmp_path / "t.csv").write_text("\n".join(["born,y", *(f"{day},{place % 2}" for place, day in enumerate(days))]))
    found = propose(tmp_path / "t.csv", target="y")["columns"]["born"]
    assert (found["format"], found["comment"]) == ("%d/%m/%Y", "or the format %m/%d/%Y")


def test_the_error_for_a_column_that_is_a_word_shows_how_to_write_it() -> None:
    facts = {"target": "y", "columns": {"x": "private", "y": {"type": "category", "values": ["a", "b"]}}}
    with pytest.raises(ValueError, match=r"column 'x': it is \"private\" alone; write \{\"type\": \"private\"\}"):
        Schema.from_json(facts)
