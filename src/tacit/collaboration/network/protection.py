"""Commitments of a participant's folder: one way to protect uploads, one plan, one ledger, one budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tacit.accounting import Filter
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.outbox import Outbox
from tacit.collaboration.privacy import GaussianPrivacy, LocalDpSgd, SparseVectorPrivacy
from tacit.collaboration.settings import Settings
from tacit.ledger import Budget, BudgetExceeded, Header, Ledger, Step

UNPROTECTED = "none: uploads carry no noise"
_NAMES = {LocalDpSgd: "dp-sgd", GaussianPrivacy: "gaussian", SparseVectorPrivacy: "sparse-vector"}


def budget(settings: Settings) -> Budget | None:
    """Return the budget in all: the gate in front of the ledger holds it, however often a crash wastes some of it."""
    privacy = settings.privacy
    if privacy is None:
        return None
    if isinstance(privacy, SparseVectorPrivacy):
        return Budget(privacy.charged * settings.epochs * (1 + 1e-6), settings.delta)
    return Budget(privacy.epsilon, privacy.delta)


def protection(settings: Settings, records: int) -> dict[str, object]:
    """How uploads are protected: all that the plan of the budget depends on, fixed before the first of them."""
    privacy = settings.privacy
    if privacy is None:
        return {"mechanism": "plain"}
    facts: dict[str, object] = {"mechanism": _NAMES[type(privacy)], "records": records, "epochs": settings.epochs}
    facts |= {"upload": settings.upload, "bound": settings.limit, "delta": settings.delta}
    if isinstance(privacy, SparseVectorPrivacy):
        facts["threshold"] = settings.threshold
    return facts | asdict(privacy)


def check_promised(agreement: Agreement, settings: Settings) -> None:
    """Refuse to take part with less protection than the participants have promised each other."""
    own, allowed = protection(settings, 0)["mechanism"], budget(settings)
    if agreement.mechanism and own != agreement.mechanism:
        raise ValueError(
            f"the participants have agreed on {agreement.mechanism} uploads, and yours would be {own}; nothing was "
            f"sent. Say --mechanism {agreement.mechanism}, or ask the operator of the server for other terms."
        )
    if not agreement.epsilon:
        return
    if allowed is None:
        raise ValueError(
            f"the participants have agreed on a budget of ε = {agreement.epsilon:g} each, and your uploads would have "
            f"no noise; nothing was sent. Say --epsilon {agreement.epsilon:g}."
        )
    for name, most, mine in (
        ("ε", agreement.epsilon, allowed.epsilon),
        ("δ", agreement.delta or allowed.delta, allowed.delta),
    ):
        if mine > most * (1 + 1e-9):
            raise ValueError(
                f"the participants have agreed on {name} = {most:g} at most for each, and yours is {mine:g}; nothing "
                "was sent. Choose a smaller one, or ask the operator of the server for other terms."
            )


def check_protection(outbox: Outbox, settings: Settings, *, records: int, ledger: Path | None) -> None:
    """Refuse to go on under other terms than those of the uploads before: no ledger would say what they cost.

    The proofs of a budget want every step's noise, and the number of steps, fixed before the first release.
    """
    begun = outbox.position() is not None or outbox.charged > 0
    place = "" if ledger is None else str(ledger.absolute())
    now = protection(settings, records)
    if not begun:
        spent = 0 if ledger is None or not ledger.exists() else len(Ledger.load(ledger))
        outbox.settle({"protection": json.dumps(now, sort_keys=True), "ledger": place, "spent": str(spent)})
    held, kept = outbox.fact("protection"), outbox.fact("ledger")
    if held is None or kept is None:
        raise ValueError(
            f"{outbox.folder} does not say how the uploads before were protected; take part under another name, with "
            "another folder."
        )
    before = json.loads(held)
    if before["mechanism"] != now["mechanism"]:
        raise ValueError(
            f"uploads are to be {now['mechanism']}, but {outbox.folder} was begun with {before['mechanism']} ones; "
            "one ε cannot cover both. Go on as before."
        )
    changed = [
        f"{name} was {before.get(name)}, now {value}" for name, value in now.items() if before.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"the plan of {outbox.folder} has changed ({'; '.join(changed)}); a budget holds only if its plan is fixed "
            "before the first upload. Go on as before."
        )
    if kept != place:
        raise ValueError(f"the ledger of {outbox.folder} is {kept or 'the one in it'}; go on with that.")


def spent_before(outbox: Outbox, ledger: Path | None) -> list[tuple[Step, int]]:
    """Return what another ``ledger`` said when it was first used with this folder: the plan must leave room for it."""
    left, found = int(outbox.fact("spent") or 0), list[tuple[Step, int]]()
    if ledger is None or not left or not ledger.exists():
        return found
    for step, count in Ledger.load(ledger).entries:
        if left:
            found.append((step, min(count, left)))
            left -= found[-1][1]
    return found


class Account:
    """The ledger at ``path``, opened when it is first needed, with ``allowed`` as a gate in front of it.

    Refuses a ledger with fewer steps than it had before the uploads that ``outbox`` knows of: one that was removed or
    put back would say less than was released.
    """

    def __init__(self, path: Path, allowed: Budget | None, outbox: Outbox) -> None:
        self._path, self._outbox = path, outbox
        self._gate = None if allowed is None else Filter(allowed)
        self.books: list[Ledger] = []

    def open(self, header: Header) -> Ledger:
        """Return the ledger; ``header`` begins it if there is none."""
        if not self.books:
            known = self._outbox.charged
            if known and not self._path.exists():
                raise self._lost(0, known)
            book = Ledger.open(self._path, header)
            if len(book) < known:
                book.close()
                raise self._lost(len(book), known)
            if self._path.parent == self._outbox.folder:
                self._path.chmod(0o600)
            if self._gate is not None:
                book.guard(self._gate)
            self.books.append(book)
        return self.books[0]

    def _lost(self, found: int, known: int) -> ValueError:
        return ValueError(
            f"the ledger {self._path} has {found} steps, but {known} were charged for what {self._outbox.folder} has "
            "released; it was removed or is an old copy. Put the right one back: no other says what was spent."
        )

    @property
    def steps(self) -> int:
        """Return how many steps were charged."""
        return len(self.books[0]) if self.books else 0

    def check(self, step: Step | None) -> None:
        """Raise `BudgetExceeded` if there is no room for ``step``; nothing is charged."""
        gate = self._gate
        if gate is not None and step is not None and not gate.remaining(self.books[0], step, most=1):
            raise BudgetExceeded.before(gate.budget, steps=self.steps)

    def close(self) -> None:
        for book in self.books:
            book.close()
