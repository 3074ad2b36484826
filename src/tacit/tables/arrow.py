"""Columns of Arrow tables, and lists of text, as arrays of numbers or of Python's strings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 2**16
"""Longer entries are cut: one must not fill the memory."""


def entries(found: Sequence[str], number: bool) -> NDArray[Any]:
    """Return text as an array; entries that are not to become numbers are cut if they are very long."""
    if not number and max(map(len, found), default=0) > LONGEST:
        found = [entry[:LONGEST] for entry in found]
    return np.array(found, dtype=object)


def written(value: date, form: str) -> str:
    """Return a date as text: by a format as for ``strptime``, or ``"iso"``."""
    return value.isoformat() if form == "iso" else value.strftime(form)


def from_arrow(column: Any, name: str, form: str = "iso") -> NDArray[Any]:
    """Return a column of an Arrow table: numbers as float64, NaN where missing, all else as text, '' where missing.

    ``form`` is the format of dates.
    """
    import pyarrow

    kind = pyarrow.types
    if kind.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind.is_decimal(column.type):
        column = column.cast(pyarrow.float64(), safe=False)
    if kind.is_date(column.type) or kind.is_timestamp(column.type):
        return entries(["" if value is None else written(value, form) for value in column.to_pylist()], False)
    if kind.is_integer(column.type) or kind.is_floating(column.type):
        values: NDArray[Any] = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return values
    text = (kind.is_boolean, kind.is_string, kind.is_large_string, kind.is_string_view, kind.is_null)
    if any(holds(column.type) for holds in text):
        return entries(["" if value is None else _word(value) for value in column.to_pylist()], False)
    raise ValueError(f"column {name!r} has the type {column.type}; only numbers, text, dates and true/false are read.")


def _word(value: str | bool) -> str:
    return value if isinstance(value, str) else "true" if value else "false"
