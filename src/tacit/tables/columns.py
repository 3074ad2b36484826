"""The columns of a table as a schema declares them: numbers, categories, text, and those that are found out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from tacit.tables.notation import PARTS, PLAIN, Notation

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Some rows of a table: an array for each column, of numbers or of text, which may be an array of Python's strings; an
empty text is a missing entry."""

Missing = Literal["refuse", "own"] | float | str
"""A missing entry is an error (``"refuse"``), a category or indicator of its own (``"own"``), or the value given."""

MOST_VALUES = 10_000
MOST_BUCKETS = 2**16
MOST_NGRAMS = 128
"""So many n-grams of a text count for a record."""
_WHOLE = re.compile(r"-?\d+(\.0)?")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number between ``low`` and ``high``; what lies outside counts as the bound. None: to be released privately.

    ``bins`` are inner edges: the column then counts as the bin its value is in, which suits skewed columns. ``knots``
    are numbers between which a linear model's effect of the column is linear; it is constant beyond the outer ones.
    Text that is no number is an error (``"refuse"``), or counts as missing. ``notation`` says how entries are written.
    """

    low: float | None
    high: float | None
    bins: tuple[float, ...] = ()
    knots: tuple[float, ...] = ()
    missing: Missing = "refuse"
    text: Literal["refuse", "missing"] = "refuse"
    notation: Notation = PLAIN

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, finite(name, value))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}; low must be below high.")
        if (self.low is None) != (self.high is None):
            raise ValueError("one bound is declared and the other private; declare both, or make both private.")
        for name, word in (("bins", "a bin edge"), ("knots", "a knot")):
            edges = tuple(finite(word, edge) for edge in getattr(self, name))
            if list(edges) != sorted(set(edges)):
                raise ValueError(f"{name} are {list(edges)}; they must rise, each once.")
            object.__setattr__(self, name, edges)
        if len(self.knots) == 1 or (self.knots and self.bins):
            raise ValueError(f"knots are {list(self.knots)}; give two or more, and no bins beside them.")
        if self.missing not in ("refuse", "own"):
            object.__setattr__(self, "missing", finite("missing", self.missing))
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
        texts = tuple(plain(value) for value in self.values)
        if not texts or len(set(texts)) != len(texts) or "" in texts:
            raise ValueError(f"values are {list(texts)[:10]}; give each value once, at least one, none empty.")
        if len(texts) > MOST_VALUES:
            raise ValueError(f"a category has {len(texts)} values; at most {MOST_VALUES} are workable.")
        object.__setattr__(self, "values", texts)
        if self.missing not in ("refuse", "own") and plain(self.missing) not in texts:
            raise ValueError(f"missing is {self.missing!r}; it must be 'refuse', 'own' or one of the values.")

    @property
    def private(self) -> bool:
        return self.values is None


@dataclass(frozen=True, kw_only=True)
class Text:
    """Free text, as hashed n-grams: every run of up to ``ngrams`` words counts in one of ``buckets`` by a public hash.

    A record has its first `MOST_NGRAMS` different ones, scaled to a vector of norm 1, or 0 without any. Nothing about
    the words of the records is stored, so nothing is to be declared or released. None for ``buckets``: as many as
    the rule chooses by public numbers.
    """

    buckets: int | None = None
    ngrams: int = 2
    missing: Missing = "own"
    private: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (("buckets", 2, MOST_BUCKETS), ("ngrams", 1, 3)):
            value = getattr(self, name)
            if value is None and name == "buckets":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} to {most}.")
        if self.missing != "own":
            raise ValueError(f"missing is {self.missing!r}; a text that is missing has no words, so leave it out.")


@dataclass(frozen=True, kw_only=True)
class Undeclared:
    """Nothing is known of the column: whether it is a number or a category is found out privately too."""

    missing: Missing = "own"
    private: bool = True


def part_of_date(part: str, notation: Notation, missing: Missing, text: Literal["refuse", "missing"]) -> Number:
    """Return the column of a part of dates: each of its values is a bin."""
    low, high = PARTS[part]
    edges = tuple(value + 0.5 for value in range(low, high))
    return Number(low=low - 0.5, high=high + 0.5, bins=edges, missing=missing, text=text, notation=notation)


Column = Number | Category | Text | Undeclared


def finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; it must be a finite number.")
    return float(value)


def spellings(values: Sequence[str]) -> dict[str, int]:
    """Return the place of each value, by every way that files and frames spell it.

    A file may say True or 1.0 where a frame, which knows truth values and numbers, says true or 1.
    """
    found = {value: place for place, value in enumerate(values)}
    for place, value in enumerate(values):
        others: tuple[str, ...] = ()
        if value.lower() in ("true", "false"):
            others = (value.lower(), value.title(), value.upper())
        if _WHOLE.fullmatch(value):
            others = (value.removesuffix(".0"), f"{value.removesuffix('.0')}.0")
        for other in others:
            found.setdefault(other, place)
    return found


def plain(value: object) -> str:
    """A category's value as it stands in a file: 1 and 1.0 are both '1'."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str | int | float):
        return str(value).strip()
    raise ValueError(f"a category has the value {value!r}; it must be text or a number.")
