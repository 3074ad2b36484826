"""The ledger itself: record a step and get a receipt; read the recorded steps."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from tacit.ledger.contents import Contents, check_unit
from tacit.ledger.events import Header, Query, Sampling, Step
from tacit.ledger.journal import Journal, LedgerUnavailable, load
from tacit.ledger.receipt import Receipt

_log = logging.getLogger(__name__)

Gate = Callable[["Ledger", Step], None]
"""Called before a step is written; raises `BudgetExceeded` if the step must not be taken."""


class Ledger:
    """The journal of everything done to the records, written before anything is released.

    ``Ledger()`` is kept in memory, `Ledger.open` in a journal file, and `Ledger.load` reads one.

    Guarantee: when `record` returns, the step is in the ledger, and on the disk if the ledger has a file. A step that
    a gate refused is not. Nothing ever leaves the ledger, so it never holds fewer steps than were released.

    >>> from tacit.ledger import GaussianSum, Poisson
    >>> ledger = Ledger()
    >>> step = Step(Poisson(rate=0.01), (GaussianSum(group="gradient", clip_norm=4.0, noise_std=16.0),))
    >>> receipt = ledger.record(step)
    >>> receipt.draw()
    Poisson(rate=0.01, records=None, unit='example')
    >>> receipt.spend("gradient").noise_std
    16.0
    >>> receipt.spend("gradient")
    Traceback (most recent call last):
    RuntimeError: Group 'gradient' of this step was already released; a second release needs another recorded step.
    >>> [count for sampling, queries, count in ledger]
    [1]
    """

    def __init__(self, header: Header | None = None) -> None:
        self._start(Contents.new(header or Header())[1], None, None)

    def _start(self, contents: Contents, journal: Journal | None, shut: str | None) -> None:
        self._contents = contents
        self._journal = journal
        self._shut = shut  # why nothing more can be recorded
        self._gates: list[Gate] = []
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._busy = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], header: Header | None = None) -> Ledger:
        """Begin a journal at ``path``, or continue the one there, as its only writer.

        A header that is given must agree with the one in the journal, but for the version of the library.
        """
        journal = Journal(Path(path).absolute(), header)
        stored = journal.contents.header
        for item in fields(Header) if header is not None else ():
            given, held = getattr(header, item.name), getattr(stored, item.name)
            if given != held and item.name != "library":
                journal.close()
                raise ValueError(
                    f"{item.name} is {given!r}, but the ledger {path} says {held!r}; "
                    "give the same header (or none) to continue it, or begin another ledger."
                )
        ledger = cls.__new__(cls)
        ledger._start(journal.contents, journal, None)
        return ledger

    @property
    def path(self) -> Path | None:
        """The path of the journal that this ledger writes, or None."""
        return None if self._journal is None else self._journal.path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ledger:
        """Read the journal at ``path``. Nothing is changed or locked; a run may be writing to it meanwhile."""
        contents = load(Path(path).absolute())
        for note in contents.notes:
            _log.info("%s: %s.", path, note)
        ledger = cls.__new__(cls)
        ledger._start(contents, None, f"was loaded from {path} for reading; use Ledger.open to continue it")
        return ledger

    def record(self, step: Step, *, secure: bool = True) -> Receipt:
        """Record one step for good, and return the receipt that allows the draw and the releases. Safe to call from
        any thread. ``secure`` says whether the step's randomness is secure; a ledger that promises secure randomness
        refuses other steps.

        If this raises, nothing may be released for the step; it may or may not be in the ledger (never the other way
        round), but it is not if a gate refused it.
        """
        if os.getpid() != self._process:
            raise LedgerUnavailable("This ledger belongs to the process that opened it, not to a forked child.")
        if not isinstance(step, Step):
            raise ValueError(f"a ledger records a Step, not {type(step).__name__}; wrap sampling and queries in one.")
        if self.header.secure_randomness and not secure:
            raise ValueError("the ledger promises secure randomness; a seeded source needs a ledger of its own.")
        with self._lock:
            if self._shut is not None:
                raise LedgerUnavailable(f"This ledger {self._shut}.")
            if self._busy:
                raise RuntimeError("A gate tried to record a step; a gate may only look at the ledger and refuse.")
            check_unit(self._contents.header, step)
            self._busy = True
            try:
                if self._journal is not None:
                    self._contents = self._journal.settle()
                for gate in self._gates:
                    gate(self, step)
                if self._journal is None:
                    self._contents.add(step)
                else:
                    self._journal.write(step)
            finally:
                self._busy = False
            return Receipt._issue(step)

    def guard(self, gate: Gate) -> None:
        """Ask ``gate`` before every step from now on, beside those already here. A gate is never taken away."""
        with self._lock:
            self._gates.append(gate)

    @property
    def header(self) -> Header:
        return self._contents.header

    @property
    def entries(self) -> tuple[tuple[Step, int], ...]:
        """The steps in order, each with the number of times it was taken in a row."""
        return tuple(self._contents.runs)

    @property
    def digest(self) -> str:
        """A hash of everything in the ledger, the same for the same header and steps in memory or in a file."""
        return self._contents.digest

    @property
    def stamp(self) -> dict[str, str]:
        """Return digest and number of steps as texts, for the metadata of a model file."""
        return {"tacit.ledger.digest": self.digest, "tacit.ledger.steps": str(len(self))}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about a write that a crash left unfinished, and how it was counted."""
        return tuple(self._contents.notes)

    def steps_at(self, digest: str) -> int | None:
        """Return after how many steps the ledger had this digest, or None if it never had.

        None for a digest that this ledger once gave means that its file was put back to an older copy, or replaced.

        >>> ledger = Ledger()
        >>> receipt = ledger.digest, len(ledger)
        >>> ledger.steps_at(receipt[0])
        0
        >>> ledger.steps_at("0" * 64) is None
        True
        """
        return self._contents.steps_at(digest)

    def __len__(self) -> int:
        return self._contents.steps

    def __bool__(self) -> bool:
        return True  # an empty ledger is still a ledger

    def __iter__(self) -> Iterator[tuple[Sampling, tuple[Query, ...], int]]:
        for step, count in self.entries:
            yield step.sampling, step.queries, count

    def close(self) -> None:
        """Close the file. The recorded steps can still be read; no further step can be recorded."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._shut = self._shut or "is closed; use Ledger.open to continue it"
            if self._journal is not None:
                self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A ledger cannot be copied or pickled; give its path to Ledger.load where it is to be read.")

    def __repr__(self) -> str:
        where = f" at {self._journal.path}" if self._journal is not None else ""
        return f"<Ledger{where}: {len(self)} steps, {self.header.adjacency}, unit {self.header.unit!r}>"
