"""The receipt that `Ledger.record` hands out: the only key to a draw and to a release."""

from __future__ import annotations

import os
import threading
from typing import NoReturn, final

from tacit.ledger.events import Query, Sampling, Step


@final
class Receipt:
    """Proof that one step is in the ledger, good for one draw of the sample and one release of each group.

    Guarantee: over its whole life one receipt lets through at most one draw and at most one release per query of its
    step, from any thread, and only in the process that recorded the step. A receipt cannot be copied, pickled or
    carried into a forked process, for each of those would give two releases for one charge.
    """

    __slots__ = ("_drawn", "_left", "_lock", "_process", "_step")

    _step: Step
    _left: dict[str, Query]
    _drawn: bool
    _lock: threading.Lock
    _process: int

    def __init__(self) -> None:
        raise TypeError("A receipt comes from Ledger.record(step) and from nowhere else.")

    @classmethod
    def _issue(cls, step: Step) -> Receipt:
        """Made by the ledger alone, after the step is safely written."""
        receipt = object.__new__(cls)
        receipt._step = step
        receipt._left = {query.group: query for query in step.queries}
        receipt._drawn = False
        receipt._lock = threading.Lock()
        receipt._process = os.getpid()
        return receipt

    @property
    def step(self) -> Step:
        return self._step

    @property
    def unspent(self) -> tuple[str, ...]:
        """The groups not released yet. Leaving some unspent is allowed: they are charged all the same."""
        return tuple(self._left)

    def draw(self) -> Sampling:
        """Return the sampling event for the draw; once."""
        self._check_process()
        with self._lock:
            if self._drawn:
                raise RuntimeError("This receipt's sample was already drawn; record another step to draw again.")
            self._drawn = True
            return self._step.sampling

    def spend(self, group: str) -> Query:
        """Return the query of ``group`` for its release; once."""
        self._check_process()
        with self._lock:
            if group in self._left:
                return self._left.pop(group)
        groups = [query.group for query in self._step.queries]
        if group in groups:
            raise RuntimeError(
                f"Group {group!r} of this step was already released; a second release needs another recorded step."
            )
        raise ValueError(f"group is {group!r}; the recorded step answers {', '.join(map(repr, groups)) or 'nothing'}.")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("This receipt belongs to the process that recorded the step, not to a forked child.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("A receipt cannot be copied or pickled: that would be two releases for one charge.")

    def __repr__(self) -> str:
        return f"<Receipt drawn={self._drawn} unspent={list(self._left)}>"
