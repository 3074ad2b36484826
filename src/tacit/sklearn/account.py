"""One budget and one ledger for the pieces of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tacit.accounting import Filter, Guarantee, account, guarantee, plan
from tacit.ledger import Budget, BudgetExceeded, Everyone, GaussianSum, Header, Ledger, Poisson, Receipt, Step
from tacit.mechanisms import CountsQuery, SumQuery
from tacit.randomness import SecureSource, SeededSource, Source


class Account:
    """A budget that several estimators spend from, and the ledger they are all charged to.

    Copies made by scikit-learn (`clone`, pipelines, searches) are the same account: fitting twice costs twice, and
    the fit that would overrun raises `tacit.BudgetExceeded`. A pickled account comes back closed.

    What the caller owes: the shares and settings of all fits are decided before the first, not by what an earlier one
    released; and scores that scikit-learn computes on held-out records (cross-validation, searches) are exact, not
    private, and not in the ledger.
    """

    def __init__(self, *, epsilon: float, delta: float = 1e-5, ledger: str | Path | None = None) -> None:
        self.budget = Budget(epsilon=epsilon, delta=delta)
        header = Header(purpose="scikit-learn")
        self._ledger: Ledger | None = Ledger(header) if ledger is None else Ledger.open(ledger, header)
        self._ledger.guard(Filter(self.budget))

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise ValueError("this account was pickled; what it allowed is spent or lost. Open a new one.")
        return self._ledger

    def guarantee(self) -> Guarantee:
        """What all fits so far promise together."""
        return account(self.ledger, delta=self.budget.delta)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"budget": self.budget, "_ledger": None}

    def __repr__(self) -> str:
        return f"Account(epsilon={self.budget.epsilon:g}, delta={self.budget.delta:g})"


Queries = Sequence[SumQuery | CountsQuery]
Entries = tuple[tuple[Step, int], ...]


class Purse:
    """What one fit may spend: its own ε, of a shared account or of a ledger of its own, or all that is left."""

    def __init__(self, epsilon: float | None, delta: float, shared: Account | None, seed: int | None) -> None:
        if shared is None:
            if epsilon is None:
                raise ValueError("epsilon is None, which means what is left of an account; give epsilon or an account.")
            self._total = self._own = Budget(epsilon=epsilon, delta=delta)
            self.ledger = Ledger(Header(secure_randomness=seed is None, purpose="scikit-learn"))
            self.ledger.guard(Filter(self._own))
        else:
            if seed is not None:
                raise ValueError("random_state is for debugging and unsafe; leave it out with an account.")
            self._total, self.ledger = shared.budget, shared.ledger
            self._own = self._total if epsilon is None else Budget(epsilon=epsilon, delta=self._total.delta)
        self.source = _source(seed)
        self.seed = seed
        self._before: Entries = () if epsilon is None else self.ledger.entries

    @property
    def budget(self) -> Budget:
        """The budget of the ledger as a whole."""
        return self._total

    def look(self, queries: Queries) -> Receipt:
        """Record one look at everyone that answers ``queries``."""
        receipt = self.ledger.record(self._step(queries), secure=self.source.secure)
        receipt.draw()
        return receipt

    @property
    def epsilon(self) -> float:
        """What this fit may spend if nothing else was spent."""
        return self._own.epsilon

    @property
    def delta(self) -> float:
        return self._own.delta

    def once(self, share: float) -> float:
        """The noise multiplier of one look at everyone that would cost ``share`` of this fit's ε on its own."""
        return self._plan(1, 1, 1, share * self._own.epsilon, ())

    def rest(self, records: int, lot_size: int, steps: int, *, first: Queries = ()) -> float:
        """The noise multiplier of steps that take all this fit may spend, after one look that answers ``first``.

        Refused if the ledger has not so much. Asked before anything is charged: a fit that would be broken off half
        way costs nothing.
        """
        owed = ((self._step(first), 1),) if first else ()
        spent = _since(self._before, self.ledger.entries)
        noise = self._plan(records, lot_size, steps, self._own.epsilon, (*spent, *owed))
        step = Step(Poisson(rate=lot_size / records), (GaussianSum(group="gradients", clip_norm=1.0, noise_std=noise),))
        planned = [*self.ledger.entries, *owed, (step, steps)]
        if guarantee(planned, self.ledger.header, delta=self._total.delta).epsilon > self._total.epsilon:
            raise BudgetExceeded.before(self._total, steps=len(self.ledger))
        return noise

    def _step(self, queries: Queries) -> Step:
        return Step(Everyone(unit=self.ledger.header.unit), tuple(query.event() for query in queries))

    def _plan(self, records: int, lot_size: int, steps: int, epsilon: float, also: Entries) -> float:
        return plan(
            records=records, lot_size=lot_size, steps=steps, epsilon=epsilon, delta=self._own.delta, also=also
        ).noise_multiplier

    def guarantee(self) -> Guarantee:
        """What everything in the ledger promises together."""
        return account(self.ledger, delta=self._total.delta)


def _source(seed: int | None) -> Source:
    """For all but descents, which have a source of their own: two streams of one seed must differ."""
    if seed is None:
        return SecureSource()
    source = SeededSource(seed)
    source.branch("scikit-learn")
    return source


def _since(before: Entries, now: Entries) -> Entries:
    """The entries of ``now`` that were not in ``before``; its last run may have grown."""
    if not before:
        return now
    last = len(before) - 1
    step, count = now[last]
    grown = ((step, count - before[last][1]),) if count > before[last][1] else ()
    return grown + now[len(before) :]
