"""A table that was read through: how many records it has, and who of them is held out for the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tacit.randomness import SecureSource, SeededSource, Source
from tacit.tables.binning import lacking_bins
from tacit.tables.columns import Columns
from tacit.tables.encoding import Encoding
from tacit.tables.encoding import check as check_rows
from tacit.tables.looks import Pieces
from tacit.tables.records import Records, encode_apart, encode_parts, held_out
from tacit.tables.schema import Schema

Progress = Callable[[str, int, int | None], None]
"""Told the stage (reading, discovering, encoding, training), how much of it is done, and of how much, if known."""


class Split:
    """The records of a table to train on, and those held out: each with probability ``fraction``.

    A table that does not fit its schema is an error. One whose schema declares everything is encoded on the way, so
    that a large file is read only once; otherwise encoding waits for what is to be released privately.

    ``bins``: numbers may get private bins, so encoding waits for those too. ``seed`` is for debugging. `source` is for
    all that follows but the descent, which has one of its own: two streams of one seed must differ.

    ``aside`` says who is held out, where an interrupted run has decided it. ``progress`` receives the number of
    rows read so far.
    """

    def __init__(
        self,
        pieces: Pieces,
        schema: Schema,
        *,
        fraction: float,
        seed: int | None,
        bins: bool = False,
        aside: NDArray[np.bool_] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.pieces, self.schema, self.source, self._tell = pieces, schema, _source(seed), progress
        self._parts: tuple[Records, Records] | None = None
        rows = telling(pieces, progress, "reading")
        if schema.private or schema.open_texts or (bins and lacking_bins(schema)):
            self.records = check(rows(), schema)
            if aside is not None and len(aside) != self.records:
                raise ValueError(
                    f"the table has {self.records} rows, and had {len(aside)} when the run began; put it back, or "
                    "begin a new run."
                )
            self.aside = held_out(self.records, fraction, self.source) if aside is None else aside
        elif aside is not None:
            self._parts, self.aside = encode_parts(rows(), Encoding(schema), aside), aside
        else:
            train, held, self.aside = encode_apart(rows(), Encoding(schema), fraction, self.source)
            self._parts = train, held
        self.records, self.held = len(self.aside), int(self.aside.sum())

    def parts(self, encoding: Encoding) -> tuple[Records, Records]:
        """Those to train on, and those held out, encoded."""
        if self._parts is not None:
            return self._parts
        return encode_parts(telling(self.pieces, self._tell, "encoding", self.records)(), encoding, self.aside)


def telling(pieces: Pieces, progress: Progress | None, stage: str, records: int | None = None) -> Pieces:
    """Return the same pieces, each told of as it is read."""
    if progress is None:
        return pieces

    def told() -> Iterator[Columns]:
        rows = 0
        progress(stage, rows, records)
        for piece in pieces():
            yield piece
            rows += len(next(iter(piece.values())))
            progress(stage, rows, records)

    return told


def check(pieces: Iterable[Columns], schema: Schema) -> int:
    """Read a table through and return how many records it has; a row that does not fit the schema is an error.

    Whether all records are of one class is not looked at: that would tell, for nothing, whether a single one is not.
    """
    seen = 0
    for piece in pieces:
        seen += check_rows(piece, schema, first=seen + 1)
    if not seen:
        raise ValueError("the table has no rows; it needs one line a record below the column names.")
    return seen


def _source(seed: int | None) -> Source:
    if seed is None:
        return SecureSource()
    source = SeededSource(seed)
    source.branch("table")
    return source
