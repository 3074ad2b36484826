"""One budget and one ledger for the pieces of a pipeline."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tacit.accounting import Filter, Guarantee, account, guarantee, plan
from tacit.ledger import Budget, BudgetExceeded, Everyone, GaussianSum, Header, Ledger, Poisson, Receipt, Step
from tacit.mechanisms import CountsQuery, SumQuery
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.sklearn.folds import Folds


class Account:
    """A budget that several estimators spend from, and the ledger they are all charged to.

    Copies made by scikit-learn (`clone`, pipelines, searches) are the same account: fitting twice costs twice, and
    the fit that would overrun raises `tacit.BudgetExceeded`. A pickled account comes back closed.

    A fit is charged as one that a person's row enters once, and whose other rows are there for every person.
    So an account is for the ``records`` rows of one table and refuses a fit on any other number: scikit-learn's
    splitters give out folds by the number of rows and by everybody's labels, so that one row more moves other people
    from fold to fold, and the fits together tell more than their sum. `folds` splits soundly; from then on a fit on as
    many rows as one of its folds trains on passes too, by that number alone: which rows they are is not looked at.

    What the caller owes: the rows are those of the table, each once (rows drawn with replacement, as for bagging, or a
    table that was split before by `train_test_split`, are not seen through); the shares and settings of all fits are
    decided before the first, not by what an earlier one released; and scores that scikit-learn computes on held-out
    records (cross-validation, searches) are exact, not private, and not in the ledger.
    """

    def __init__(self, *, records: int, epsilon: float, delta: float = 1e-5, ledger: str | Path | None = None) -> None:
        if isinstance(records, bool) or not isinstance(records, int) or records < 1:
            raise ValueError(f"records is {records!r}; it must be the number of rows of the table, len(X).")
        self.records = records
        self.budget = Budget(epsilon=epsilon, delta=delta)
        self._folds: set[int] = set()
        # joblib's cache takes objects that pickle alike for one: what one account paid for must not serve another.
        self._identity = uuid.uuid4().hex
        header = Header(purpose="scikit-learn")
        self._ledger: Ledger | None = Ledger(header) if ledger is None else Ledger.open(ledger, header)
        self._ledger.guard(Filter(self.budget))

    def folds(self, splits: int = 5) -> Folds:
        """Return folds for scikit-learn's ``cv``: a coin of its own draws each record's fold."""
        return Folds(splits, self.records, self._folds)

    def check_rows(self, rows: int) -> None:
        """Refuse rows that are neither the whole table nor of one of its `folds`."""
        if rows != self.records and rows not in self._folds:
            raise ValueError(
                f"this fit has {rows} rows and its account is for {self.records}; give all of them, or split them by "
                "cv=account.folds(5): other splitters let one row decide where other people's rows go."
            )

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise ValueError("this account was pickled; what it allowed is spent or lost. Open a new one.")
        return self._ledger

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all fits so far together."""
        return account(self.ledger, delta=self.budget.delta)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "budget": self.budget,
            "_folds": set(),
            "_identity": self._identity,
            "_ledger": None,
        }

    def __repr__(self) -> str:
        return f"Account(records={self.records}, epsilon={self.budget.epsilon:g}, delta={self.budget.delta:g})"


Queries = Sequence[SumQuery | CountsQuery]
Entries = tuple[tuple[Step, int], ...]


class Purse:
    """The budget of one fit: its own ε, of a shared account or of a ledger of its own, or all that is left."""

    def __init__(
        self, rows: int, epsilon: float | None, delta: float, shared: Account | None, seed: int | None
    ) -> None:
        if seed is not None:
            warnings.warn("debug_seed is set: this fit can be repeated, and is not private.", stacklevel=4)
        if shared is None:
            if epsilon is None:
                raise ValueError("epsilon is None, which means what is left of an account; give epsilon or an account.")
            self._total = self._own = Budget(epsilon=epsilon, delta=delta)
            self.ledger = Ledger(Header(secure_randomness=seed is None, purpose="scikit-learn"))
            self.ledger.guard(Filter(self._own))
        else:
            if seed is not None:
                raise ValueError("debug_seed is for debugging and unsafe; leave it out with an account.")
            shared.check_rows(rows)
            self._total, self.ledger = shared.budget, shared.ledger
            self._own = self._total if epsilon is None else Budget(epsilon=epsilon, delta=self._total.delta)
        if self._total.delta * rows >= 1:
            warnings.warn(
                f"delta is {self._total.delta:g}, which is not below 1/{rows}, one in the number of rows: releasing a "
                f"random row whole would satisfy it. Choose {0.1 / rows:.0e} or less.",
                stacklevel=4,
            )
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
        """The ε of this fit if nothing else was spent."""
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
        """Return the guarantee of everything in the ledger."""
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
