"""``tacit train FILE.csv``: private models of a table."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacit.cli.output import again, show
from tacit.tables.kinds import divided, is_file_of_a_table, kind_of

if TYPE_CHECKING:
    from tacit.tables.columns import Column
    from tacit.tables.run import TableFile, TableInMemory
    from tacit.tables.schema import Schema
    from tacit.tables.scoring import Score
    from tacit.tables.split import Progress
    from tacit.tables.training import TableOutcome


@dataclass(frozen=True, kw_only=True)
class Target:
    """The command line's options of the column to predict."""

    name: str | None
    task: str | None = None
    bounds: tuple[float, float] | None = None
    classes: str | None = None

    def __post_init__(self) -> None:
        if self.task not in (None, "classification", "regression"):
            raise ValueError(f"--task is {self.task!r}; choose classification or regression.")
        if self.bounds is not None and (self.classes is not None or self.task == "classification"):
            raise ValueError("--target-bounds are of a number, which has no classes; leave one of the two out.")
        if self.classes is not None and self.task == "regression":
            raise ValueError("--classes are not of a number; leave them out, or say --task classification.")

    @property
    def column(self) -> Column | None:
        """The target's column as far as it is declared on the command line."""
        from tacit.tables.columns import Category, Number

        if self.bounds is not None:
            return Number(low=self.bounds[0], high=self.bounds[1])
        if self.classes is None:
            return None
        names = tuple(name.strip() for name in self.classes.split(","))
        if len(names) < 2:
            raise ValueError(f"--classes is {self.classes!r}; list two or more, separated by commas.")
        return Category(values=names)

    def declared_in(self, schema: Schema) -> Schema:
        """Return the schema with this target, and what is said of it here instead of what it says."""
        from tacit.tables.columns import Number
        from tacit.tables.schema import Schema

        name = self.name or schema.target
        columns = {**schema.columns, name: self.column} if self.column else schema.columns
        found = Schema(columns=columns, target=name)
        number = isinstance(found.columns[name], Number)
        if self.task is not None and number != (self.task == "regression"):
            raise ValueError(
                f"the schema declares the target {name!r} as a {'number' if number else 'category'}, and --task is "
                f"{self.task}; leave --task out, or say {'--classes' if number else '--target-bounds LOW HIGH'}."
            )
        return found


def is_table(dataset: str) -> bool:
    """Return whether the data set of a command is a table: a file, or one that is known by name."""
    return dataset in ("adult", "pums") or is_file_of_a_table(dataset)


@contextmanager
def from_standard_input() -> Iterator[str]:
    """Yield the name of a file with what comes in on standard input, as CSV; it is gone afterwards.

    A table is read more than once, so it must be somewhere. Only this user can read the directory.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stdin.csv"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield str(path)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The command line's options of a run on a table."""

    schema: Path | None
    target: Target
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
        against = "" if score.baseline is None else f"; always saying the same: {score.baseline:.4g}"
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
    table, declared, own_test = _opened(dataset, options.schema, options.target)
    place = options.out or next_free(Path("runs"), _stem(dataset))
    pieces = None
    if test is not None:
        check_files_differ(Path(dataset), test)
        pieces = TableFile(test, declared).pieces
    elif own_test is not None:
        pieces = TableInMemory("test", "", "", own_test, declared).pieces
    changes: dict[str, Any] = {"lot_size": options.lot_size, "clip_norm": options.clip}
    known_classes = options.target.task == "classification" or _schema_of(Path(dataset), options.schema) is not None
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


def _opened(dataset: str, schema: Path | None, target: Target) -> tuple[TableFile | TableInMemory, Schema, Any]:
    from tacit.tables.known import KNOWN, known
    from tacit.tables.run import TableFile, TableInMemory
    from tacit.tables.schema import Schema

    if dataset in KNOWN:
        found, declared = known(dataset, fetch=True)
        declared = target.declared_in(Schema.load(schema, target=target.name) if schema else declared)
        held = TableInMemory(found.name, found.source, found.fingerprint, found.train, declared)
        return held, declared, found.test
    path = Path(dataset)
    kind_of(path)  # a file that is not there or not read is refused before anything else
    place = _schema_of(path, schema)
    declared = target.declared_in(Schema.load(place, target=target.name)) if place else _undeclared(path, target)
    return TableFile(path, declared), declared, None


def _stem(dataset: str) -> str:
    """Return a name for the run: that of the file, and of the table in it."""
    file, table = divided(Path(dataset))
    stem = Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem
    return f"{stem}-{table}" if table else stem


def _schema_of(path: Path, schema: Path | None) -> Path | None:
    """Return the file with the schema: the one that is named, or the one beside the table."""
    file, table = divided(path)
    bare = file.with_suffix("") if file.suffix.lower() == ".gz" else file
    beside = bare.with_name(f"{bare.stem}{f'.{table}' if table else ''}.schema.json")
    return schema or (beside if beside.exists() else None)


def _undeclared(path: Path, target: Target) -> Schema:
    """Return a schema that knows only the columns' names and what was said of the target."""
    from tacit.tables.columns import Category, Undeclared
    from tacit.tables.reading import columns_of, measured
    from tacit.tables.schema import Schema

    names = columns_of(path)
    if target.name is None:
        raise ValueError(f"{path} has no schema; say at least which column to predict, with --target.")
    if target.name not in names:
        raise ValueError(f"{path} has no column {target.name!r}; its columns are {', '.join(names)}.")
    if target.task is None and target.column is None and target.name in measured(path):
        raise ValueError(
            f"{path} stores {target.name!r} as a number with a fraction; is it one to predict? Say --task regression "
            "--target-bounds LOW HIGH, or --task classification if its values are classes."
        )
    if target.task == "regression" and target.bounds is None:
        raise ValueError(
            f"--task regression needs the bounds of {target.name!r}, which may not be read off the records; say "
            "--target-bounds LOW HIGH."
        )
    column = target.column or Category(values=None)
    print(
        f"no schema: what the columns of {path} are is found out privately, which takes part of the budget; "
        f"`tacit data schema {path}` writes a draft to edit.",
        file=sys.stderr,
    )
    columns = {name: column if name == target.name else Undeclared() for name in names}
    return Schema(columns=columns, target=target.name)


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
