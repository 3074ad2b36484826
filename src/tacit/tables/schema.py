"""The schema of a table: declared by its owner, never read off the records.

A schema is a JSON file to be written, or proposed by ``tacit data schema`` and then edited:

    {"target": "employed",
     "columns": {"age":      {"type": "number", "low": 0, "high": 100},
                 "income":   {"type": "number", "low": 0, "high": 1000000, "bins": [1, 10000, 50000, 100000]},
                 "school":   {"type": "category", "values": ["none", "primary", "secondary"], "other": true},
                 "employed": {"type": "category", "values": ["0", "1"]},
                 "rent":     {"type": "number", "low": 0, "high": 5000, "decimal": ",", "currency": true},
                 "moved":    {"type": "date", "low": "2000-01-01", "high": "2024-12-31", "format": "%d.%m.%Y"},
                 "month":    {"type": "date", "of": "moved", "format": "%d.%m.%Y", "part": "month"},
                 "remarks":  {"type": "text"},
                 "name":     {"type": "ignore"}}}

A bound, a list of values or a whole type that is ``"private"`` is released from the records with noise and charged
(see `tacit.tables.discovery`). There is no way to have one taken from the records for nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.tables.columns import Category, Column, Number, Text, Undeclared, finite, part_of_date
from tacit.tables.notation import PLAIN, Notation, day, day_text

DRAFT = "NOT PRIVATE"
"""How the comment of a draft begins; a schema that still has it is refused."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns that are used, in order, and which of them is to be predicted."""

    columns: Mapping[str, Column]
    target: str

    def __post_init__(self) -> None:
        target = self.columns.get(self.target)
        if target is None:
            raise ValueError(
                f"target is {self.target!r}; the schema's columns are {', '.join(self.columns) or 'none'}."
            )
        if isinstance(target, Text):
            raise ValueError(f"the target {self.target!r} is text; predict a category or a number.")
        if isinstance(target, Undeclared) or (isinstance(target, Number) and target.private):
            raise ValueError(
                f"the target {self.target!r} must be declared: a category (its values may be private), or a number "
                "with bounds."
            )
        if target.missing != "refuse":
            raise ValueError(f"the target {self.target!r} cannot be missing; leave its treatment out.")
        if isinstance(target, Number) and (target.bins or target.knots):
            raise ValueError(f"the target {self.target!r} is a number with bins; make it a category instead.")
        if isinstance(target, Category) and not target.other and len(target.values or ()) < 2:
            raise ValueError(f"the target {self.target!r} has one class only; there is nothing to learn.")
        if len(self.columns) < 2:
            raise ValueError("the schema has no column but the target; there is nothing to predict from.")

    @property
    def features(self) -> dict[str, Column]:
        return {name: column for name, column in self.columns.items() if name != self.target}

    @property
    def classes(self) -> tuple[str, ...]:
        """The target's values; empty if the target is a number."""
        target = self.columns[self.target]
        return (target.values or ()) if isinstance(target, Category) else ()

    @property
    def numbers(self) -> frozenset[str]:
        """The columns that hold plain numbers."""
        return frozenset(
            name for name, column in self.columns.items() if isinstance(column, Number) and column.notation.plain
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of free text."""
        return tuple(name for name, column in self.columns.items() if isinstance(column, Text))

    @property
    def open_texts(self) -> tuple[str, ...]:
        """The columns of free text whose buckets the rule is yet to choose."""
        return tuple(name for name, column in self.columns.items() if isinstance(column, Text) and not column.buckets)

    def sources(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return for each column, or each of ``names``, the column of the file that it is read from."""
        found = {}
        for name in self.columns if names is None else names:
            column = self.columns[name]
            found[name] = (column.notation.of or name) if isinstance(column, Number) else name
        return found

    @property
    def date_formats(self) -> dict[str, str]:
        """Return the format of the dates in each column of the file that has dates."""
        dates = {name: column for name, column in self.columns.items() if isinstance(column, Number)}
        return {
            dates[name].notation.of or name: dates[name].notation.date for name in dates if dates[name].notation.date
        }

    @property
    def private(self) -> tuple[str, ...]:
        """The columns whose bounds or values are still to be released."""
        return tuple(name for name, column in self.columns.items() if column.private)

    def to_json(self) -> dict[str, Any]:
        return {"target": self.target, "columns": {name: _column_json(item) for name, item in self.columns.items()}}

    @classmethod
    def from_json(cls, data: Any, *, target: str | None = None) -> Schema:
        if not isinstance(data, dict) or not isinstance(data.get("columns"), dict):
            raise ValueError('a schema is a JSON object with "columns" and "target".')
        if str(data.get("comment", "")).startswith(DRAFT):
            raise ValueError(
                "this is still a draft made by looking at the records: replace its bounds and values by what is known "
                'without looking, or by "private", and delete its comment.'
            )
        columns = {}
        for name, facts in data["columns"].items():
            try:
                column = _column(facts)
            except (ValueError, TypeError) as error:
                raise ValueError(f"column {name!r}: {error}") from None
            if column is not None:
                columns[name] = column
        chosen = target or data.get("target")
        if not isinstance(chosen, str):
            raise ValueError('the schema names no target; add "target", or give --target.')
        return cls(columns=columns, target=chosen)

    @classmethod
    def load(cls, path: Path, *, target: str | None = None) -> Schema:
        if not path.is_file():
            raise ValueError(f"there is no file {path}.")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not JSON: {error}.") from None
        try:
            schema = cls.from_json(data, target=target)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        goal = schema.columns[schema.target]
        if isinstance(goal, Category) and goal.other and not goal.private:
            raise ValueError(
                f'{path}: the target {schema.target!r} has "other"; list its values, or make them private.'
            )
        return schema


_FIELDS = {
    "number": {"low", "high", "bins", "knots", "missing", "text", "decimal", "currency"},
    "date": {"low", "high", "bins", "knots", "missing", "text", "format", "part", "of"},
    "category": {"values", "other", "missing"},
    "text": {"buckets", "ngrams", "missing"},
    "private": set(),
    "ignore": set(),
}


def _column(facts: Any) -> Column | None:
    if facts in ("private", "ignore", "text"):
        raise ValueError(f'it is "{facts}" alone; write {{"type": "{facts}"}}.')
    kind = facts.get("type") if isinstance(facts, dict) else None
    if kind not in _FIELDS:
        raise ValueError(f"type is {kind!r}; it must be one of {', '.join(_FIELDS)}.")
    values = {name: value for name, value in facts.items() if name not in ("type", "comment")}
    unknown = sorted(set(values) - _FIELDS[kind])
    if unknown:
        raise ValueError(
            f"a {kind} has no {', '.join(unknown)}; it has {', '.join(sorted(_FIELDS[kind])) or 'nothing'}."
        )
    if kind in ("ignore", "private"):
        return None if kind == "ignore" else Undeclared()
    if kind == "category":
        return _category(values)
    if kind == "text":
        return Text(**values)
    return _date(values) if kind == "date" else _number(values, "", PLAIN)


def _category(values: dict[str, Any]) -> Category:
    if "values" not in values:
        raise ValueError('values is missing; list them, or say "private" to have them discovered and charged.')
    listed = values.pop("values")
    if listed != "private" and not isinstance(listed, list):
        raise ValueError(f'values is {listed!r}; it must be a list, or "private".')
    return Category(values=None if listed == "private" else tuple(listed), **values)


def _date(values: dict[str, Any]) -> Number:
    named = {name: values.pop(name, "") for name in ("part", "of")}
    notation = Notation(date=values.pop("format", "iso"), **named)
    if notation.part:
        if given := sorted(set(values) & {"low", "high", "bins", "knots"}):
            raise ValueError(f"the {notation.part} of a date has no {', '.join(given)}; its values are known.")
        return part_of_date(notation.part, notation, values.pop("missing", "refuse"), values.pop("text", "refuse"))
    for name in ("low", "high"):
        if isinstance(values.get(name), str) and values[name] != "private":
            values[name] = day(values[name])
    return _number(values, "date ", notation)


def _number(values: dict[str, Any], word: str, notation: Notation) -> Number:
    if notation is PLAIN:
        notation = Notation(**{name: values.pop(name) for name in ("decimal", "currency") if name in values})
    bins, knots = values.pop("bins", []), values.pop("knots", [])
    for name, listed in (("bins", bins), ("knots", knots)):
        if not isinstance(listed, list):
            raise ValueError(f"{name} is {listed!r}; it must be a list of numbers.")
    bounds = {name: values.pop(name, None) for name in ("low", "high")}
    if not bins and not knots and None in bounds.values():
        raise ValueError(
            f'the {word}low or high is missing; declare both, or say "private" to have them released and charged.'
        )
    if bins or knots:
        ends = _ends(bins or knots)
        bounds = {name: edge if value is None else value for (name, value), edge in zip(bounds.items(), ends)}
    return Number(
        low=None if bounds["low"] == "private" else bounds["low"],
        high=None if bounds["high"] == "private" else bounds["high"],
        bins=tuple(bins),
        knots=tuple(knots),
        notation=notation,
        **values,
    )


def _ends(bins: list[Any]) -> tuple[float, float]:
    first, last = finite("a bin edge", bins[0]), finite("a bin edge", bins[-1])
    return math.nextafter(first, -math.inf), math.nextafter(last, math.inf)


def _column_json(column: Column) -> dict[str, Any]:
    if isinstance(column, Category):
        listed = "private" if column.values is None else list(column.values)
        return {"type": "category", "values": listed, "other": column.other, "missing": column.missing}
    if isinstance(column, Undeclared):
        return {"type": "private"}
    if isinstance(column, Text):
        return {"type": "text", "buckets": column.buckets, "ngrams": column.ngrams}
    notation, common = column.notation, {"missing": column.missing, "text": column.text}
    edges = {"bins": list(column.bins), "knots": list(column.knots)}
    if notation.part:
        return {"type": "date", "format": notation.date, "part": notation.part, "of": notation.of, **common}
    shown = day_text if notation.date else lambda number: number
    low, high = ("private" if value is None else shown(value) for value in (column.low, column.high))
    if notation.date:
        return {"type": "date", "low": low, "high": high, "format": notation.date, "of": notation.of, **edges, **common}
    written = {} if notation.plain else {"decimal": notation.decimal, "currency": notation.currency}
    return {"type": "number", "low": low, "high": high, **edges, **common, **written}
