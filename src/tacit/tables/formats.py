"""Files of tables that are not plain CSV: what a file is by its name, and how the others are read, in pieces.

A place is a path, or ``FILE::TABLE`` for a table inside a SQLite or DuckDB file. Nothing is unpickled, and a database
is opened for reading only.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.tables.arrow import LONGEST, from_arrow
from tacit.tables.kinds import divided


def open_text(path: Path) -> IO[str]:
    """Return a text file, unpacked on the way if its name ends in .gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def separator(path: Path, header: str) -> str:
    """Return what separates the fields: a tab or a semicolon if the header has them and no comma, else a comma."""
    endings = [suffix.lower() for suffix in path.suffixes]
    if any(ending in (".tsv", ".tab") for ending in endings):
        return "\t"
    if "," in header:
        return ","
    return ";" if ";" in header else "\t" if "\t" in header else ","


def names_in(place: Path, kind: str) -> tuple[str, ...]:
    """Return the columns of a file that is neither CSV nor Parquet."""
    path, table = divided(place)
    if kind == "feather":
        with _batches(path) as reader:
            return tuple(reader.schema.names)
    if kind == "jsonl":
        first = next(_objects(path), None)
        if first is None:
            raise ValueError(f"{path} is empty; it needs one JSON object a line.")
        return tuple(first)
    with _cursor(path, kind, table, ["*"]) as cursor:
        return tuple(column[0] for column in cursor.description)


def pieces_of(place: Path, kind: str, names: Sequence[str], rows: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Read columns of a file that is neither CSV nor Parquet, so many rows at a time."""
    path, table = divided(place)
    if kind == "feather":
        with _batches(path) as reader:
            for batch in _each(reader):
                for first in range(0, batch.num_rows, rows):
                    part = batch.slice(first, rows)
                    yield {name: from_arrow(part.column(name), name) for name in names}
        return
    if kind == "jsonl":
        lines = _objects(path)
        while piece := list(islice(lines, rows)):
            yield {name: _texts([line.get(name) for line in piece]) for name in names}
        return
    with _cursor(path, kind, table, names) as cursor:
        while found := cursor.fetchmany(rows):
            yield {name: _texts(list(column)) for name, column in zip(names, zip(*found), strict=True)}


def _texts(values: list[Any]) -> NDArray[Any]:
    return np.array(["" if value is None else _text(value) for value in values], dtype=object)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | dict | list):
        return ""  # not an entry of a table
    return repr(value) if isinstance(value, float) else str(value)[:LONGEST]


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise ValueError(f"{path}, line {number}: this is no JSON object; write one a record on each line.")
            yield found


class _cursor:
    """A query for some columns of a table, opened for reading only."""

    def __init__(self, path: Path, kind: str, table: str, names: Sequence[str]) -> None:
        chosen = ", ".join(name if name == "*" else _quoted(name) for name in names)
        self._query, self._path, self._kind, self._table = f"SELECT {chosen} FROM {_quoted(table)}", path, kind, table

    def __enter__(self) -> Any:
        if self._kind == "sqlite":
            self._connection: Any = sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)
        else:
            try:
                duckdb = import_module("duckdb")
            except ImportError:
                raise ValueError(f"reading {self._path} needs duckdb; install it with: pip install duckdb") from None
            self._connection = duckdb.connect(str(self._path), read_only=True)
        try:
            return self._connection.execute(self._query)
        except Exception as error:  # each library has its own
            self._connection.close()
            raise ValueError(
                f"the table {self._table!r} of {self._path} cannot be read: {error}; check its name after '::'."
            ) from None

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _batches(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow; install it with: pip install 'tacit[sklearn]'") from error
    try:
        return pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
    except pyarrow.ArrowInvalid:
        pass
    try:
        return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is not a whole Feather or Arrow file: {error}; write it again.") from None


def _each(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        for place in range(reader.num_record_batches):
            yield reader.get_batch(place)
    else:
        yield from reader
