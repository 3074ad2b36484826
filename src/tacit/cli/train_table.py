"""``tacit train FILE.csv``: private models of a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacit.cli.output import again, show
from tacit.cli.table_file import Features, Target, opened, schema_of, stem

if TYPE_CHECKING:
    from tacit.tables.scoring import Score
    from tacit.tables.split import Progress
    from tacit.tables.training import TableOutcome


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The command line's options of a run on a table."""

    schema: Path | None
    target: Target
    features: Features
    test: Path | None
    test_fraction: float
    by: str | None
    model: str
    epsilon: float
    delta: float
    epochs: float | None
    lot_size: int | None
    clip: float | None
    out: Path | None
    resume: bool
    seed: int | None
    data_name: str | None
    as_json: bool
    trials: float | None = None


def train_table(dataset: str, options: TableOptions) -> None:
    """Train on the table and write model, ledger, run.json and the report to ``out``."""
    started = time.monotonic()
    with _bar(sys.stderr.isatty() and not options.as_json) as progress:  # from the first second: imports take a while
        place, outcome = _trained(dataset, options, progress)
    from tacit.ledger import Budget
    from tacit.reports import report
    from tacit.tables.run_facts import delta_notes, found_notes, result

    page = report(place)
    facts = {**result(outcome), "seconds": time.monotonic() - started, "out": str(place), "report": str(page)}
    score = outcome.score
    lines = [f"{outcome.guarantee}"]
    if score is not None:
        how = f"noise ± {score.noise_std:.2g}, paid for" if score.private else "on a table taken to be public"
        how += f"; {score.records} records" + (f", by chance ± {score.chance:.2g}" if score.chance else "")
        against = "" if score.baseline is None else f"; a constant prediction: {score.baseline:.4g}"
        lines.insert(0, f"{score.name.replace('_', ' ')}  {score.value:.4g}  ({how}{against})")
        lines[1:1] = _group_lines(score)
    for note in delta_notes(Budget(epsilon=options.epsilon, delta=options.delta), outcome.records):
        print(f"warning: {note}", file=sys.stderr)
    show(facts, [*lines, *found_notes(outcome), f"report  {page}"], as_json=options.as_json)


def _group_lines(score: Score) -> list[str]:
    lines = []
    for name, one in score.by_group.items():
        value, noise = one["value"], one["noise_std"]
        shown = "below the noise" if value is None else f"{value:.4g}" + (f"  (noise ± {noise:.2g})" if noise else "")
        lines.append(f"  {name}  {shown}")
    return lines


def _trained(dataset: str, options: TableOptions, progress: Progress | None) -> tuple[Path, TableOutcome]:
    from tacit.ledger import Budget
    from tacit.recipes.folder import next_free
    from tacit.tables.known import KNOWN
    from tacit.tables.overlap import check_files_differ
    from tacit.tables.registry import registry_for
    from tacit.tables.run import TableFile, TableInMemory, run_table

    budget, test = Budget(epsilon=options.epsilon, delta=options.delta), options.test
    table, declared, own_test = opened(dataset, options.schema, options.target, options.features)
    place = options.out or next_free(Path("runs"), stem(dataset))
    pieces = None
    if test is not None:
        check_files_differ(Path(dataset), test)
        pieces = TableFile(test, declared).pieces
    elif own_test is not None:
        pieces = TableInMemory("test", "", "", own_test, declared).pieces
    changes: dict[str, Any] = {"lot_size": options.lot_size, "clip_norm": options.clip}
    known_classes = options.target.task == "classification" or schema_of(Path(dataset), options.schema) is not None
    try:
        outcome = run_table(
            table,
            declared,
            budget=budget,
            out=place,
            model=options.model,
            numbers_are_classes=known_classes,
            test=pieces,
            test_fraction=options.test_fraction,
            by=options.by,
            changes={name: value for name, value in changes.items() if value is not None},
            epochs=options.epochs,
            seed=options.seed,
            progress=progress,
            registry=None if dataset in KNOWN else registry_for(Path(dataset), options.data_name),
            resume=options.resume,
            trials=options.trials,
        )
    except KeyboardInterrupt:
        print(_stopped(place, options, again(dataset, place)), file=sys.stderr)
        raise typer.Exit(130) from None
    return place, outcome


@contextmanager
def _bar(wanted: bool) -> Iterator[Progress | None]:
    """Show a bar on standard error from the first second: starting, reading, discovering, encoding, training."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(stage: str, done: int, total: int | None) -> None:
            words = stage if stage == "training" else f"{stage} rows"
            bar.update(task, description=words, completed=done, total=total)

        yield tell


def _stopped(place: Path, options: TableOptions, command: str) -> str:
    """Return what a run that was broken off leaves behind, and the ``command`` that goes on with it."""
    from tacit.accounting import account
    from tacit.accounting.guarantee import rounded_up
    from tacit.ledger import Ledger

    path = place / "ledger.jsonl"
    if not path.exists() or not len(book := Ledger.load(path)):
        return "stopped before anything was released; nothing was spent, and nothing is kept."
    accountant = "pld" if options.trials is None else "rdp"
    spent = rounded_up(account(book, delta=options.delta, accountant=accountant).epsilon)
    if options.trials is not None:
        return (
            f"stopped; no model was kept. ε {spent} is spent, as {path} says, and counts for this data set. Tuning is "
            "not resumed: how many runs there were must stay unknown."
        )
    return (
        f"stopped. ε {spent} is spent, as {path} says, and counts for this data set. What it bought is kept in "
        f"{place}; go on with: {command}"
    )
