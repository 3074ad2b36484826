"""Facts for run.json of a run on a table: where its columns are from, its numbers, and notes for its readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tacit.ledger import Budget
from tacit.tables.columns import Column, Number, Text
from tacit.tables.rule import Settings
from tacit.tables.schema import Schema
from tacit.tables.scoring import Score
from tacit.tables.training import TableOutcome

_LISTED = 8
"""So many columns of one remark are named; the report names all."""


def provenance(
    declared: Schema, final: Schema, drafted: frozenset[str], remarks: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return what each column is, and where that is from: declared, read off the records, discovered, or dropped."""
    found = {}
    for name, column in declared.columns.items():
        now = final.columns.get(name)
        if now is None:
            kind, origin = "none", f"dropped: {remarks.get(name, 'nothing stood out of the noise')}"
        else:
            kind = _kind(now)
            origin = "discovered with noise, and charged" if column.private else "declared"
            if not column.private and name in drafted:
                origin = "declared as in a draft that was READ OFF THE RECORDS: not private, and not charged"
            elif not column.private and isinstance(now, Number) and now != column:
                origin = "bounds declared; bins discovered with noise, and charged"
        if now is not None and name in remarks:
            origin += f"; {remarks[name]}"
        found[name] = {"type": kind, "origin": origin}
    return found


def _kind(column: Column) -> str:
    if isinstance(column, Number):
        return "date" if column.notation.date else "number"
    return "text" if isinstance(column, Text) else "category"


def result(outcome: TableOutcome) -> dict[str, Any]:
    """The numbers of run.json."""
    scores = {} if outcome.score is None else {outcome.score.name: outcome.score.value}
    return {
        "test_accuracy": None,
        **scores,
        "test_is_private": None if outcome.score is None else outcome.score.private,
        "test_noise_std": None if outcome.score is None else outcome.score.noise_std,
        "test_baseline": None if outcome.score is None else outcome.score.baseline,
        "test_by_class": {} if outcome.score is None else outcome.score.by_class,
        "test_by_group": {} if outcome.score is None else outcome.score.by_group,
        "epsilon": outcome.guarantee.epsilon,
        "delta": outcome.guarantee.delta,
        "steps": outcome.steps,
        "noise_multiplier": outcome.noise_multiplier,
        "undiscovered_share": None if outcome.undiscovered is None else outcome.undiscovered.share,
        "undiscovered_noise_std": None if outcome.undiscovered is None else outcome.undiscovered.noise_std,
    }


def delta_notes(budget: Budget, records: int) -> list[str]:
    """Return a warning if δ allows publishing a whole record: δ is to be well below one in the number of records."""
    if budget.delta * records < 1:
        return []
    return [
        f"δ = {budget.delta:g} is not below 1/{records}, one in the number of records: releasing a random record whole "
        f"would satisfy it. Choose δ of {0.1 / records:.0e} or less."
    ]


def found_notes(outcome: TableOutcome) -> list[str]:
    """Return what a reader must know: why this model, and of scores where classes were discovered."""
    why = [outcome.why] if outcome.why else []
    used = outcome.model.encoding.schema.columns
    why += remarks_by_text(outcome.remarks, used)
    if outcome.undiscovered is None:
        return why
    missed, target = outcome.undiscovered, outcome.model.encoding.schema.target
    notes = [
        *why,
        f"About {missed.share:.1%} of the records (noise ± {missed.noise_std:.1%}, paid for) have a value of "
        f"{target!r} that was not discovered; each counts as a wrong prediction.",
    ]
    if len(outcome.model.classes) == 1:
        notes.append(
            f"Only {outcome.model.classes[0]!r} stood out of the noise, so the model always predicts it and no "
            f"training step was charged; list the classes of {target!r} (--classes) to have rarer ones predicted."
        )
    return notes


def remarks_by_text(remarks: Mapping[str, str], used: Collection[str]) -> list[str]:
    """Return a sentence for each remark on columns, with those it is about; columns not ``used`` are dropped."""
    alike: dict[tuple[str, bool], list[str]] = {}
    for name, text in remarks.items():
        alike.setdefault((text, name in used), []).append(name)
    return [f"{'The ' if kept else 'DROPPED: the '}{_listed(names)}: {text}." for (text, kept), names in alike.items()]


def _listed(names: list[str]) -> str:
    if len(names) == 1:
        return f"column {names[0]!r}"
    shown, others = ", ".join(map(repr, names[:_LISTED])), len(names) - _LISTED
    return f"{len(names)} columns {shown}{f' and {others} more' if others > 0 else ''}, of each"


def point(outcome: TableOutcome, score: Score) -> dict[str, Any]:
    """Return the one entry of the history: the model when it was done."""
    note = (
        f"released with noise of standard deviation {score.noise_std:.2g}, and charged"
        if score.private
        else "computed on a table that is taken to be public"
    )
    chosen = outcome.settings
    descent: dict[str, float] = {"epoch": outcome.steps}
    if isinstance(chosen, Settings):
        epoch = outcome.steps * chosen.lot_size / outcome.records
        descent = {"epoch": epoch, "clip_norm": chosen.clip_norm, "learning_rate": chosen.learning_rate}
    return {
        "step": outcome.steps,
        "epsilon": outcome.guarantee.epsilon,
        "noise_multiplier": outcome.noise_multiplier,
        **descent,
        "metrics": {score.name: {"value": score.value, "private": score.private, "note": note}},
    }


def notes(public: bool, fraction: float, seed: int | None) -> list[str]:
    """Return what is known beside the ledger's releases, and how the score comes about."""
    notes = ["The table was not refused, so it fitted its schema: that much is known beside what the ledger lists."]
    if public:
        notes.append("The test table is taken to be public: the score on it is exact and is not paid for.")
    elif fraction:
        notes.append(f"The score is released with noise from {fraction:.0%} of the records, and is paid for.")
    if seed is not None:
        notes.append("Not private: the noise comes from a seed, for debugging.")
    return notes
