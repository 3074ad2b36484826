"""Tables about people, column by column."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import numpy as np

from tacit.data.catalogue import entry
from tacit.data.fetching import obtain
from tacit.data.formats import digest, verified

Column = np.ndarray[tuple[int], np.dtype[np.float64 | np.str_]]

ADULT = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
_NUMBERS = {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns by name, float64 or str; ``target`` is the column to predict. ``test`` is None without a test set.

    ``source`` says in words where it came from; ``fingerprint`` is the SHA-256 of the bytes of the training file.
    """

    name: str
    train: dict[str, Column]
    test: dict[str, Column] | None
    target: str
    source: str
    fingerprint: str


def load_table(name: str, *, fetch: bool = False) -> Table:
    """The table ``name``, from the first place that has it, every file checked; ``fetch`` as in `load`.

    Adult has UCI's column names, "?" where a value is missing, and "<=50K" or ">50K" as income in both parts.
    PUMS is Fulton County's, all numbers; it has no test part.
    """
    known = entry(name)
    if known.kind != "table":
        raise ValueError(f"{name} is a set of images, not a table; load it with load({name!r}).")
    place, layout = obtain(known, fetch_missing=fetch)
    read = _adult if name == "adult" else _pums
    contents = [verified(place / file.path, file) for file in layout.files]
    parts = [read(part.decode("utf-8")) for part in contents]
    for part, count, file in zip(parts, layout.records, layout.files):
        if any(len(column) != count for column in part.values()):
            raise ValueError(f"{place / file.path} does not have {count} rows; get the file again.")
    return Table(
        name=name,
        train=parts[0],
        test=parts[1] if len(parts) > 1 else None,
        target="income" if name == "adult" else "employed",
        source=f"{layout.files[0].path.partition('/')[0]}/ in {place}",
        fingerprint=digest(contents[0]),
    )


def _adult(text: str) -> dict[str, Column]:
    """Rows of 15 values; the test file has a line of its own at the top and a full stop after each label."""
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if len(row) == len(ADULT)]
    columns = dict(zip(ADULT, zip(*rows, strict=True), strict=True))
    columns["income"] = tuple(label.removesuffix(".") for label in columns["income"])
    return {
        name: np.array(values, dtype=np.float64 if name in _NUMBERS else np.str_) for name, values in columns.items()
    }


def _pums(text: str) -> dict[str, Column]:
    names, *rows = csv.reader(io.StringIO(text))
    return {name: np.array(values, dtype=np.float64) for name, values in zip(names, zip(*rows, strict=True))}
