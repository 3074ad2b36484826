"""Tuning on a table: the best of a random number of runs, paid for as a whole (Papernot & Steinke 2021)."""

from __future__ import annotations

from typing import Any

from tacit import tuning
from tacit.accounting import account
from tacit.ledger import Budget, Ledger
from tacit.tables.candidates import Trained, candidates_for
from tacit.tables.columns import Category
from tacit.tables.looks import Pieces
from tacit.tables.rule import choose_model
from tacit.tables.schema import Schema
from tacit.tables.scoring import TEST_SHARE, Examination, Score
from tacit.tables.split import Split
from tacit.tables.training import Looks, TableOutcome, alone


def tune_table(
    pieces: Pieces,
    schema: Schema,
    *,
    budget: Budget,
    ledger: Ledger,
    split: Split,
    trials: float,
    model: str = "linear",
    numbers_are_classes: bool = True,
) -> TableOutcome:
    """Return the best model of about ``trials`` runs, each with a setting drawn at random, within the budget.

    ``model`` is ``"boosted"`` for boosted models, ``"linear"`` for linear models and small networks, or ``"auto"`` for
    the one of these that the rule chooses from public numbers.

    Formal guarantee: what the columns are is released first, on ``ledger``, and charged once. Then one selection is
    charged (`tacit.tuning.choose`): every run takes at most the steps of its base, which are those of a descent with
    the rule's lots or the looks of boosting, and one look at the held-out people for its score. The settings do not
    depend on the records. Only the best run's setting, score and model are released; the number of runs is drawn and
    stays secret.
    """
    records, held, source = split.records, split.held, split.source
    if not held:
        raise ValueError("tuning compares scores on held-out records; give a test fraction above 0.")
    if not trials > 1:
        raise ValueError(f"trials is {trials!r}; it must be a number above 1: how many runs there are on average.")
    right = isinstance(schema.columns[schema.target], Category)
    if model == "auto":
        model, _ = choose_model(
            records=records - held,
            columns=len(schema.features),
            epsilon=budget.epsilon,
            classes=right,
            texts=schema.texts,
        )
    candidates = candidates_for(model, schema, records - held, budget, source)
    method = candidates.method
    looks = Looks(schema, pieces, method, budget=budget, records=records, ledger=ledger, source=source)
    examination = Examination.planned(schema, alone(records, TEST_SHARE, budget), held)
    look = ((examination.step(ledger.header.unit), 1),)
    owed = [*ledger.entries, *((step, 1) for step in looks.steps)]
    drawn = tuning.TruncatedNegativeBinomial.of_mean(trials)
    noise = candidates.plan(drawn, looks.least, budget=budget, score=look, also=owed)
    method.noise_multiplier = noise
    found, undiscovered = looks.take(numbers_are_classes=numbers_are_classes)
    found = method.encoded(found)
    if len(found.classes) == 1:
        raise ValueError(
            f"only {found.classes[0]!r} stood out of the noise, so there is nothing to tune; list the classes of "
            f"{found.target!r} (--classes)."
        )

    def trial(setting: Any, own: Ledger) -> tuple[float, tuple[Trained, Score]]:
        trained = candidates.train(setting, found, split, own, unknown=undiscovered is not None)
        score = examination.score(trained.model, trained.tested, own, source)
        return (score.value if right else -score.value), (trained, score)

    base = candidates.base(found, look)
    best = tuning.choose(candidates.settings, trial, trials=drawn, base=base, ledger=ledger, source=source)
    trained, score = best.output
    return TableOutcome(
        model=trained.model,
        settings=trained.settings,
        noise_multiplier=noise,
        steps=trained.steps,
        guarantee=account(ledger, delta=budget.delta),
        score=score,
        records=records - held,
        undiscovered=undiscovered,
        why=f"Chosen of {len(candidates.settings)} settings, by the best of about {trials:g} runs: {best.setting}.",
        remarks=looks.remarks,
    )
