"""A table that was read through: how many records it has, and who of them is held out for the test."""

from __future__ import annotations

from collections.abc import Iterable

from tacit.randomness import SecureSource, SeededSource, Source
from tacit.tables.binning import lacking_bins
from tacit.tables.encoding import Encoding
from tacit.tables.encoding import check as check_rows
from tacit.tables.looks import Pieces
from tacit.tables.reading import Columns
from tacit.tables.records import Records, encode_apart, encode_parts, held_out
from tacit.tables.schema import Schema


class Split:
    """The records of a table to train on, and those held out: each with probability ``fraction``.

    A table that does not fit its schema is an error. One whose schema declares everything is encoded on the way, so
    that a large file is read only once; otherwise encoding waits for what is to be released privately.

    ``bins``: numbers may get private bins, so encoding waits for those too. ``seed`` is for debugging. `source` is for
    all that follows but the descent, which has one of its own: two streams of one seed must differ.
    """

    def __init__(
        self, pieces: Pieces, schema: Schema, *, fraction: float, seed: int | None, bins: bool = False
    ) -> None:
        self.pieces, self.schema, self.source = pieces, schema, _source(seed)
        self._parts: tuple[Records, Records] | None = None
        if schema.private or (bins and lacking_bins(schema)):
            self.records = check(pieces(), schema)
            self._aside = held_out(self.records, fraction, self.source)
            self.held = int(self._aside.sum())
        else:
            self._parts = encode_apart(pieces(), Encoding(schema), fraction, self.source)
            self.held = len(self._parts[1])
            self.records = len(self._parts[0]) + self.held

    def parts(self, encoding: Encoding) -> tuple[Records, Records]:
        """Those to train on, and those held out, encoded."""
        if self._parts is not None:
            return self._parts
        return encode_parts(self.pieces(), encoding, self._aside)


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
