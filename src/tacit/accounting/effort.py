"""How much one query may compute: counted in lattice points and nodes visited, not in seconds.

A count is the same on every machine and in every process of a run, so that what is solved for does not depend on how
busy the processor is. Where it runs out the accountants have bounds that cost next to nothing (Rényi, or every record
in every sample): an answer is then looser, and valid.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

QUERY = 1e9
"""One direction of one query: about three seconds."""

SEARCH = 12e8
"""All queries of one search for a noise multiplier, a lot size or a number of steps."""


class OutOfReach(ArithmeticError):
    """This way of computing takes too long or too much here; there are others."""


class _Counter(threading.local):
    spent = 0.0
    limit = math.inf
    depth = 0


_counter = _Counter()


@contextmanager
def limited(points: float) -> Iterator[None]:
    """Allow at most ``points`` within, and no more than is left of a limit around it."""
    before = _counter.limit
    _counter.limit = min(before, _counter.spent + points)
    _counter.depth += 1
    try:
        yield
    finally:
        _counter.limit = before
        _counter.depth -= 1


def searching() -> bool:
    """Return whether this query is one of many of a search, which share one limit."""
    return _counter.depth > 1


@contextmanager
def half() -> Iterator[None]:
    """Allow at most half of what is left within, so that another way can be tried afterwards."""
    before = _counter.limit
    _counter.limit = (_counter.spent + before) / 2
    try:
        yield
    finally:
        _counter.limit = before


def spent() -> float:
    """Return how many points were counted in this thread."""
    return _counter.spent


def left() -> float:
    """Return how many points are still allowed."""
    return _counter.limit - _counter.spent


def spend(points: float) -> None:
    """Count ``points``, or raise `OutOfReach` and count nothing if they are more than is allowed."""
    if _counter.spent + points > _counter.limit:
        raise OutOfReach("this query would take more than is allowed")
    _counter.spent += points
