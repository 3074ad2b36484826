"""The rows of a table, encoded and kept out of memory while they are trained on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.randomness import Source
from tacit.tables.encoding import Encoding
from tacit.tables.reading import Columns

Tell = Callable[[int], None]
"""Told how many rows were read so far."""


class Records:
    """Encoded rows and their targets, in an unnamed temporary file that is gone when this object is.

    ``inputs`` has one compact row a record and ``targets`` one number; both are views of the file, so reading a lot
    touches the rows of the lot only.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, *, keep: tuple[Any, ...] = ()) -> None:
        self.inputs, self.targets, self._keep = inputs, targets, keep

    def __len__(self) -> int:
        return len(self.inputs)

    def part(self, rows: NDArray[np.bool_]) -> Records:
        """The records that are marked, copied."""
        chosen = torch.from_numpy(np.flatnonzero(rows))
        return Records(self.inputs[chosen], self.targets[chosen])


def encode(pieces: Iterable[Columns], encoding: Encoding, *, tell: Tell | None = None) -> Records:
    """All rows encoded, a piece at a time. A row that does not fit the schema is an error that names it."""
    width = len(encoding.schema.features)
    spool = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the records)
    seen = 0
    for piece in pieces:
        inputs, targets = encoding.compact(piece, first=seen + 1), encoding.targets(piece, first=seen + 1)
        np.concatenate([inputs, targets[:, None]], axis=1).astype(np.float32).tofile(spool)
        seen += len(targets)
        if tell is not None:
            tell(seen)
    if not seen:
        raise ValueError("the table has no rows; it needs one line a record below the column names.")
    spool.flush()
    table = torch.from_numpy(np.memmap(spool, dtype=np.float32, mode="r+", shape=(seen, width + 1)))
    return Records(table[:, :width], table[:, width], keep=(spool,))


def held_out(records: int, fraction: float, source: Source) -> NDArray[np.bool_]:
    """Who is kept for testing: each record with probability ``fraction``, whoever else is there.

    Assigned so, one record more or fewer changes nobody else's place.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the test fraction is {fraction!r}; it must be at least 0 and below 1.")
    return source.uniform(records) < fraction
