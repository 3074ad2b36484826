"""A first draft of a schema, made by looking at the records: to be edited by someone who knows the columns.

Nothing of a draft is private. It says so in the file, and what it took from the records (bounds, values) has to be
replaced by what is known of them beforehand, or by "private".
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.tables.entries import numeric, words
from tacit.tables.notation import Notation, date_formats, day_text
from tacit.tables.reading import columns_of, read
from tacit.tables.schema import DRAFT

COMMENT = (
    f"{DRAFT}: bounds and values below were read off the records. Replace each by what is known without looking at "
    'them, or by "private" (released with noise and charged), and delete this comment: with it, training is refused.'
)
_FEW = 20


class _Seen:
    """Observations of one column."""

    def __init__(self) -> None:
        self.low, self.high, self.number, self.missing = np.inf, -np.inf, True, False
        self.values: Counter[str] = Counter()
        self.formats: tuple[str, ...] | None = None
        """The formats of dates that all entries so far can be read by."""

    def add(self, name: str, entries: np.ndarray[Any, Any]) -> None:
        text = words(entries)
        self.missing |= bool((text == "").any())
        if len(self.values) <= _FEW:
            there, counts = np.unique(text[text != ""], return_counts=True)
            self.values.update(dict(zip(there.tolist(), counts.tolist())))
        if self.number:
            try:
                self._reach(numeric(name, entries))
                return
            except ValueError:
                self.number = False
                self.formats = () if np.isfinite(self.low) else None  # numbers came before
        if self.formats == ():
            return
        known = np.unique(text[text != ""]).tolist()
        possible = self.formats or (date_formats(known[0]) if known else ())
        self.formats = tuple(form for form in possible if all(_is_date(entry, form) for entry in known))
        if self.formats:
            self._reach(numeric(name, text, notation=Notation(date=self.formats[0])))

    def _reach(self, numbers: NDArray[np.float64]) -> None:
        there = numbers[~np.isnan(numbers)]
        if len(there):
            self.low, self.high = min(self.low, float(there.min())), max(self.high, float(there.max()))

    def column(self) -> dict[str, Any]:
        treatment = {"missing": "own"} if self.missing else {}
        if 0 < len(self.values) <= _FEW:
            return {"type": "category", "values": sorted(self.values, key=_order), **treatment}
        if self.number and self.low < self.high:
            return {"type": "number", "low": self.low, "high": self.high, **treatment}
        if self.number:
            return {"type": "ignore", "comment": "always the same, or never there"}
        if self.formats and self.low < self.high:
            low, high = day_text(float(math.floor(self.low))), day_text(float(math.ceil(self.high)))
            form, *others = self.formats
            doubt = {"comment": f"or the format {' or '.join(others)}"} if others else {}
            return {"type": "date", "low": low, "high": high, "format": form, **treatment, **doubt}
        return {"type": "ignore", "comment": f"text with more than {_FEW} different values"}


def propose(path: Path, *, target: str | None = None) -> dict[str, Any]:
    """The draft of a schema for the file at ``path``."""
    names = columns_of(path)
    if target is not None and target not in names:
        raise ValueError(f"{path} has no column {target!r}; its columns are {', '.join(names)}.")
    seen = {name: _Seen() for name in names}
    rows = 0
    for piece in read(path, names):
        rows += len(piece[names[0]])
        for name, column in seen.items():
            column.add(name, piece[name])
    if not rows:
        raise ValueError(f"{path} has no rows; it needs one line a record below the column names.")
    columns = {name: column.column() for name, column in seen.items()}
    if target is not None:
        columns[target].pop("missing", None)
    return {"comment": COMMENT, "target": target or names[-1], "columns": columns}


def _is_date(entry: str, form: str) -> bool:
    return not math.isnan(Notation(date=form).number(entry))


def _order(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
