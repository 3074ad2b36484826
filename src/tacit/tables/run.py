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
from tacit.randomness import SeededSource
from tacit.recipes.folder import Folder
from tacit.recipes.outcome import FORMAT, described, versions, write_json
from tacit.tables.boosting import Shapes, exported
from tacit.tables.columns import Columns
from tacit.tables.kept import Kept
from tacit.tables.looks import Pieces
from tacit.tables.model import KINDS
from tacit.tables.overlap import check_rows_differ
from tacit.tables.reading import check_columns, from_columns, read_columns
from tacit.tables.registry import Registry, Reservation
from tacit.tables.rule import Settings
from tacit.tables.run_facts import delta_notes, found_notes, notes, point, provenance, result
from tacit.tables.schema import Schema
from tacit.tables.scoring import check_groups
from tacit.tables.split import Progress, Split, check
from tacit.tables.training import TableOutcome, train_table
from tacit.tables.tune import tune_table


class TableFile:
    """A CSV or Parquet file with a schema."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.name, self._path, self._schema = path.name, path, schema
        self.source, self.fingerprint = "a file of the user's", ""  # a hash of the records would tell of each of them
        check_columns(path, schema.sources().values())

    def pieces(self) -> Iterable[Columns]:
        return read_columns(self._path, self._schema.sources(), numbers=self._schema.numbers)


class TableInMemory:
    """A table that is already loaded."""

    def __init__(self, name: str, source: str, fingerprint: str, columns: Columns, schema: Schema) -> None:
        self.name, self.source, self.fingerprint = name, source, fingerprint
        self._columns, self._schema = columns, schema

    def pieces(self) -> Iterable[Columns]:
        sources = self._schema.sources()
        named = {name: self._columns[source] for name, source in sources.items() if source in self._columns}
        return from_columns(named, self._schema.columns)


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
    by: str | None = None,
    changes: dict[str, Any] | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    registry: Registry | None = None,
    resume: bool = False,
    trials: float | None = None,
) -> TableOutcome:
    """Train as `train_table` does and leave model, ledger and run.json in ``out``.

    ``changes`` are settings to use instead of the rule's, ``epochs`` how many passes over the records. Settings are
    checked before the first record is read; all that can be wrong with the table is found before ``out`` is made.
    ``registry`` adds the run up with others on the same data, and may refuse it.

    An interruption after the first look leaves a run that ``resume`` goes on with, given the same table and options:
    nothing that was released is asked again, and what was charged without an answer stays charged.

    ``trials``: tune as `tune_table` does, with so many runs on average, instead of training by the rule.
    """
    if model not in ("auto", *KINDS):
        raise ValueError(f"model is {model!r}; choose one of auto, {', '.join(KINDS)}.")
    _check_settings(changes or {}, epochs, test_fraction)
    check_groups(schema, by)
    if model in ("auto", "boosted") and (changes or epochs is not None):
        raise ValueError(
            f"a lot size, clip norm or epochs are for models trained by descent, and the model is {model}; leave them "
            "out, or choose the model linear or mlp."
        )
    folder = Folder(out)
    setup = {
        "model": model,
        "changes": changes or {},
        "epochs": epochs,
        "test_fraction": None if test is not None else test_fraction,
        "by": by,
        "schema": schema.to_json(),
    }
    begun = {"setup": setup, "budget": {"epsilon": budget.epsilon, "delta": budget.delta}, "seed": seed}
    if resume:
        folder.saved(begun, tuple(begun))
        folder.check_ledger()
    else:
        folder.check()
    if registry is not None:
        registry.check(budget, folder.ledger)
    kept = Kept(folder.work)
    split = Split(
        table.pieces,
        schema,
        fraction=0.0 if test is not None else test_fraction,
        seed=seed,
        bins=model in ("auto", "boosted"),
        aside=kept.load_aside(),
        progress=progress,
    )
    if test is not None:
        check(test(), schema)
        check_rows_differ(table.pieces, test, schema, records=split.records)
    if not resume:
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
        **begun,
        "history": [],
        "notes": [*notes(test is not None, test_fraction, seed), *delta_notes(budget, split.records)],
    }
    header = Header(
        secure_randomness=seed is None,
        purpose=f"predict {schema.target} from {table.name}",
        fingerprint="" if registry is None else registry.identity,
    )
    reserved = nullcontext(Reservation()) if registry is None else registry.reserved(folder.ledger, budget)
    with reserved as reservation, Ledger.open(folder.ledger, header) as ledger:
        write_json(folder.facts, facts)
        kept.save_aside(split.aside)
        ledger.guard(Filter(budget))
        if len(ledger) and isinstance(split.source, SeededSource):  # what the ledger has seen must not be drawn again
            split.source.branch(f"after {len(ledger)} steps")
        try:
            if trials is not None:
                outcome = tune_table(
                    table.pieces,
                    schema,
                    budget=budget,
                    ledger=ledger,
                    split=split,
                    trials=trials,
                    model=model,
                    numbers_are_classes=numbers_are_classes,
                )
            else:
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
                    by=by,
                    split=split,
                    seed=seed,
                    progress=progress,
                    kept=kept,
                )
        except (ValueError, KeyboardInterrupt):
            if not len(ledger):  # nothing was looked at: leave nothing behind
                reservation.nothing_released = True
                folder.discard()
            raise
    drafted = frozenset[str]() if registry is None else registry.drafted(schema)
    origins = provenance(schema, outcome.model.schema, drafted, outcome.remarks)
    replace(outcome.model, provenance=origins).save(out, ledger.stamp)
    if isinstance(outcome.model.network, Shapes):
        write_json(out / "shapes.json", exported(outcome.model.network, outcome.model.encoding))
    seconds = time.monotonic() - started
    facts["recipe"] = {"name": f"table/{outcome.model.kind}", **described(outcome.settings), "target": schema.target}
    if outcome.score is not None:
        facts["dataset"]["test_records"] = outcome.score.records
        facts["history"] = [point(outcome, outcome.score)]
    facts["notes"] += found_notes(outcome)
    facts["columns"] = origins
    if registry is not None:
        epsilon, delta = registry.spent()
        facts["data"] = {"runs": len(registry.costs()), "epsilon": epsilon, "delta": delta}
    facts |= {"finished": True, "seconds": seconds, "result": result(outcome) | {"seconds": seconds}}
    folder.finish(facts)
    return outcome


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
