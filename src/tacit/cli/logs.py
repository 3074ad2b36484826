"""Logs of a process that runs for weeks: lines for people or JSON for a machine, and no more than can be kept."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated

import typer

LogFormat = Annotated[str, typer.Option(help="text, or json: one object a line.")]

_WINDOW, _MOST = 60.0, 20
_KINDS = 1000  # of messages that are counted; more than there are in the program


class RateLimit(logging.Filter):
    """Let at most ``most`` messages of a kind pass in ``window`` seconds; say how many were left out with the next.

    A kind is the message before its values are filled in: a thousand refusals of one participant are one kind.
    """

    def __init__(self, most: int = _MOST, window: float = _WINDOW, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._window, self._clock = most, window, clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], list[float]] = {}  # since when, passed, left out

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, str(record.msg)), self._clock()
        with self._lock:
            since, passed, left_out = self._counts.get(key, [now, 0, 0])
            if now - since >= self._window:
                since, passed = now, 0
            if passed >= self._most:
                self._counts[key] = [since, passed, left_out + 1]
                return False
            if len(self._counts) > _KINDS:
                self._counts.clear()
            self._counts[key] = [since, passed + 1, 0]
        record.left_out = int(left_out)
        return True


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and, if there are any, left_out and exception."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        facts: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if getattr(record, "left_out", 0):
            facts["left_out"] = getattr(record, "left_out", 0)
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)


class TextLines(logging.Formatter):
    """A line for people."""

    def format(self, record: logging.LogRecord) -> str:
        left_out = getattr(record, "left_out", 0)
        return super().format(record) + (f" ({left_out} like this were left out)" if left_out else "")


def configure(kind: str) -> None:
    """Send the logs of this process to standard error, as text or json."""
    formats = {"text": TextLines("%(asctime)s %(levelname)s %(message)s"), "json": JsonLines()}
    if kind not in formats:
        raise ValueError(f"--log-format is {kind!r}; choose text or json.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formats[kind])
    handler.addFilter(RateLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
