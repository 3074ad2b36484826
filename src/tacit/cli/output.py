"""What commands read and print: numbers named when they are wrong; lines for people, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

import typer


def whole(text: str) -> int:
    """A whole number from the command line."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number.") from None


def number(text: str) -> float:
    """A number from the command line."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None


def show(facts: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    print(json.dumps(facts, ensure_ascii=False, allow_nan=False) if as_json else "\n".join(lines))
