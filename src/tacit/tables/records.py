"""The rows of a table, encoded: in memory while they are few, in a file while they are trained on otherwise."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.randomness import Source
from tacit.tables.columns import Columns
from tacit.tables.encoding import Encoding

IN_MEMORY = 2**25
"""Encoded rows of up to so many bytes are kept in memory."""
_CHUNK = 65_536

Pair = tuple[Tensor, Tensor]
"""Compact rows, and their targets: whole numbers for classes."""


class Records:
    """Encoded rows and their targets, for `tacit.make_private` with ``collate_fn``, `collate` of this object.

    A large table stays in an unnamed temporary file that is gone when this object is. Only the rows of a batch are read
    from it, one by one: the file is not mapped, so that it takes no room in the process.
    """

    def __init__(self, spool: IO[bytes], encoding: Encoding) -> None:
        width = encoding.codes
        self._bytes, self._width, self._encoding = 4 * (width + 1), width, encoding
        spool.seek(0, 2)
        size = spool.tell()
        self._count = size // self._bytes
        self._spool, self._table = spool, None
        if size <= IN_MEMORY:
            spool.seek(0)
            self._table = np.frombuffer(spool.read(size), dtype=np.float32).reshape(self._count, width + 1)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> Pair:
        return self._rows([place])

    def __getitems__(self, places: Sequence[int]) -> list[Pair]:
        """The rows at ``places``, as one batch: `collate` takes it out of the list."""
        return [self._rows(places)]

    def collate(self, batches: list[Pair]) -> Pair:
        """Features and targets of a batch, each row made from its record alone."""
        [(rows, targets)] = batches
        return torch.from_numpy(self._encoding.expand(rows.numpy())), targets

    def slices(self, size: int = _CHUNK) -> Iterator[Pair]:
        """All rows, in order."""
        for first in range(0, len(self), size):
            yield self._pair(self._read(first, min(size, len(self) - first)))

    def _rows(self, places: Sequence[int]) -> Pair:
        if self._table is not None:
            return self._pair(self._table[np.asarray(places)])
        file, size = self._spool.fileno(), self._bytes
        return self._pair(self._numbers(b"".join([os.pread(file, size, place * size) for place in places])))

    def _read(self, first: int, count: int) -> NDArray[np.float32]:
        if self._table is not None:
            return self._table[first : first + count]
        self._spool.seek(first * self._bytes)
        return self._numbers(self._spool.read(count * self._bytes))

    def _numbers(self, data: bytes) -> NDArray[np.float32]:
        return np.frombuffer(data, dtype=np.float32).reshape(-1, self._width + 1)

    def _pair(self, rows: NDArray[np.float32]) -> Pair:
        table = torch.from_numpy(rows.copy())
        targets = table[:, self._width]
        return table[:, : self._width], targets.long() if self._encoding.schema.classes else targets


def encode(pieces: Iterable[Columns], encoding: Encoding) -> Records:
    """All rows encoded, a piece at a time. A row that does not fit the schema is an error that names it."""
    everyone, _ = _encoded(pieces, encoding, lambda _, rows: np.zeros(rows, dtype=np.bool_))
    return everyone


def encode_apart(
    pieces: Iterable[Columns], encoding: Encoding, fraction: float, source: Source
) -> tuple[Records, Records, NDArray[np.bool_]]:
    """The same, in two parts: those who are not held out, and those who are, each with probability ``fraction``.

    The array says of every record whether it is held out.
    """
    asides: list[NDArray[np.bool_]] = []

    def drawn(_: int, rows: int) -> NDArray[np.bool_]:
        asides.append(held_out(rows, fraction, source))
        return asides[-1]

    train, held = _encoded(pieces, encoding, drawn)
    return train, held, np.concatenate(asides)


def encode_parts(pieces: Iterable[Columns], encoding: Encoding, aside: NDArray[np.bool_]) -> tuple[Records, Records]:
    """The same, where it is known before who is held ``aside``."""

    def told(first: int, rows: int) -> NDArray[np.bool_]:
        here = aside[first : first + rows]
        if len(here) < rows:
            raise ValueError("the table has become longer since it was first read; leave it as it is during a run.")
        return here

    train, held = _encoded(pieces, encoding, told)
    if len(train) + len(held) < len(aside):
        raise ValueError("the table has become shorter since it was first read; leave it as it is during a run.")
    return train, held


def _encoded(
    pieces: Iterable[Columns], encoding: Encoding, aside: Callable[[int, int], NDArray[np.bool_]]
) -> tuple[Records, Records]:
    spools = [tempfile.TemporaryFile(buffering=0) for _ in range(2)]  # noqa: SIM115 (they live as long as the records)
    seen = 0
    for piece in pieces:
        inputs, targets = encoding.compact(piece, first=seen + 1), encoding.targets(piece, first=seen + 1)
        rows = np.concatenate([inputs, targets[:, None]], axis=1).astype(np.float32)
        here = aside(seen, len(rows))
        for spool, chosen in zip(spools, (~here, here)):
            _write(spool, rows[chosen].tobytes())
        seen += len(rows)
    if not seen:
        raise ValueError("the table has no rows; it needs one line a record below the column names.")
    first, second = (Records(spool, encoding) for spool in spools)
    return first, second


def _write(spool: IO[bytes], data: bytes) -> None:
    if spool.write(data) < len(data):  # a full disk takes a part, and says so only the next time
        raise OSError(
            errno.ENOSPC, f"no room for the encoded rows in {tempfile.gettempdir()}; set TMPDIR to a larger disk"
        )


def held_out(records: int, fraction: float, source: Source) -> NDArray[np.bool_]:
    """Return which records are kept for testing: each with probability ``fraction``, whichever others are there.

    Assigned so, one record more or fewer does not change the place of another.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the test fraction is {fraction!r}; it must be at least 0 and below 1.")
    aside = np.zeros(records, dtype=np.bool_)
    for start in range(0, records if fraction else 0, _CHUNK):
        aside[start : start + _CHUNK] = source.uniform(min(_CHUNK, records - start)) < fraction
    return aside
