"""A run on a table, from a file to a directory with the model, its ledger and its story."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.accounting import Filter
from tacit.ledger import Budget, Header, Ledger
from tacit.recipes.folder import Folder
from tacit.recipes.outcome import FORMAT, described, versions, write_json
from tacit.tables.boosting import Shapes, exported
from tacit.tables.descent import Progress
from tacit.tables.looks import Pieces
from tacit.tables.model import KINDS
from tacit.tables.overlap import check_rows_differ
from tacit.tables.reading import Columns, check_columns, from_columns, read
from tacit.tables.registry import Registry, Reservation
from tacit.tables.rule import Settings
from tacit.tables.schema import Category, Number, Schema
from tacit.tables.scoring import Score
from tacit.tables.split import Split, check
from tacit.tables.training import TableOutcome, train_table


class TableFile:
    """A CSV or Parquet file with a schema."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.name, self._path, self._schema = path.name, path, schema
        self.source, self.fingerprint = "a file of the user's", ""  # a hash of the records would tell of each of them
        check_columns(path, schema.columns)

    def pieces(self) -> Iterable[Columns]:
        return read(self._path, self._schema.columns, numbers=self._schema.numbers)


class TableInMemory:
    """A table that is already loaded."""

    def __init__(self, name: str, source: str, fingerprint: str, columns: Columns, schema: Schema) -> None:
        self.name, self.source, self.fingerprint = name, source, fingerprint
        self._columns, self._schema = columns, schema

    def pieces(self) -> Iterable[Columns]:
        return from_columns(self._columns, self._schema.columns)


def run_table(
    table: TableFile | TableInMemory,
    schema: Schema,
    *,
    budget: Budget,
    out: Path,
    model: str = "linear",
    numbers_are_classes: bool = True,
    test: Pieces | None = None,
    test_fraction: float = 0.2,
    changes: dict[str, Any] | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> TableOutcome:
    """Train as `train_table` does and leave model, ledger and run.json in ``out``.

    ``changes`` are settings to use instead of the rule's, ``epochs`` how many passes over the records. Settings are
    checked before the first record is read; all that can be wrong with the table is found before ``out`` is made.
    ``registry`` adds the run up with others on the same data, and may refuse it.
    """
    if model not in ("auto", *KINDS):
        raise ValueError(f"model is {model!r}; choose one of auto, {', '.join(KINDS)}.")
    _check_settings(changes or {}, epochs, test_fraction)
    if model in ("auto", "boosted") and (changes or epochs is not None):
        raise ValueError(
            f"a lot size, clip norm or epochs are for models trained by descent, and the model is {model}; leave them "
            "out, or choose the model linear or mlp."
        )
    folder = Folder(out)
    folder.check()
    if registry is not None:
        registry.check(budget)
    fraction = 0.0 if test is not None else test_fraction
    split = Split(table.pieces, schema, fraction=fraction, seed=seed, bins=model in ("auto", "boosted"))
    if test is not None:
        check(test(), schema)
        check_rows_differ(table.pieces, test, schema, records=split.records)
    folder.make()
    started = time.monotonic()
    facts: dict[str, Any] = {
        "format": FORMAT,
        "versions": versions(),
        "finished": False,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "dataset": {
            "name": table.name,
            "records": split.records,
            "classes": len(schema.classes) or None,
            "fingerprint": table.fingerprint,
            "source": table.source,
        },
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "seed": seed,
        "history": [],
        "notes": [*_notes(test is not None, test_fraction, seed), *delta_notes(budget, split.records)],
    }
    header = Header(
        secure_randomness=seed is None,
        purpose=f"predict {schema.target} from {table.name}",
        fingerprint="" if registry is None else registry.identity,
    )
    reserved = nullcontext(Reservation()) if registry is None else registry.reserved(folder.ledger, budget)
    with reserved as reservation, Ledger.open(folder.ledger, header) as ledger:
        write_json(folder.facts, facts)
        ledger.guard(Filter(budget))
        try:
            outcome = train_table(
                table.pieces,
                schema,
                budget=budget,
                ledger=ledger,
                model=model,
                numbers_are_classes=numbers_are_classes,
                chosen=lambda rule, count: _changed(rule, count, changes or {}, epochs),
                test=None if test is None else test(),
                test_fraction=test_fraction,
                split=split,
                seed=seed,
                progress=progress,
            )
        except ValueError:
            if not len(ledger):  # nothing was looked at: leave nothing behind
                reservation.nothing_released = True
                folder.discard()
            raise
    outcome.model.save(out, ledger.stamp)
    if isinstance(outcome.model.network, Shapes):
        write_json(out / "shapes.json", exported(outcome.model.network, outcome.model.encoding))
    seconds = time.monotonic() - started
    facts["recipe"] = {"name": f"table/{outcome.model.kind}", **described(outcome.settings), "target": schema.target}
    if outcome.score is not None:
        facts["dataset"]["test_records"] = outcome.score.records
        facts["history"] = [_point(outcome, outcome.score)]
    facts["notes"] += found_notes(outcome)
    drafted = frozenset[str]() if registry is None else registry.drafted(schema)
    facts["columns"] = provenance(schema, outcome.model.encoding.schema, drafted)
    if registry is not None:
        epsilon, delta = registry.spent()
        facts["data"] = {"runs": len(registry.costs()), "epsilon": epsilon, "delta": delta}
    facts |= {"finished": True, "seconds": seconds, "result": result(outcome) | {"seconds": seconds}}
    folder.finish(facts)
    return outcome


def provenance(declared: Schema, final: Schema, drafted: frozenset[str]) -> dict[str, dict[str, str]]:
    """Return what each column is, and where that is from: declared, read off the records, discovered, or dropped."""
    found = {}
    for name, column in declared.columns.items():
        now = final.columns.get(name)
        if now is None:
            kind, origin = "none", "dropped: nothing stood out of the noise"
        else:
            kind = "category" if isinstance(now, Category) else "number"
            origin = "discovered with noise, and charged" if column.private else "declared"
            if not column.private and name in drafted:
                origin = "declared as in a draft that was READ OFF THE RECORDS: not private, and not charged"
            elif not column.private and isinstance(now, Number) and now != column:
                origin = "bounds declared; bins discovered with noise, and charged"
        found[name] = {"type": kind, "origin": origin}
    return found


def _check_settings(changes: dict[str, Any], epochs: float | None, test_fraction: float) -> None:
    if not 0 <= test_fraction < 1:
        raise ValueError(f"the test fraction is {test_fraction!r}; it must be at least 0 and below 1.")
    if epochs is not None and not 0 < epochs < math.inf:
        raise ValueError(f"epochs is {epochs!r}; it must be a finite number above 0.")
    if not 0 < changes.get("clip_norm", 1.0) < math.inf:
        raise ValueError(f"the clip norm is {changes['clip_norm']!r}; it must be a finite number above 0.")
    if changes.get("lot_size", 1) < 1:
        raise ValueError(f"lot size is {changes['lot_size']}; it must be from 1 to the number of records.")


def _changed(rule: Settings, records: int, changes: dict[str, Any], epochs: float | None) -> Settings:
    chosen = replace(rule, **changes)
    if not 1 <= chosen.lot_size <= records:
        raise ValueError(f"lot size is {chosen.lot_size}; it must be from 1 to the number of records, {records}.")
    if epochs is None:
        return chosen
    return replace(chosen, steps=max(1, math.ceil(epochs * records / chosen.lot_size)))


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
        "epsilon": outcome.guarantee.epsilon,
        "delta": outcome.guarantee.delta,
        "steps": outcome.steps,
        "noise_multiplier": outcome.noise_multiplier,
        "undiscovered_share": None if outcome.undiscovered is None else outcome.undiscovered.share,
        "undiscovered_noise_std": None if outcome.undiscovered is None else outcome.undiscovered.noise_std,
    }


def delta_notes(budget: Budget, records: int) -> list[str]:
    """Return a warning if δ allows to publish somebody's record: δ is to be well below one in the number of records."""
    if budget.delta * records < 1:
        return []
    return [
        f"δ = {budget.delta:g} is not below 1/{records}, one in the number of records: releasing a random record whole "
        f"would satisfy it. Choose δ of {0.1 / records:.0e} or less."
    ]


def found_notes(outcome: TableOutcome) -> list[str]:
    """Return what a reader must know: why this model, and of scores where classes were discovered."""
    why = [outcome.why] if outcome.why else []
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


def _point(outcome: TableOutcome, score: Score) -> dict[str, Any]:
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


def _notes(public: bool, fraction: float, seed: int | None) -> list[str]:
    notes = ["The table was not refused, so it fitted its schema: that much is known beside what the ledger lists."]
    if public:
        notes.append("The test table is taken to be public: the score on it is exact and is not paid for.")
    elif fraction:
        notes.append(f"The score is released with noise from {fraction:.0%} of the records, and is paid for.")
    if seed is not None:
        notes.append("Not private: the noise comes from a seed, for debugging.")
    return notes
