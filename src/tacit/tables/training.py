"""Training on a table: undeclared bounds, the model and its test are paid for from one budget, in one ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tacit.accounting import Guarantee, account, plan
from tacit.accounting.guarantee import rounded_up
from tacit.ledger import Budget, BudgetExceeded, Ledger, Step
from tacit.randomness import Source
from tacit.tables.binning import lacking_bins
from tacit.tables.boosting import BoostSettings
from tacit.tables.column_types import as_number
from tacit.tables.columns import Category, Columns
from tacit.tables.discovery import Discovery, Estimate, NothingFound
from tacit.tables.encoding import Encoding
from tacit.tables.kept import Kept
from tacit.tables.looks import Pieces
from tacit.tables.methods import Method, method_for
from tacit.tables.model import TableModel
from tacit.tables.rule import Settings, choose_model
from tacit.tables.schema import Schema
from tacit.tables.scoring import TEST_SHARE, Examination, Score, check_groups, public_score
from tacit.tables.split import Progress, Split, telling

DISCOVERY_SHARE = 0.25
"""The share of ε that undeclared bounds may cost on their own; in composition it takes about 3 % of the budget."""
SLACK_SHARE = 0.1
"""The share of δ that undeclared values may cost."""
_MOST_UNDISCOVERED = 0.5
_MOST_NUMBERS = 30
_NAME = "schema"


@dataclass(frozen=True, kw_only=True)
class TableOutcome:
    """The outcome of training on a table."""

    model: TableModel
    settings: Settings | BoostSettings
    noise_multiplier: float
    steps: int
    guarantee: Guarantee
    score: Score | None
    records: int
    undiscovered: Estimate | None = None
    """The share of records whose class is none of the model's, where its classes were discovered."""
    why: str = ""
    """Why this kind of model, where the rule chose it."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not used, and why; or of which some entries count as missing."""


def train_table(
    pieces: Pieces,
    schema: Schema,
    *,
    budget: Budget,
    ledger: Ledger,
    model: str = "linear",
    numbers_are_classes: bool = True,
    chosen: Callable[[Settings, int], Settings] | None = None,
    test: Iterable[Columns] | None = None,
    test_fraction: float = 0.2,
    by: str | None = None,
    split: Split | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    kept: Kept | None = None,
) -> TableOutcome:
    """Train a model of ``schema``'s target on the table that ``pieces`` reads.

    * ``model`` is one of `tacit.tables.model.KINDS`, or ``"auto"``: the rule chooses by public numbers.
    * ``numbers_are_classes``: the owner has said that the target has classes. Otherwise a target of which more than
      30 numbers are found as classes is taken for a number, and the run fails with the question.
    * ``chosen`` may change the settings of the rule (`tacit.tables.rule`), given them and the number of records.
    * ``test`` is a table taken to be public: the score on it is exact and costs nothing. Without it each record is
      held out with probability ``test_fraction`` and the score is released with noise, from the same budget; 0 for no
      test at all.
    * ``by`` is a category with declared values: the score is given for each of them as well, from the same budget.
    * ``seed`` is for debugging; the ledger must then say that randomness is not secure.

    * ``split`` is the same table read through before, with the same seed.
    * ``kept`` holds what was released; a run that was interrupted goes on from there, on the same ledger. Noise that is
      planned anew then follows from the ledger alone, which is public.

    The number of rows is taken to be public. What follows from it, from the schema and from the budget alone (that
    there are too few records, say) is found before anything is charged.

    Classes that private discovery does not find are predicted wrong in every score. If most records have such a class,
    the run fails after that look, with the rest of the budget unspent. If a single class is found, there is nothing to
    train: the model always predicts it, and no step is charged.
    """
    kept = kept or Kept()
    check_groups(schema, by)
    if split is None:
        fraction = 0.0 if test is not None else test_fraction
        split = Split(
            pieces, schema, fraction=fraction, seed=seed, bins=model in ("auto", "boosted"), progress=progress
        )
    count, held, source = split.records, split.held, split.source
    if source.secure != ledger.header.secure_randomness:
        raise ValueError("a seeded run needs a ledger that says so, and a ledger that says so needs a seed.")
    if held == count:
        raise ValueError(f"none of {count} records is left to train on; a table needs hundreds.")
    examination = Examination.planned(schema, alone(count, TEST_SHARE, budget), held, by) if held else None
    why = ""
    if model == "auto":
        model, why = choose_model(
            records=count - held,
            columns=len(schema.features),
            epsilon=budget.epsilon,
            classes=isinstance(schema.columns[schema.target], Category),
            texts=schema.texts,
        )
    method = method_for(model, schema, records=count - held, epsilon=budget.epsilon, chosen=chosen)
    rows = telling(pieces, progress, "discovering", count)
    looks = Looks(schema, rows, method, budget=budget, records=count, ledger=ledger, source=source, kept=kept)
    owed = looks.steps
    owed += [examination.step(ledger.header.unit)] if examination is not None else []
    method.plan(looks.least, budget=budget, ledger=ledger, owed=[(step, 1) for step in owed], kept=kept)
    schema, undiscovered = looks.take(numbers_are_classes=numbers_are_classes)
    schema = method.encoded(schema)
    train, tested = split.parts(Encoding(schema))
    fresh, steps = method.fit(
        schema,
        train,
        budget=budget,
        ledger=ledger,
        source=source,
        unknown=undiscovered is not None,
        seed=seed,
        progress=progress,
        kept=kept,
    )
    score = None
    if test is not None:
        score = public_score(fresh, test, by)
    elif examination is not None:
        try:
            score = examination.score(fresh, tested, ledger, source)
        except BudgetExceeded:  # it was charged before, and an interruption lost the answer
            why = f"{why} There is no score: it was charged, and an interruption lost it.".strip()
    return TableOutcome(
        model=fresh,
        settings=method.settings,
        noise_multiplier=method.noise_multiplier,
        steps=steps,
        guarantee=account(ledger, delta=budget.delta),
        score=score,
        records=count - held,
        undiscovered=undiscovered,
        why=why,
        remarks=looks.remarks,
    )


class Looks:
    """The looks that release what the schema leaves private, and what they found if they were taken before."""

    def __init__(
        self,
        schema: Schema,
        rows: Pieces,
        method: Method,
        *,
        budget: Budget,
        records: int,
        ledger: Ledger,
        source: Source,
        kept: Kept | None = None,
    ) -> None:
        kept = kept or Kept()
        self._schema, self._rows, self._method, self._budget = schema, rows, method, budget
        self._records, self._ledger, self._source, self._kept = records, ledger, source, kept
        self._found = kept.load(_NAME)
        self.remarks: dict[str, str] = {} if self._found is None else self._found["remarks"]
        """Why columns are not used, when `take` has been called."""
        self._discovery: Discovery | None = None
        if self._found is None and (schema.private or (method.bins and lacking_bins(schema))):
            self._discovery = Discovery(
                schema,
                noise_multiplier=alone(records, DISCOVERY_SHARE, budget),
                slack=SLACK_SHARE * budget.delta,
                knots=method.knots,
                bins=method.bins,
                texts=method.texts,
                kept=kept,
            )

    @property
    def steps(self) -> list[Step]:
        """Return what is still to be charged."""
        return [] if self._discovery is None else self._discovery.steps(self._ledger.header.unit)

    @property
    def least(self) -> Schema:
        """A schema with the fewest features that can come out."""
        if self._found is not None:
            return Schema.from_json(self._found["schema"])
        return self._schema if self._discovery is None else self._discovery.least

    def take(self, *, numbers_are_classes: bool) -> tuple[Schema, Estimate | None]:
        """Return the schema, and the share of records whose class it does not have if classes were discovered."""
        if self._found is not None:
            missed = self._found["undiscovered"]
            return self.least, None if missed is None else Estimate(**missed)
        schema, discovery, ledger, budget = self._schema, self._discovery, self._ledger, self._budget
        if discovery is None:
            return schema, None
        _check_findable(discovery, schema, self._records, budget)
        asked: dict[str, Any] = {"records": self._records, "ledger": ledger, "source": self._source}
        missed = discovery.find_classes(self._rows, **asked)
        _check_found(missed, schema, ledger, budget)
        if not numbers_are_classes:
            _check_not_a_number(discovery.classes, schema, ledger, budget)
        self._method.settle(len(discovery.classes) or len(schema.classes))
        discovery.knots = self._method.knots
        try:
            schema, undiscovered = discovery.release(self._rows, **asked, fits=self._method.fits)
        except NothingFound as error:
            raise ValueError(f"{error} {_spent(ledger, budget)}") from None
        _check_found(undiscovered, schema, ledger, budget)
        missed = None if undiscovered is None else asdict(undiscovered)
        self.remarks = discovery.remarks(self._records)
        self._kept.save(_NAME, {"schema": schema.to_json(), "undiscovered": missed, "remarks": self.remarks})
        return schema, undiscovered


def _check_findable(discovery: Discovery, schema: Schema, records: int, budget: Budget) -> None:
    if records < discovery.records_needed:
        raise ValueError(
            f"{records} records are too few to find the classes of {schema.target!r} at epsilon {budget.epsilon:g}; "
            f"declare them in a schema, or give at least {math.ceil(discovery.records_needed)} records."
        )


def _check_found(undiscovered: Estimate | None, schema: Schema, ledger: Ledger, budget: Budget) -> None:
    """Fail if most records have a class that was not found; what it cost so far is all that was spent."""
    if undiscovered is not None and undiscovered.share > _MOST_UNDISCOVERED:
        raise ValueError(
            f"the target {schema.target!r} is mostly undiscovered: about {undiscovered.share:.0%} of the records have "
            "a value that too few share to be released, and no model could predict it. If it is a number, say "
            "--task regression --target-bounds LOW HIGH, or declare it in a schema; if it has classes, list them "
            f"(--classes). {_spent(ledger, budget)}"
        )


def _check_not_a_number(found: Collection[str], schema: Schema, ledger: Ledger, budget: Budget) -> None:
    """Fail if so many classes are numbers that the target is one, and its classes were not declared."""
    if sum(math.isfinite(as_number(value)) for value in found) > _MOST_NUMBERS:
        raise ValueError(
            f"the target {schema.target!r} looks like a number: {len(found)} of its values were found. Say --task "
            "regression --target-bounds LOW HIGH to predict a number, or --task classification if they are classes. "
            f"{_spent(ledger, budget)}"
        )


def _spent(ledger: Ledger, budget: Budget) -> str:
    spent = account(ledger, delta=budget.delta).epsilon
    return f"Finding this out cost {rounded_up(spent)} of epsilon {budget.epsilon:g}; the rest is unspent."


def alone(records: int, share: float, budget: Budget) -> float:
    """The noise multiplier of one look at everyone that would cost this share of ε if it were all."""
    return plan(
        records=records, lot_size=records, steps=1, epsilon=share * budget.epsilon, delta=budget.delta
    ).noise_multiplier
