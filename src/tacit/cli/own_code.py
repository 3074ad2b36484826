"""Load what users name on the command line: functions of their own modules, and tables of their own."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TABLES = (".csv", ".tsv", ".parquet", ".csv.gz", ".xlsx", ".arrow", ".feather", ".jsonl")


def is_named(text: str) -> bool:
    """Return whether ``text`` names an object of a module.

    >>> is_named("hospital.models:build"), is_named("mnist:0-600"), is_named("north.npz")
    (True, False, False)
    """
    return _NAMED.fullmatch(text) is not None


def is_table(text: str) -> bool:
    """Return whether ``text`` names a file with a table.

    >>> is_table("patients.csv"), is_table("north.npz")
    (True, False)
    """
    return text.lower().endswith(_TABLES)


def imported(option: str, text: str) -> Any:
    """Return the object that ``package.module:name`` names; modules in the working directory are found as well."""
    if not is_named(text):
        raise ValueError(f"{option} is {text!r}; write package.module:name.")
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{option} is {text!r}, but {module} cannot be imported ({error}); install it, or run in its folder."
        ) from error
    if not hasattr(found, name):
        raise ValueError(f"{option} is {text!r}, but {module} has no {name}.")
    return getattr(found, name)


def table(path: str, schema: Path | None) -> Any:
    """Return the rows of a table as a data set."""
    from tacit.tables import load_dataset

    if schema is None:
        raise ValueError(f"{path} is a table; say --schema FILE with its columns (`tacit data schema` proposes one).")
    return load_dataset(path, schema)


def schema_text(path: Path | None) -> str:
    """Return a schema as both sides compare it; the order of columns is part of it, as it is of the features."""
    from tacit.tables.schema import Schema

    return "" if path is None else json.dumps(Schema.load(path).to_json())


def records_of(option: str, text: str, schema: Path | None) -> Any:
    """Return the records that a participant or a server names, except those of the paper's networks."""
    if is_table(text):
        return table(text, schema)
    found = imported(option, text)
    return found() if callable(found) and not hasattr(found, "__getitem__") else found
