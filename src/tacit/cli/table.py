"""``tacit train FILE.csv``: private models of a table."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli.output import show

if TYPE_CHECKING:
    from tacit.tables.run import TableFile, TableInMemory
    from tacit.tables.schema import Schema


def is_table(dataset: str) -> bool:
    """Whether the data set of a command is a table: a file, or one that is known by name."""
    return dataset in ("adult", "pums") or Path(dataset).suffix.lower() in (".csv", ".parquet", ".pq")


def train_table(
    dataset: str,
    *,
    schema: Path | None,
    target: str | None,
    test: Path | None,
    test_fraction: float,
    model: str,
    epsilon: float,
    delta: float,
    epochs: float | None,
    lot_size: int | None,
    clip: float | None,
    out: Path | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Train on the table and write model, ledger, run.json and the report to ``out``."""
    from tacit.ledger import Budget
    from tacit.recipes.folder import next_free
    from tacit.reports import report
    from tacit.tables.overlap import check_files_differ
    from tacit.tables.reading import check_columns, from_columns, read
    from tacit.tables.run import found_notes, result, run_table

    budget, started = Budget(epsilon=epsilon, delta=delta), time.monotonic()
    table, declared, own_test = _opened(dataset, schema, target)
    place = out or next_free(Path("runs"), Path(dataset).stem)
    pieces = None
    if test is not None:
        check_files_differ(Path(dataset), test)
        pieces = lambda: read(test, declared.columns, numbers=declared.numbers)  # noqa: E731
        check_columns(test, declared.columns)
    elif own_test is not None:
        pieces = lambda: from_columns(own_test, declared.columns)  # noqa: E731
    changes: dict[str, Any] = {"lot_size": lot_size, "clip_norm": clip}
    outcome = run_table(
        table,
        declared,
        budget=budget,
        out=place,
        model=model,
        test=pieces,
        test_fraction=test_fraction,
        changes={name: value for name, value in changes.items() if value is not None},
        epochs=epochs,
        seed=seed,
        progress=_bar(sys.stderr.isatty() and not as_json),
    )
    page = report(place)
    facts = {**result(outcome), "seconds": time.monotonic() - started, "out": str(place), "report": str(page)}
    score = outcome.score
    lines = [f"{outcome.guarantee}"]
    if score is not None:
        how = f"noise ± {score.noise_std:.2g}, paid for" if score.private else "on a table taken to be public"
        lines.insert(0, f"{score.name.replace('_', ' ')}  {score.value:.4g}  ({how})")
    show(facts, [*lines, *found_notes(outcome), f"report  {page}"], as_json=as_json)


def _opened(dataset: str, schema: Path | None, target: str | None) -> tuple[TableFile | TableInMemory, Schema, Any]:
    from tacit.tables.known import KNOWN, known
    from tacit.tables.run import TableFile, TableInMemory
    from tacit.tables.schema import Schema

    if dataset in KNOWN:
        found, declared = known(dataset, fetch=True)
        if schema is not None or target is not None:
            declared = Schema.load(schema, target=target) if schema else _retargeted(declared, target)
        held = TableInMemory(found.name, found.source, found.fingerprint, found.train, declared)
        return held, declared, found.test
    path = Path(dataset)
    if not path.exists():
        raise ValueError(f"there is no file {dataset}.")
    beside = path.with_suffix(".schema.json")
    place = schema or (beside if beside.exists() else None)
    declared = Schema.load(place, target=target) if place else _undeclared(path, target)
    return TableFile(path, declared), declared, None


def _undeclared(path: Path, target: str | None) -> Schema:
    """A schema that knows only the columns' names; all else is found out privately."""
    from tacit.tables.reading import columns_of
    from tacit.tables.schema import Category, Schema, Undeclared

    names = columns_of(path)
    if target is None:
        raise ValueError(f"{path} has no schema; say at least which column to predict, with --target.")
    if target not in names:
        raise ValueError(f"{path} has no column {target!r}; its columns are {', '.join(names)}.")
    print(
        f"no schema: what the columns of {path} are is found out privately, which takes part of the budget; "
        f"`tacit data schema {path}` writes a draft to edit.",
        file=sys.stderr,
    )
    columns = {name: Category(values=None) if name == target else Undeclared() for name in names}
    return Schema(columns=columns, target=target)


def _retargeted(declared: Schema, target: str | None) -> Schema:
    from dataclasses import replace

    return replace(declared, target=target) if target else declared


def _bar(wanted: bool) -> Any:
    if not wanted:
        return None
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True))
    task = bar.add_task("training", total=None)

    def tell(step: int, steps: int) -> None:
        if step == 1:
            bar.start()
        bar.update(task, completed=step, total=steps)
        if step == steps:
            bar.stop()

    return tell
