"""Numbers and dates as people write them: decimal commas, currencies, days and hours. Declared, never guessed.

"1.234" is a thousand and more where a comma marks decimals, and about one where a point does. No look at the entries
can tell; so a column says how it is written, and one that does not is read as plain numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTS: dict[str, tuple[int, int]] = {"hour": (0, 23), "weekday": (1, 7), "day": (1, 31), "month": (1, 12)}
"""Parts of a date that come again and again, with the least and the greatest; Monday is weekday 1."""

KINDS = {
    "date": "dates",
    "comma": "numbers with decimal commas",
    "currency": "amounts with a currency or thousands separators",
    "text": "free text",
}
"""Patterns of entries that are not plain numbers, for the histogram of discovery; other words match none of them."""
REMEDIES = {
    "date": '{"type": "date", "low": "2020-01-01", "high": "2029-12-31"}',
    "comma": '{"type": "number", "decimal": ",", "low": …, "high": …}',
    "currency": '{"type": "number", "currency": true, "low": …, "high": …}',
    "text": '{"type": "text"}',
}

_MONEY = r"(?:[$€£¥₹₩₽₺₴₫฿]|[A-Z]{3}|kr|zł|Fr\.?|R\$)"
_CODES = (
    "AED AUD BGN BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR ISK JPY KES KRW KWD MAD MXN MYR NGN "
    "NOK NZD PEN PHP PKR PLN QAR RON RSD RUB SAR SEK SGD THB TRY TWD UAH USD VND ZAR"
)
_CURRENCY = _MONEY.replace("[A-Z]{3}", _CODES.replace(" ", "|"))
"""Three letters and digits are more often the code of something than an amount: undeclared ones must be money."""
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_PATTERNS = {
    "date": re.compile(
        r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})(?: .*)?"
        rf"|{_MONTH}\.? \d{{1,2}},? \d{{4}}|\d{{1,2}}[- ]{_MONTH}[- ](?:\d{{4}}|\d{{2}})"
    ),
    "comma": re.compile(r"[-+]?\d{1,3}(?:[. '\u00a0\u202f]\d{3})+,\d+|[-+]?\d+,\d{1,2}|[-+]?\d+,\d{4,}"),
    "currency": re.compile(
        rf"[-+(]?\s*{_CURRENCY}\s*[-+]?[\d.,' \u00a0\u202f]*\d\)?|[-+(]?[\d.,' \u00a0\u202f]*\d\s*{_CURRENCY}\)?"
        r"|[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?"
    ),
}
_SIGNS = re.compile(rf"{_MONEY}|%")
_SPACES = re.compile(r"[\s'\u00a0\u202f]")
_FEWEST_WORDS = 4


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How a column's numbers are written.

    ``decimal`` is the mark before decimals; the other mark, spaces and apostrophes separate thousands. ``currency``
    lets entries have the sign or code of a currency, or a percent sign, and brackets for negative amounts. ``date`` is
    the format of dates, as for `datetime.strptime`; ``"iso"`` for 2024-12-31 and 2024-12-31T23:59. A date is the number
    of days since 1970 (a time zone counts, without one it is UTC), or the ``part`` of it. ``of`` names the file's
    column where that is another one, so that several parts can be used.
    """

    decimal: str = "."
    currency: bool = False
    date: str = ""
    part: str = ""
    of: str = ""

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ValueError(f"decimal is {self.decimal!r}; it must be '.' or ','.")
        if not isinstance(self.currency, bool):
            raise ValueError(f"currency is {self.currency!r}; it must be true or false.")
        if not isinstance(self.date, str) or (self.date not in ("", "iso") and "%" not in self.date):
            raise ValueError(f"format is {self.date!r}; it must be 'iso', or like '%d.%m.%Y'.")
        if self.part not in ("", *PARTS):
            raise ValueError(f"part is {self.part!r}; it must be one of {', '.join(PARTS)}.")

    @property
    def plain(self) -> bool:
        """True if Python's own ``float`` reads such numbers."""
        return self.decimal == "." and not self.currency and not self.date

    def number(self, entry: str) -> float:
        """Return the number that an entry is; NaN if it is none."""
        text = entry.strip()
        try:
            if self.date:
                return self._day(text)
            if self.plain:
                return float(text)
            return self._amount(text)
        except (ValueError, OverflowError):
            return math.nan

    def _day(self, text: str) -> float:
        found = datetime.fromisoformat(text) if self.date == "iso" else datetime.strptime(text, self.date)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        if self.part:
            return float(found.isoweekday() if self.part == "weekday" else getattr(found, self.part))
        return found.timestamp() / 86400

    def _amount(self, text: str) -> float:
        negative = text.startswith("(") and text.endswith(")")
        text = text[1:-1] if negative else text
        if self.currency:
            text = _SIGNS.sub("", text)
        text = _SPACES.sub("", text)
        thousands = "," if self.decimal == "." else "."
        whole, mark, decimals = text.partition(self.decimal)
        groups = whole.lstrip("+-").split(thousands)
        if thousands in decimals or not all(len(group) == 3 for group in groups[1:]):
            return math.nan
        number = float(whole.replace(thousands, "") + ("." if mark else "") + decimals)
        return -number if negative else number


PLAIN = Notation()

_FORMATS = ("iso", *(f"%Y{mark}%m{mark}%d{time}" for time in ("", " %H:%M", " %H:%M:%S") for mark in "-/."))
_FORMATS += tuple(f"%d{mark}%m{mark}%Y{time}" for time in ("", " %H:%M", " %H:%M:%S") for mark in "./-")
_FORMATS += tuple(f"%m{mark}%d{mark}%Y{time}" for time in ("", " %H:%M", " %H:%M:%S") for mark in "/-")
_FORMATS += tuple(form for month in ("%b", "%B") for form in (f"{month} %d %Y", f"{month} %d, %Y", f"%d {month} %Y"))
_FORMATS += ("%d-%b-%Y", "%d-%b-%y")


def date_formats(entry: str) -> tuple[str, ...]:
    """Return the common formats of dates that an entry can be read by: two where day and month could be either."""
    if not _PATTERNS["date"].fullmatch(entry.strip()):
        return ()
    return tuple(form for form in _FORMATS if not math.isnan(Notation(date=form).number(entry)))


def parsed(values: NDArray[Any], notation: Notation) -> NDArray[np.float64]:
    """Return text as numbers, NaN where it is none; equal entries are read once."""
    return _once(values, notation.number)


def day(text: str) -> float:
    """Return a date of a schema as days since 1970."""
    found = Notation(date="iso").number(text) if isinstance(text, str) else math.nan
    if math.isnan(found):
        raise ValueError(f"{text!r} is no date; write it as 2024-12-31.")
    return found


def day_text(number: float) -> str:
    """Return days since 1970 as a date, with the time where it is not midnight."""
    found = datetime.fromtimestamp(round(number * 86400), tz=UTC).replace(tzinfo=None)
    return found.date().isoformat() if number.is_integer() else found.isoformat()


def kinds(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return how many entries look like each of `KINDS`. One entry adds 1 to one of them at most."""
    places = _once(values, _kind)
    return np.bincount(places[places >= 0].astype(np.int64), minlength=len(KINDS)).astype(np.float64)


def _kind(entry: str) -> float:
    text = entry.strip()
    if not any(mark.isdigit() for mark in text[:12]) or len(text) > 40:
        return float(list(KINDS).index("text")) if len(text.split()) >= _FEWEST_WORDS else -1.0
    for name, pattern in _PATTERNS.items():
        if pattern.fullmatch(text):
            return float(list(KINDS).index(name))
    return float(list(KINDS).index("text")) if len(text.split()) >= _FEWEST_WORDS else -1.0


def _once(values: NDArray[Any], read: Callable[[str], float]) -> NDArray[np.float64]:
    known: dict[str, float] = {}
    found = np.empty(len(values))
    for place, entry in enumerate(values.tolist()):
        text = entry if isinstance(entry, str) else str(entry)
        number = known.get(text)
        if number is None:
            number = known[text] = read(text)
        found[place] = number
    return found
