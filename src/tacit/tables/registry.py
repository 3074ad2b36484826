"""The registry of budgets: the cost of all runs on one data set, and the budget that was set for it once.

Every run on a table is written down here before it begins, in a file that belongs to the data set, and again when it
ends. A data set is known by its contents: a keyed hash of its file, or of a name that its owner gives it. The key stays
in this directory, so that the hash in a ledger says nothing about the records.

The sum is by basic composition: Σ ε and Σ δ. It holds also if later runs were chosen by what earlier ones released
(Rogers et al. 2016: it is a privacy filter), which a tighter sum over all ledgers would not. A run that was killed, or
whose ledger is gone, counts with its whole budget.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit._files import sync, write_whole
from tacit.accounting import account
from tacit.ledger import Budget, Ledger
from tacit.tables.kinds import divided
from tacit.tables.schema import Schema

_CHUNK = 1 << 22
_ROUNDING = 1e-9


def directory() -> Path:
    """Return where budgets are kept: ``TACIT_STATE``, or the user's state directory."""
    if told := os.environ.get("TACIT_STATE"):
        return Path(told) / "budgets"
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "tacit" / "budgets"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One run on a data set: where its ledger is, what it cost, and how that is known."""

    ledger: str
    started: str
    epsilon: float
    delta: float
    note: str = ""


@dataclass
class Reservation:
    """A run's entry in the registry: ``nothing_released`` if it was refused, and its empty ledger thrown away."""

    nothing_released: bool = False


class Registry:
    """The runs on one data set, and its budget."""

    def __init__(self, data: Path | None = None, *, name: str | None = None) -> None:
        if name is not None and not name.strip():
            raise ValueError("the name of the data set is empty; give one, or leave it out.")
        root = directory()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.title = name or str(data)
        self._key = _key(root)
        self.identity = hmac.new(self._key, _contents(data, name), hashlib.sha256).hexdigest()
        self._place = root / f"{self.identity}.jsonl"

    @property
    def budget(self) -> Budget | None:
        """The budget of the data set, None if none was set."""
        for line in self._lines():
            if "budget" in line:
                return Budget(**line["budget"])
        return None

    def set_budget(self, budget: Budget) -> None:
        """Set the budget of the data set; it can be set once."""
        with self._locked():
            if (before := self.budget) is not None:
                raise ValueError(
                    f"the budget of {self.title} was set to epsilon {before.epsilon:g}, delta {before.delta:g}; a "
                    "budget that could be changed would promise nothing."
                )
            facts = {"epsilon": budget.epsilon, "delta": budget.delta}
            self._append({"budget": facts, "title": self.title, "at": _now()})

    def costs(self) -> list[Cost]:
        """Return what every run cost, in the order in which they began."""
        begun: dict[str, dict[str, Any]] = {}
        for line in self._lines():
            if "run" in line:
                begun[line["run"]] = line
            elif "ended" in line and line["ended"] in begun:
                begun[line["ended"]] |= {"steps": line["steps"], "digest": line.get("digest")}
        return [_cost(line) for line in begun.values()]

    def spent(self) -> tuple[float, float]:
        """Return Σ ε and Σ δ over all runs."""
        costs = self.costs()
        return sum(cost.epsilon for cost in costs), sum(cost.delta for cost in costs)

    @contextmanager
    def reserved(self, ledger: Path, budget: Budget) -> Iterator[Reservation]:
        """Write down a run before it begins, and what it did when it ends; refused beyond the data set's budget.

        A run whose ledger is known goes on, and is counted once. A ledger that is gone at the end counts as lost,
        unless the run says that it threw away an empty one.
        """
        with self._locked():
            self.check(budget, ledger)
            run = self._runs_of(ledger) or secrets.token_hex(8)
            facts = {"epsilon": budget.epsilon, "delta": budget.delta, "ledger": str(ledger.resolve())}
            self._append({"run": run, "at": _now(), **facts})
        reservation = Reservation()
        try:
            yield reservation
        finally:
            if reservation.nothing_released or ledger.exists():
                book = None if reservation.nothing_released else Ledger.load(ledger)
                facts = {"steps": 0} if book is None else {"steps": len(book), "digest": book.digest}
                with self._locked():
                    self._append({"ended": run, **facts})

    def _runs_of(self, ledger: Path) -> str | None:
        """Return the run that writes to this ledger, if there is the ledger and the run."""
        found = [line["run"] for line in self._lines() if line.get("ledger") == str(ledger.resolve())]
        return str(found[-1]) if found and ledger.exists() else None

    def check(self, budget: Budget, ledger: Path | None = None) -> None:
        """Refuse a run of this budget if the data set's own does not allow it beside the runs before.

        ``ledger``: the run's own, if it goes on; what it spent so far is part of its budget.
        """
        costs = self.costs()
        own = str(ledger.resolve()) if ledger is not None and ledger.exists() else None
        if mine := [place for place, cost in enumerate(costs) if cost.ledger == own]:
            costs.pop(mine[-1])
        whole, epsilon, delta = self.budget, sum(cost.epsilon for cost in costs), sum(cost.delta for cost in costs)
        if whole is None:
            return
        fits = epsilon + budget.epsilon <= whole.epsilon * (1 + _ROUNDING)
        if not fits or delta + budget.delta > whole.delta * (1 + _ROUNDING):
            left, rest = max(whole.epsilon - epsilon, 0.0), max(whole.delta - delta, 0.0)
            raise ValueError(
                f"the budget of {self.title} is epsilon {whole.epsilon:g}, delta {whole.delta:g}; runs on it have "
                f"spent epsilon {epsilon:.4g} and delta {delta:.3g}, and this one asks for {budget.epsilon:g} and "
                f"{budget.delta:g}. Ask for at most epsilon {left:.4g} and delta {rest:.3g}."
            )

    def note_draft(self, columns: dict[str, Any]) -> None:
        """Remember, by keyed hashes, what a draft of a schema read off the records, column by column."""
        with self._locked():
            self._append({"draft": [self._drafted(name, facts) for name, facts in columns.items()], "at": _now()})

    def drafted(self, schema: Schema) -> frozenset[str]:
        """Return the columns whose declared bounds or values are those that a draft read off the records."""
        known = {one for line in self._lines() for one in line.get("draft", ())}
        columns = schema.to_json()["columns"]
        return frozenset(name for name, facts in columns.items() if self._drafted(name, facts) in known)

    def _drafted(self, name: str, facts: dict[str, Any]) -> str:
        content = {key: facts.get(key) for key in ("type", "low", "high", "values")}
        text = json.dumps([name, content], sort_keys=True)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _lines(self) -> list[dict[str, Any]]:
        if not self._place.exists():
            return []
        found = []
        for number, text in enumerate(self._place.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise ValueError(
                    f"{self._place}, line {number} is damaged; what runs on {self.title} cost is not known."
                )
            found.append(line)
        return found

    def _append(self, line: dict[str, Any]) -> None:
        with self._place.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sync(self._place.parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other run look and write at the same time."""
        with self._place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def registry_for(data: Path, name: str | None) -> Registry | None:
    """Return the registry of a data set; None, with a warning, where nothing can be written down."""
    try:
        return Registry(data, name=name)
    except OSError as error:
        print(
            f"warning: this run is not added up with others on {name or data}: {error}. Set TACIT_STATE to a directory "
            "that can be written.",
            file=sys.stderr,
        )
        return None


def _cost(line: dict[str, Any]) -> Cost:
    whole = Cost(ledger=line["ledger"], started=line["at"], epsilon=line["epsilon"], delta=line["delta"])
    path = Path(line["ledger"])
    if "steps" not in line:
        return replace(whole, note="not ended, or killed: counted with its whole budget")
    if not line["steps"]:
        return replace(whole, epsilon=0.0, delta=0.0, note="nothing was released")
    try:
        book = Ledger.load(path)
    except (ValueError, OSError):
        return replace(whole, note="its ledger is gone: counted with its whole budget")
    if len(book) < line["steps"]:
        return replace(whole, note="its ledger lost steps: counted with its whole budget")
    if line.get("digest") not in (None, book.digest):
        return replace(whole, note="its ledger is another one now: counted with its whole budget")
    seeded = "" if book.header.secure_randomness else "seeded: NOT private"
    return replace(whole, epsilon=_spent(book, whole.delta), note=seeded)


def _spent(book: Ledger, delta: float) -> float:
    """Return ε by the tightest accountant that has a proof: of a selection, only the Rényi accountant has."""
    try:
        return account(book, delta=delta).epsilon
    except ValueError:
        return account(book, delta=delta, accountant="rdp").epsilon


def _key(root: Path) -> bytes:
    path = root / "key"
    if not path.exists():
        write_whole(path, secrets.token_bytes(32), mode=0o600)
    return path.read_bytes()


def _contents(data: Path | None, name: str | None) -> bytes:
    """Return what a data set is known by: the name that it was given, or a hash of its file."""
    if name is not None:
        return b"name:" + name.strip().encode()
    assert data is not None
    path, table = divided(data)
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return b"file:" + found.digest() + table.encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
