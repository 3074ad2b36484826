"""The ledger a run writes to: a new one, one on disk, or one that other runs on the same records share."""

from __future__ import annotations

from pathlib import Path

from tacit.ledger import Header, Ledger


def open_ledger(given: Ledger | str | Path | None, header: Header) -> Ledger:
    """The ledger that was given, opened; it must promise no other unit, adjacency or randomness than the run has."""
    if given is None:
        return Ledger(header)
    if isinstance(given, Ledger):
        _check_header(given, header)
        return given
    if not Path(given).exists():
        return Ledger.open(given, header)
    book = Ledger.open(given)  # begun by an earlier run, perhaps for another purpose
    try:
        _check_header(book, header)
    except ValueError:
        book.close()
        raise
    return book


def _check_header(book: Ledger, header: Header) -> None:
    for name in ("adjacency", "unit"):
        held, needed = getattr(book.header, name), getattr(header, name)
        if held != needed:
            raise ValueError(f"the ledger's {name} is {held}; this run needs {needed}: give it a ledger of its own.")
    if book.header.secure_randomness and not header.secure_randomness:
        raise ValueError("the ledger promises secure randomness; a seeded run needs a ledger of its own.")
