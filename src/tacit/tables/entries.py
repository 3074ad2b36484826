"""The entries of a column as numbers or as words, however the file or the frame stores them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.tables.notation import PLAIN, Notation, date_formats, parsed

MISSING = ("", "?", "NA", "NaN", "nan", "null", "None")
"""How a missing entry is written."""
_TRUTHS = {"true": 1.0, "True": 1.0, "false": 0.0, "False": 0.0}
_LONGEST = 256
"""Words are cut here: one long entry must not fill the memory."""


def numeric(
    name: str,
    values: NDArray[np.generic],
    *,
    first: int = 1,
    text: str = "refuse",
    notation: Notation = PLAIN,
    truths: bool = False,
) -> NDArray[np.float64]:
    """The entries as float64, NaN where missing; what is no finite number is an error, or missing too.

    With ``truths``, true and false are 1 and 0, as they come from frames that know them.
    """
    if values.dtype.kind in "fiub" and not notation.date:
        numbers = values.astype(np.float64)
        bad = np.isinf(numbers)
    else:
        numbers = _parsed(values) if notation.plain else parsed(values, notation)
        bad = np.zeros(len(numbers), dtype=np.bool_)
        odd = np.flatnonzero(~np.isfinite(numbers))
        if truths and len(odd):
            numbers[odd] = [_TRUTHS.get(str(entry), math.nan) for entry in values[odd].tolist()]
            odd = odd[~np.isfinite(numbers[odd])]
        bad[odd] = [str(entry).strip() not in MISSING for entry in values[odd].tolist()]
    if text == "missing":
        numbers[bad] = np.nan
    elif bad.any():
        at = int(np.flatnonzero(bad)[0])
        entry = str(values[at]).strip()
        raise ValueError(
            f"column {name!r}, row {first + at}: {entry!r} is not a {_kind_of(notation)}; {_remedy(entry)}, or correct "
            "the file."
        )
    return numbers


def _remedy(entry: str) -> str:
    formats = [f'"format": "{form}"' for form in date_formats(entry) if form != "iso"]
    if formats:
        return f'declare the column with "type": "date" and {" or ".join(formats)}'
    return "declare the column as it is written (docs/tables.md, The schema)"


def _kind_of(notation: Notation) -> str:
    if notation.date:
        return "date like 2024-12-31" if notation.date == "iso" else f"date like {notation.date}"
    return "number" if notation.plain else f"number with {notation.decimal!r} before its decimals"


def words(values: NDArray[np.generic]) -> NDArray[np.str_]:
    """The entries as text, '' where missing; whole numbers without a point, so that 1 and 1.0 are one category.

    Very long ones are cut.
    """
    if values.dtype.kind == "b":
        return np.where(values, "true", "false")
    if values.dtype.kind in "fiu":
        return np.array([_spelled(value) for value in values.tolist()], dtype=str)
    if values.dtype.kind == "O":  # an array of text is as wide as its longest entry
        values = np.array([str(entry)[:_LONGEST] for entry in values.tolist()], dtype=str)
    text = np.char.strip(values.astype(str))
    return np.where(np.isin(text, MISSING), "", text)


def _parsed(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Text as numbers, NaN where it is none."""
    entries = values.astype(object)
    try:
        return entries.astype(np.float64)
    except ValueError:
        return np.array([_number(entry) for entry in entries.tolist()])


def _number(entry: str) -> float:
    """Return the number, NaN where it is none.

    ``float`` alone does not strip U+001C to U+001F from text that is ASCII; the fast reader does (`reading`), and one
    row's neighbours decide which of the two reads it.
    """
    try:
        return float(entry.strip())
    except ValueError:
        return math.nan


def _spelled(value: float) -> str:
    if value != value:
        return ""
    return str(int(value)) if float(value).is_integer() else repr(value)
