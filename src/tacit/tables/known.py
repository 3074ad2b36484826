"""The tables Tacit knows: their files, and schemas that were declared from published descriptions."""

from __future__ import annotations

from pathlib import Path

from tacit.data.tables import Table, load_table
from tacit.tables.schema import Schema

KNOWN = ("adult", "pums")


def known(name: str, *, fetch: bool = False) -> tuple[Table, Schema]:
    """The table ``name`` and its declared schema."""
    if name not in KNOWN:
        raise ValueError(f"table is {name!r}; the known ones are {', '.join(KNOWN)}. For others give a file.")
    return load_table(name, fetch=fetch), Schema.load(Path(__file__).parent / "schemas" / f"{name}.json")
