"""Files of many kinds are read alike, or refused with what to do."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.tables.entries import numeric, words
from tacit.tables.frames import as_columns
from tacit.tables.kinds import is_file_of_a_table, kind_of
from tacit.tables.notation import Notation
from tacit.tables.reading import columns_of, read

ROWS: list[dict[str, Any]] = [{"age": 30, "town": "A, b", "rate": 0.5}, {"age": None, "town": "Ü", "rate": 2.25}]


def _text(path: Path, mark: str) -> Path:
    quoted = [["" if value is None else f'"{value}"' for value in row.values()] for row in ROWS]
    text = "\n".join([mark.join(ROWS[0]), *(mark.join(row) for row in quoted)]) + "\n"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _jsonl(path: Path) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


def _feather(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather

    feather.write_feather(pyarrow.Table.from_pylist(ROWS), str(path))
    return path


def _sqlite(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "some people" (age INTEGER, town TEXT, rate REAL)')
        connection.executemany('INSERT INTO "some people" VALUES (?, ?, ?)', [tuple(row.values()) for row in ROWS])
    connection.close()
    return Path(f"{path}::some people")


WRITERS: dict[str, Callable[[Path], Path]] = {
    "t.csv": lambda path: _text(path, ","),
    "semicolons.csv": lambda path: _text(path, ";"),
    "t.tsv": lambda path: _text(path, "\t"),
    "tabs.txt": lambda path: _text(path, "\t"),
    "t.csv.gz": lambda path: _text(path, ","),
    "t.tsv.gz": lambda path: _text(path, "\t"),
    "t.jsonl": _jsonl,
    "t.feather": _feather,
    "t.db": _sqlite,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_says_the_same(name: str, tmp_path: Path) -> None:
    place = WRITERS[name](tmp_path / name)
    assert is_file_of_a_table(str(place))
    assert columns_of(place) == ("age", "town", "rate")
    pieces = list(read(place, ("town", "rate", "age"), numbers=("age", "rate"), rows=1))
    together = {column: np.concatenate([piece[column] for piece in pieces]) for column in pieces[0]}
    assert words(together["town"]).tolist() == ["A, b", "Ü"]
    assert numeric("rate", together["rate"]).tolist() == [0.5, 2.25]
    ages = numeric("age", together["age"])
    assert ages[0] == 30 and np.isnan(ages[1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.xlsx", "save the sheet as CSV"),
        ("t.json", "one object a line"),
        ("t.pkl", "a pickle"),
        ("t.zip", "unpack it"),
        ("t.sav", "export it as CSV"),
        ("t.parquet.gz", "unpack it"),
        ("t.db", "say which table"),
        ("t.csv::people", "is no database"),
        ("none.csv", "there is no file"),
    ],
)
def test_other_files_are_refused_with_the_remedy(name: str, text: str, tmp_path: Path) -> None:
    if not name.startswith("none"):
        (tmp_path / name.partition("::")[0]).write_bytes(b"x")
    with pytest.raises(ValueError, match=text):
        kind_of(tmp_path / name)


def test_a_table_that_is_not_in_the_database_is_named(tmp_path: Path) -> None:
    place = _sqlite(tmp_path / "t.db")
    with pytest.raises(ValueError, match=r"the table 'nobody' .* check its name after '::'"):
        columns_of(Path(str(place).replace("some people", "nobody")))
    with pytest.raises(ValueError, match="cannot be read"):
        columns_of(Path(str(place).replace("some people", 'x"; DROP TABLE "some people')))
    assert columns_of(place)


def test_without_duckdb_its_files_are_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    (tmp_path / "t.duckdb").write_bytes(b"x")
    with pytest.raises(ValueError, match="pip install duckdb"):
        columns_of(tmp_path / "t.duckdb::people")


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n[2]\n')
    with pytest.raises(ValueError, match="line 2: this is no JSON object"):
        list(read(tmp_path / "t.jsonl", ("a",)))


def test_a_damaged_gzip_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="is not a CSV file"):
        columns_of(tmp_path / "t.csv.gz")
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)
    (tmp_path / "u.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is broken off"):
        list(read(tmp_path / "u.csv.gz", ("a",)))


def test_text_views_and_empty_columns_of_arrow_are_read() -> None:
    """polars hands out its text as views; a column without a single entry has the type null."""
    pyarrow = pytest.importorskip("pyarrow")
    views = pyarrow.array(["A, b", None], pyarrow.string_view())
    found = as_columns(pyarrow.table({"town": views, "note": pyarrow.nulls(2)}), ("town", "note"))
    assert words(found["town"]).tolist() == ["A, b", ""]
    assert words(found["note"]).tolist() == ["", ""]


def test_frames_of_any_library_become_the_same_columns() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    arrow = pyarrow.Table.from_pylist(ROWS)
    for frame in (arrow, pandas.DataFrame(ROWS), {name: [row[name] for row in ROWS] for name in ROWS[0]}):
        found = as_columns(frame, ("town", "age"))
        assert words(found["town"]).tolist() == ["A, b", "Ü"]
        assert numeric("age", found["age"])[0] == 30 and np.isnan(numeric("age", found["age"])[1])
    with pytest.raises(ValueError, match="no column 'height'"):
        as_columns(arrow, ("height",))
    with pytest.raises(ValueError, match="give a pandas or polars frame"):
        as_columns(3, ("town",))
    lazy = type("LazyFrame", (), {"collect": None, "collect_schema": None, "columns": ["town"]})()
    with pytest.raises(ValueError, match=r"a LazyFrame, which is not read yet; give table.collect\(\)"):
        as_columns(lazy, ("town",))


def test_dates_of_frames_need_no_format() -> None:
    """A frame's dates are dates, however the file that the model was trained on spells them."""
    pyarrow = pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    days = [datetime(2012, 1, 31, 7), None]
    notation = Notation(date="%d.%m.%Y %H:%M")
    frames = [pandas.DataFrame({"day": pandas.to_datetime(days)}), pyarrow.table({"day": days})]
    frames += [{"day": np.array(days, dtype="datetime64[ns]")}, {"day": ["31.01.2012 07:00", ""]}]
    for frame in frames:
        found = as_columns(frame, ("day",), {"day": notation.date})["day"]
        assert numeric("day", found, notation=notation)[0] == pytest.approx(15370 + 7 / 24)
        assert np.isnan(numeric("day", found, notation=notation)[1])
