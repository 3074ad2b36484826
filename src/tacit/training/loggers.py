"""Write a run's numbers to files. Each number says whether it was released privately.

A logger is anything with ``log(step, values, private)``; the two here are small on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


def labelled(name: str, *, private: bool) -> str:
    """Return the name under which a number is logged: it says whether the ledger has paid for it.

    >>> labelled("loss", private=True), labelled("accuracy", private=False)
    ('private/loss', 'not_private/accuracy')
    """
    return f"{'private' if private else 'not_private'}/{name}"


class Logger(Protocol):
    """Receives numbers of one step; ``private`` says whether the ledger has paid for them."""

    def log(self, step: int, values: Mapping[str, float], *, private: bool) -> None: ...


class JsonLines:
    """One JSON object a line: step, private, and the values."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, step: int, values: Mapping[str, float], *, private: bool) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "private": private, **values}) + "\n")


class TensorBoard:
    """Writes scalars to a ``torch.utils.tensorboard.SummaryWriter``; every name says whether the number is private."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float], *, private: bool) -> None:
        for name, value in values.items():
            self._writer.add_scalar(labelled(name, private=private), value, step)
