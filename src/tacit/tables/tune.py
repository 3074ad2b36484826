"""Tuning on a table: the best of a random number of descents, paid for as a whole (Papernot & Steinke 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tacit import tuning
from tacit.accounting import account
from tacit.ledger import Budget, Ledger
from tacit.tables.columns import Category
from tacit.tables.encoding import Encoding
from tacit.tables.looks import Pieces
from tacit.tables.methods import ByDescent
from tacit.tables.model import TableModel
from tacit.tables.records import Records
from tacit.tables.rule import Settings
from tacit.tables.schema import Schema
from tacit.tables.scoring import TEST_SHARE, Examination, Score
from tacit.tables.slopes import descend_with_slopes, trained_size
from tacit.tables.split import Split
from tacit.tables.training import Looks, TableOutcome, alone

_RATES, _CLIPS = (0.3, 1.0, 3.0), (0.5, 1.0)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model, and its learning rate and clip norm as multiples of the rule's."""

    kind: str
    rate: float
    clip: float

    def __str__(self) -> str:
        return f"{self.kind}, {self.rate:g} × the rule's learning rate, {self.clip:g} × its clip norm"


CANDIDATES = tuple(
    Candidate(kind=kind, rate=rate, clip=clip) for kind, rate, clip in product(("linear", "mlp"), _RATES, _CLIPS)
)


def tune_table(
    pieces: Pieces,
    schema: Schema,
    *,
    budget: Budget,
    ledger: Ledger,
    split: Split,
    trials: float,
    numbers_are_classes: bool = True,
) -> TableOutcome:
    """Return the best model of about ``trials`` runs, each with a candidate drawn at random, within the budget.

    Formal guarantee: what the columns are is released first, on ``ledger``, and charged once. Then one selection is
    charged (`tacit.tuning.choose`): every run takes the steps of its base, a descent of the rule's lots and number of
    steps and one look at the held-out people for its score. The candidates do not depend on the records. Only the best
    run's setting, score and model are released; the number of runs is drawn and stays secret.
    """
    records, held, source = split.records, split.held, split.source
    if not held:
        raise ValueError("tuning compares scores on held-out records; give a test fraction above 0.")
    if not trials > 1:
        raise ValueError(f"trials is {trials!r}; it must be a number above 1: how many runs there are on average.")
    method = ByDescent("linear", schema, records - held, budget.epsilon, None)
    looks = Looks(schema, pieces, method, budget=budget, records=records, ledger=ledger, source=source)
    examination = Examination.planned(schema, alone(records, TEST_SHARE, budget), held)
    unit = ledger.header.unit
    owed = [*ledger.entries, *((step, 1) for step in looks.steps)]
    drawn = tuning.TruncatedNegativeBinomial.of_mean(trials)
    planned = tuning.plan(
        drawn,
        records=records - held,
        lot_size=method.settings.lot_size,
        steps=method.settings.steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
        score=((examination.step(unit), 1),),
        also=owed,
    )
    method.check(looks.least, planned.noise_multiplier)
    found, undiscovered = looks.take(numbers_are_classes=numbers_are_classes)
    found = method.encoded(found)
    if len(found.classes) == 1:
        raise ValueError(
            f"only {found.classes[0]!r} stood out of the noise, so there is nothing to tune; list the classes of "
            f"{found.target!r} (--classes)."
        )
    train, tested = split.parts(Encoding(found))

    def trial(candidate: Candidate, own: Ledger) -> tuple[float, tuple[TableModel, Settings, Score]]:
        fresh, chosen = _trained(
            candidate, found, train, planned.noise_multiplier, budget, own, undiscovered is not None
        )
        score = examination.score(fresh, tested, own, source)
        right = isinstance(found.columns[found.target], Category)
        return (score.value if right else -score.value), (fresh, chosen, score)

    best = tuning.choose(CANDIDATES, trial, trials=drawn, base=planned.base, ledger=ledger, source=source)
    model, chosen, score = best.output
    return TableOutcome(
        model=model,
        settings=chosen,
        noise_multiplier=planned.noise_multiplier,
        steps=chosen.steps,
        guarantee=account(ledger, delta=budget.delta),
        score=score,
        records=records - held,
        undiscovered=undiscovered,
        why=f"Chosen of {len(CANDIDATES)} settings, by the best of about {trials:g} runs: {best.setting}.",
        remarks=looks.remarks,
    )


def _trained(
    candidate: Candidate, schema: Schema, train: Records, noise: float, budget: Budget, own: Ledger, unknown: bool
) -> tuple[TableModel, Settings]:
    fresh = TableModel.new(candidate.kind, schema)
    method = ByDescent(candidate.kind, schema, len(train), budget.epsilon, None)
    rule = method.rule(trained_size(fresh))
    chosen = replace(rule, learning_rate=candidate.rate * rule.learning_rate, clip_norm=candidate.clip * rule.clip_norm)
    descend_with_slopes(fresh, train, chosen=chosen, noise_multiplier=noise, budget=budget, ledger=own, unknown=unknown)
    return fresh, chosen
