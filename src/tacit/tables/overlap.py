"""Refuse a test table made of records that are trained on: a score on those would tell of them, exactly and free."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.tables.columns import Columns
from tacit.tables.entries import numeric, words
from tacit.tables.looks import Pieces
from tacit.tables.schema import Schema

_MOST_COMPARED = 2**20
_MARGIN = 0.05
_REMEDY = (
    "a score on them would be exact, and private records would pay for it; leave --test out to have a share of the "
    "records held out and scored privately, or give a file of other records."
)

Hashes = NDArray[np.uint64]


def check_files_differ(table: Path, test: Path) -> None:
    """Refuse a test file that is the training file, or a copy of it."""
    if test.exists() and table.exists() and (test.samefile(table) or filecmp.cmp(test, table, shallow=False)):
        raise ValueError(f"{test} holds the records that are trained on: {_REMEDY}")


def check_rows_differ(table: Pieces, test: Pieces, schema: Schema, *, records: int) -> None:
    """Refuse a test table that has more rows in common with the training table than chance can explain.

    If test rows were drawn like training rows, one of them would be found among the training rows about as often as a
    training row has a twin there. That rate, and 5 % of the test rows beyond it, are accepted: a table of few columns
    has many equal rows that are different people. Rows are compared by hashes; of a large table, only those with some
    hashes, which keeps twins together.
    """
    parts = max(math.ceil(records / _MOST_COMPARED), 1)
    trained, times = np.unique(_hashes(table(), schema, parts), return_counts=True)
    tested = _hashes(test(), schema, parts)
    if not len(tested) or not len(trained):
        return
    twins = float(times[times > 1].sum() / times.sum())
    common = float(np.isin(tested, trained).mean())
    if common > twins + _MARGIN + 4 * math.sqrt(twins * (1 - twins) / len(tested)):
        raise ValueError(f"rows of the test table are rows of the training table: {_REMEDY}")


def _hashes(pieces: Iterable[Columns], schema: Schema, parts: int) -> Hashes:
    """Return a hash of every row, of one in ``parts`` hashes."""
    found = [np.zeros(0, dtype=np.uint64)]
    for piece in pieces:
        rows = np.zeros(len(piece[schema.target]), dtype=np.uint64)
        for name in schema.columns:
            rows = (rows ^ _codes(name, piece[name], name in schema.numbers)) * np.uint64(0x9E3779B97F4A7C15)
            rows ^= rows >> np.uint64(29)
        found.append(rows[rows % np.uint64(parts) == 0])
    return np.concatenate(found)


def _codes(name: str, values: NDArray[np.generic], number: bool) -> Hashes:
    if number:
        return np.nan_to_num(numeric(name, values, text="missing") + 0.0, nan=np.inf).view(np.uint64)
    texts = [str(entry).strip() for entry in values.tolist()] if values.dtype.kind == "O" else words(values).tolist()
    return np.fromiter(map(hash, texts), dtype=np.int64, count=len(texts)).view(np.uint64)
