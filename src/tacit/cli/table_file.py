"""A table on the command line: which file, which column to predict, and which columns to use."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.tables.kinds import divided, is_file_of_a_table, kind_of

if TYPE_CHECKING:
    from tacit.tables.columns import Column
    from tacit.tables.run import TableFile, TableInMemory
    from tacit.tables.schema import Schema


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


@dataclass(frozen=True, kw_only=True)
class Features:
    """The command line's options of the columns to predict from."""

    ignore: str | None = None
    keep_ids: bool = False

    @property
    def ignored(self) -> tuple[str, ...]:
        """The columns that are left out."""
        return () if self.ignore is None else tuple(name.strip() for name in self.ignore.split(","))

    def without_ignored(self, schema: Schema) -> Schema:
        """Return the schema without the ignored columns; a name that it does not have is an error."""
        for name in self.ignored:
            if name not in schema.columns:
                raise ValueError(f"--ignore: there is no column {name!r}; the columns are {', '.join(schema.columns)}.")
            if name == schema.target:
                raise ValueError(f"--ignore: {name!r} is the column to predict; leave it out of --ignore.")
        columns = {name: column for name, column in schema.columns.items() if name not in self.ignored}
        return replace(schema, columns=columns)

    def notes(self, names: Sequence[str]) -> list[str]:
        """Return what is to be said of columns whose names, which are public, say that they number or name records."""
        from tacit.tables.identifiers import may_name_records, names_records

        left = [name for name in names if name not in self.ignored]
        numbered = [repr(name) for name in left if names_records(name)]
        doubtful = [name for name in left if may_name_records(name)]
        notes = []
        if numbered and not self.keep_ids:
            whose = "whose name says that it numbers" if len(numbered) == 1 else "whose names say that they number"
            notes.append(f"not used: {', '.join(numbered)}, {whose} the records; --keep-ids uses them.")
        if doubtful:
            notes.append(
                f"warning: {', '.join(map(repr, doubtful))} may name single records, which costs budget and says "
                f"nothing of new ones; if so, leave them out: --ignore {','.join(doubtful)}"
            )
        return notes


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


def opened(
    dataset: str, schema: Path | None, target: Target, features: Features
) -> tuple[TableFile | TableInMemory, Schema, Any]:
    """Return the table, what its columns are as far as it is declared, and the test table that is known with it."""
    from tacit.tables.known import KNOWN, known
    from tacit.tables.run import TableFile, TableInMemory
    from tacit.tables.schema import Schema

    if dataset in KNOWN:
        found, declared = known(dataset, fetch=True)
        declared = features.without_ignored(
            target.declared_in(Schema.load(schema, target=target.name) if schema else declared)
        )
        held = TableInMemory(found.name, found.source, found.fingerprint, found.train, declared)
        return held, declared, found.test
    path = Path(dataset)
    kind_of(path)  # a file that is not there or not read is refused before anything else
    place = schema_of(path, schema)
    if place is None:
        declared = _undeclared(path, target, features)
    else:
        declared = features.without_ignored(target.declared_in(Schema.load(place, target=target.name)))
        if features.keep_ids:
            raise ValueError(
                f"--keep-ids is for a table without a schema, and {place} is one; declare the columns there."
            )
    return TableFile(path, declared), declared, None


def stem(dataset: str) -> str:
    """Return a name for the run: that of the file, and of the table in it."""
    file, table = divided(Path(dataset))
    stem = Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem
    return f"{stem}-{table}" if table else stem


def schema_of(path: Path, schema: Path | None) -> Path | None:
    """Return the file with the schema: the one that is named, or the one beside the table."""
    file, table = divided(path)
    bare = file.with_suffix("") if file.suffix.lower() == ".gz" else file
    beside = bare.with_name(f"{bare.stem}{f'.{table}' if table else ''}.schema.json")
    return schema or (beside if beside.exists() else None)


def _undeclared(path: Path, target: Target, features: Features) -> Schema:
    """Return a schema that knows only the columns' names and what was said of the target."""
    from tacit.tables.columns import Category, Number, Undeclared
    from tacit.tables.identifiers import names_records
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
        f"{path} has no schema: the run finds the types of the columns privately, for a part of the budget; "
        f"`tacit data schema {path}` writes a draft to edit.",
        file=sys.stderr,
    )
    for note in features.notes([name for name in names if name != target.name]):
        print(note, file=sys.stderr)
    kept = Number(low=None, high=None, missing="own", text="missing")
    columns: dict[str, Column] = {
        name: kept if features.keep_ids and names_records(name) else Undeclared() for name in names
    }
    return features.without_ignored(Schema(columns=columns | {target.name: column}, target=target.name))
