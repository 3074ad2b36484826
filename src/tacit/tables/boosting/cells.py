"""The cells that the records of a table are in, column by column: what boosting reads again and again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.tables.columns import Category, Column, Number, Text
from tacit.tables.records import Records
from tacit.tables.schema import Schema

Codes = NDArray[np.int64]
Array = NDArray[np.float64]
Chunk = tuple[Codes, NDArray[np.generic]]
"""The cells of some records, a row each, and their targets."""

_IN_MEMORY = 2**26
"""Columns of up to so many bytes together are kept in memory; others in a file without a name."""
_CHUNK = 2**18


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The cells of one column: how many, in an order or not, and whether the first is for missing entries."""

    name: str
    size: int
    ordered: bool
    missing: bool


def axes(schema: Schema) -> list[Axis]:
    """Return the cells of every feature; numbers must have bins."""
    return [_axis(name, column) for name, column in schema.features.items()]


def _axis(name: str, column: Column) -> Axis:
    missing = column.missing == "own"
    if isinstance(column, Number):
        if not column.bins:
            raise ValueError(f"column {name!r} has no bins; they are to be declared or released first.")
        return Axis(name=name, size=len(column.bins) + 1 + missing, ordered=True, missing=missing)
    if isinstance(column, Text):
        raise ValueError(f"column {name!r} is text, which boosting does not read; use the model linear or mlp.")
    assert isinstance(column, Category) and column.values is not None
    return Axis(name=name, size=len(column.values) + column.other + missing, ordered=False, missing=missing)


def cells_of(compact: NDArray[np.float32], columns: Sequence[Axis]) -> Codes:
    """Return the cell of every entry of compact rows; missing entries, coded -1, are in the first cell."""
    shifts = np.array([axis.missing for axis in columns], dtype=np.int64)
    return compact.astype(np.int64) + shifts


class Cells:
    """The cells of all records, stored by column, and their targets; ``chunks`` are both, of some records each.

    ``weights``, from 0 to 1, are what records count for; without them all count for 1.
    """

    def __init__(
        self, columns: Sequence[Axis], count: int, chunks: Iterable[Chunk], weights: Array | None = None
    ) -> None:
        self.axes, self._count, self.weights = tuple(columns), count, weights
        if weights is not None and not ((weights >= 0) & (weights <= 1)).all():
            raise ValueError("a weight is not from 0 to 1; divide weights by their declared bound.")
        self._dtype = np.dtype(np.uint8 if max(axis.size for axis in columns) <= 256 else np.uint16)
        self._column = self._count * self._dtype.itemsize
        self._file = None
        self._stored: NDArray[np.unsignedinteger] | None = None
        if self._column * len(self.axes) <= _IN_MEMORY:
            self._stored = np.empty((len(self.axes), self._count), dtype=self._dtype)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it lives as long as the cells)
        first = 0
        for codes, wanted in chunks:
            if not first:
                kind = np.float32 if wanted.dtype.kind == "f" else np.int16
                self.targets: NDArray[np.generic] = np.empty(count, dtype=kind)
            self._put(first, codes.astype(self._dtype))
            self.targets[first : first + len(codes)] = wanted
            first += len(codes)

    @classmethod
    def of(cls, records: Records, columns: Sequence[Axis]) -> Cells:
        """Return the cells of a table's encoded rows."""
        slices = ((cells_of(rows.numpy(), columns), wanted.numpy()) for rows, wanted in records.slices())
        return cls(columns, len(records), slices)

    def __len__(self) -> int:
        return self._count

    def _put(self, first: int, codes: NDArray[np.generic]) -> None:
        if self._stored is not None:
            self._stored[:, first : first + len(codes)] = codes.T
            return
        assert self._file is not None
        for place in range(len(self.axes)):
            self._file.seek(place * self._column + first * self._dtype.itemsize)
            self._file.write(np.ascontiguousarray(codes[:, place]).tobytes())

    def weighted(self, here: slice, values: Array) -> Array:
        """Return the values of some records, each multiplied by what its record counts for: none becomes longer."""
        if self.weights is None:
            return values
        return values * self.weights[here].reshape(-1, *[1] * (values.ndim - 1))

    def chunks(self, *places: int) -> Iterator[tuple[slice, list[Codes]]]:
        """Read some columns of all records: where a chunk of them is, and the cells of each column there."""
        for first in range(0, self._count, _CHUNK):
            here = slice(first, min(first + _CHUNK, self._count))
            yield here, [self._read(place, here) for place in places]

    def _read(self, place: int, here: slice) -> Codes:
        if self._stored is not None:
            return self._stored[place, here].astype(np.int64)
        assert self._file is not None
        size = self._dtype.itemsize
        self._file.seek(place * self._column + here.start * size)
        data = self._file.read((here.stop - here.start) * size)
        return np.frombuffer(data, dtype=self._dtype).astype(np.int64)


def merged(axis: Axis, counts: Array, most: int) -> tuple[int, ...]:
    """Return the group of every cell: at most ``most`` of about equal counts, neighbours together; rare values too."""
    if axis.size <= most:
        return tuple(range(axis.size))
    if not axis.ordered:
        common = np.argsort(-counts, kind="stable")[: most - 1]
        groups = np.full(axis.size, most - 1)
        groups[np.sort(common)] = np.arange(most - 1)
        return tuple(groups.tolist())
    first = 1 if axis.missing else 0
    inner = counts[first:]
    below = (np.cumsum(inner) - inner / 2) / inner.sum()
    _, places = np.unique(np.floor(below * (most - first)), return_inverse=True)
    return tuple([0] * first + (places + first).tolist())


def add_sums(found: Array, flat: Codes, values: Array) -> None:
    for output in range(values.shape[1]):
        found[:, output] += np.bincount(flat, weights=values[:, output], minlength=len(found))
