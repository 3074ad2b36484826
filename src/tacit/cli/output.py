"""Reading and printing of commands: numbers named when they are wrong; lines for people, or one JSON object."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
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


def again(dataset: str | None, place: Path) -> str:
    """Return the command that goes on with a run of ``tacit train``: the one that was given, with what it lacks."""
    words = sys.argv[1:]
    given = words[words.index("train") :] if "train" in words else ["train", *([dataset] if dataset else [])]
    if not any(word == "--out" or word.startswith("--out=") for word in given):
        given += ["--out", str(place)]
    if "--resume" not in given:
        given.append("--resume")
    return shlex.join(["tacit", *given])
