"""What a table's columns are: declared by its owner, never read off the records.

A schema is a JSON file to be written, or proposed by ``tacit data schema`` and then edited:

    {"target": "employed",
     "columns": {"age":      {"type": "number", "low": 0, "high": 100},
                 "income":   {"type": "number", "low": 0, "high": 1000000, "bins": [1, 10000, 50000, 100000]},
                 "school":   {"type": "category", "values": ["none", "primary", "secondary"], "other": true},
                 "employed": {"type": "category", "values": ["0", "1"]},
                 "name":     {"type": "ignore"}}}

A bound, a list of values or a whole type that is ``"private"`` is released from the records with noise and charged
(see `tacit.tables.discovery`). There is no way to have one taken from the records for nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Missing = Literal["refuse", "own"] | float | str
"""A missing entry is an error (``"refuse"``), a category or indicator of its own (``"own"``), or the value given."""

DRAFT = "NOT PRIVATE"
"""How the comment of a draft begins; a schema that still has it is refused."""

MOST_VALUES = 10_000


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number between ``low`` and ``high``; what lies outside counts as the bound. None: to be released privately.

    ``bins`` are inner edges: the column then counts as the bin its value is in, which suits skewed columns. ``knots``
    are numbers between which a linear model's effect of the column is linear; it is constant beyond the outer ones.
    Text that is no number is an error (``"refuse"``), or counts as missing.
    """

    low: float | None
    high: float | None
    bins: tuple[float, ...] = ()
    knots: tuple[float, ...] = ()
    missing: Missing = "refuse"
    text: Literal["refuse", "missing"] = "refuse"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _finite(name, value))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}; low must be below high.")
        if (self.low is None) != (self.high is None):
            raise ValueError("one bound is declared and the other private; declare both, or make both private.")
        for name, word in (("bins", "a bin edge"), ("knots", "a knot")):
            edges = tuple(_finite(word, edge) for edge in getattr(self, name))
            if list(edges) != sorted(set(edges)):
                raise ValueError(f"{name} are {list(edges)}; they must rise, each once.")
            object.__setattr__(self, name, edges)
        if len(self.knots) == 1 or (self.knots and self.bins):
            raise ValueError(f"knots are {list(self.knots)}; give two or more, and no bins beside them.")
        if self.missing not in ("refuse", "own"):
            object.__setattr__(self, "missing", _finite("missing", self.missing))
        if self.text not in ("refuse", "missing"):
            raise ValueError(f"text is {self.text!r}; it must be 'refuse' or 'missing'.")

    @property
    def private(self) -> bool:
        return self.low is None and not self.bins and not self.knots


@dataclass(frozen=True, kw_only=True)
class Category:
    """One of ``values``. ``other`` lets anything else count as one more value; without it that is an error.

    None for ``values``: to be discovered privately; what is not found counts as another.
    """

    values: tuple[str, ...] | None
    other: bool = False
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        if not isinstance(self.other, bool):
            raise ValueError(f"other is {self.other!r}; it must be true or false.")
        if self.values is None:
            object.__setattr__(self, "other", True)
            return
        texts = tuple(_plain(value) for value in self.values)
        if not texts or len(set(texts)) != len(texts) or "" in texts:
            raise ValueError(f"values are {list(texts)[:10]}; give each value once, at least one, none empty.")
        if len(texts) > MOST_VALUES:
            raise ValueError(f"a category has {len(texts)} values; at most {MOST_VALUES} are workable.")
        object.__setattr__(self, "values", texts)
        if self.missing not in ("refuse", "own") and _plain(self.missing) not in texts:
            raise ValueError(f"missing is {self.missing!r}; it must be 'refuse', 'own' or one of the values.")

    @property
    def private(self) -> bool:
        return self.values is None


@dataclass(frozen=True, kw_only=True)
class Undeclared:
    """Nothing is known of the column: whether it is a number or a category is found out privately too."""

    missing: Missing = "own"
    private: bool = True


Column = Number | Category | Undeclared


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
        """The columns that hold numbers."""
        return frozenset(name for name, column in self.columns.items() if isinstance(column, Number))

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
    "number": {"low", "high", "bins", "knots", "missing", "text"},
    "category": {"values", "other", "missing"},
    "private": set(),
    "ignore": set(),
}


def _column(facts: Any) -> Column | None:
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
        if "values" not in values:
            raise ValueError('values is missing; list them, or say "private" to have them discovered and charged.')
        listed = values.pop("values")
        if listed != "private" and not isinstance(listed, list):
            raise ValueError(f'values is {listed!r}; it must be a list, or "private".')
        return Category(values=None if listed == "private" else tuple(listed), **values)
    bins, knots = values.pop("bins", []), values.pop("knots", [])
    for name, listed in (("bins", bins), ("knots", knots)):
        if not isinstance(listed, list):
            raise ValueError(f"{name} is {listed!r}; it must be a list of numbers.")
    bounds = {name: values.pop(name, None) for name in ("low", "high")}
    if not bins and not knots and None in bounds.values():
        raise ValueError('low or high is missing; declare both, or say "private" to have them released and charged.')
    if bins or knots:
        ends = _ends(bins or knots)
        bounds = {name: edge if value is None else value for (name, value), edge in zip(bounds.items(), ends)}
    return Number(
        low=None if bounds["low"] == "private" else bounds["low"],
        high=None if bounds["high"] == "private" else bounds["high"],
        bins=tuple(bins),
        knots=tuple(knots),
        **values,
    )


def _ends(bins: list[Any]) -> tuple[float, float]:
    first, last = _finite("a bin edge", bins[0]), _finite("a bin edge", bins[-1])
    return math.nextafter(first, -math.inf), math.nextafter(last, math.inf)


def _column_json(column: Column) -> dict[str, Any]:
    if isinstance(column, Category):
        listed = "private" if column.values is None else list(column.values)
        return {"type": "category", "values": listed, "other": column.other, "missing": column.missing}
    if isinstance(column, Undeclared):
        return {"type": "private"}
    low, high = ("private" if value is None else value for value in (column.low, column.high))
    facts = {"type": "number", "low": low, "high": high, "bins": list(column.bins), "knots": list(column.knots)}
    return facts | {"missing": column.missing, "text": column.text}


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; it must be a finite number.")
    return float(value)


def _plain(value: object) -> str:
    """A category's value as it stands in a file: 1 and 1.0 are both '1'."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str | int | float):
        return str(value).strip()
    raise ValueError(f"a category has the value {value!r}; it must be text or a number.")
