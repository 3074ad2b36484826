"""Read run.json as a file from anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

FORMAT = 1
SMALLEST, LARGEST = 1e-100, 1e100
_LONGEST = 300
_LARGEST_FILE = 64 * 2**20
# Control characters, lone surrogates, and the marks that turn the reading direction around.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


class Said:
    """A JSON object with typed look-ups; a missing value or one of another kind is None, an empty list or object.

    >>> said = Said({"dataset": {"name": "digits", "records": 1797}})
    >>> said.text("dataset", "name"), said.number("dataset", "records"), said.number("result", "epsilon")
    ('digits', 1797.0, None)
    """

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values or {}

    @classmethod
    def load(cls, path: Path) -> Said:
        """Read a run.json; a file that is not one is a ValueError of one sentence."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(
                f"cannot read {path}: {error.strerror or error}; give the directory of a run, or a ledger file."
            ) from error
        if len(data) > _LARGEST_FILE:
            raise ValueError(f"{path} has {len(data)} bytes; a run.json has at most {_LARGEST_FILE}.")
        try:
            values = json.loads(data.decode("utf-8"), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a JSON file ({_short(error)}); give the directory of a run.") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            held = values.get("format") if isinstance(values, dict) else None
            raise ValueError(f"{path} has format {_short(held)}; this version of tacit reads format {FORMAT}.")
        return cls(values)

    def value(self, *names: str) -> Any:
        found: Any = self.values
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def text(self, *names: str) -> str | None:
        found = self.value(*names)
        return clean(found) if isinstance(found, str) and found else None

    def number(self, *names: str) -> float | None:
        return number(self.value(*names))

    def object(self, *names: str) -> Said:
        found = self.value(*names)
        return Said(found if isinstance(found, dict) else {})

    def objects(self, *names: str) -> list[Said]:
        found = self.value(*names)
        return [Said(item) for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def flat(self, *names: str, most: int = 200) -> list[tuple[str, str]]:
        """Everything under a name as (path, value) pairs of text, at most ``most`` of them."""
        pairs: list[tuple[str, str]] = []
        waiting: list[tuple[str, Any]] = [("", self.value(*names))]
        while waiting and len(pairs) <= most:
            path, value = waiting.pop()
            if isinstance(value, dict) and value:
                waiting += [(f"{path}.{clean(key)}" if path else clean(key), value[key]) for key in reversed(value)]
            elif value is not None or path:
                pairs.append((path, clean(value if isinstance(value, str) else _dump(value))))
        return pairs if len(pairs) <= most else [*pairs[:most], ("…", "and more, in run.json")]


def number(value: object) -> float | None:
    """A number of a size that charts can show, or None; what is next to nothing is zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return float(value) if abs(value) >= SMALLEST else 0.0


def clean(text: str) -> str:
    """Text fit to be shown: one line, not endless, with nothing invisible in it that changes how it reads."""
    text = _UNFIT.sub("\N{REPLACEMENT CHARACTER}", " ".join(text[: 4 * _LONGEST].split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _short(value: object) -> str:
    return clean(str(value))[:80]


def _dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to show)"


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
