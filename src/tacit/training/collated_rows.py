"""Rows of collated batches: compare, cut and describe them, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Description = tuple[Any, ...]


class NotRows(Exception):
    """Raised for a batch that cannot be cut, because its records are not rows (packed sequences)."""


@dataclass(frozen=True)
class Rows:
    """The place of the records in a collated batch: ``each`` rows a record, along ``dim`` (None if it is not
    known)."""

    each: int = 1
    dim: int | None = 0

    def of(self, records: Sequence[int]) -> list[int]:
        """The rows of some records, by their places in the batch."""
        return [record * self.each + row for record in records for row in range(self.each)]

    def cut(self, batch: Any, size: int, records: Sequence[int]) -> Any:
        """Return the rows of ``records`` from a batch of ``size`` records; parts without a row for each record stay
        whole."""
        if self.dim is None:
            raise NotRows
        return self._cut(batch, size * self.each, self.of(records))

    def _cut(self, value: Any, count: int, rows: list[int]) -> Any:
        if isinstance(value, PackedSequence):
            raise NotRows
        if self._has_rows(value, count):
            return self._picked(value, rows)
        return _mapped(value, lambda part: self._cut(part, count, rows))

    def agree(self, whole: Any, size: int, part: Any, records: Sequence[int]) -> bool:
        """Return True if ``records`` have the same rows, shapes included, in a batch of ``size`` and in ``part``.

        Parts that cannot be compared (packed sequences, objects of the caller's own) count as the same.
        """
        if self.dim is None:
            return True
        return self._agree(whole, part, size * self.each, self.of(records))

    def _agree(self, whole: Any, part: Any, count: int, rows: list[int]) -> bool:
        if self._has_rows(whole, count) and self._has_rows(part, len(rows)):
            return _is_equal(self._picked(whole, rows), part)
        mine, others = list(_parts(whole)), list(_parts(part))
        if len(mine) != len(others):
            return False
        return all(self._agree(a, b, count, rows) for a, b in zip(mine, others, strict=True))

    def _has_rows(self, value: Any, count: int) -> bool:
        """Return True if a value has ``count`` rows; a list of tensors with so many rows each is a list of columns."""
        if isinstance(value, Tensor | np.ndarray):
            return value.ndim > (self.dim or 0) and value.shape[self.dim or 0] == count
        entries = isinstance(value, tuple) and all(isinstance(part, Tensor | np.ndarray | Mapping) for part in value)
        if not (isinstance(value, list) or entries) or len(value) != count:
            return False
        return not any(isinstance(part, Tensor | np.ndarray) and self._has_rows(part, count) for part in value)

    def _picked(self, value: Any, rows: list[int]) -> Any:
        if isinstance(value, Tensor):
            return value.index_select(self.dim or 0, torch.tensor(rows, device=value.device))
        if isinstance(value, np.ndarray):
            return value.take(rows, axis=self.dim or 0)
        return [value[row] for row in rows]


def describe(batch: Any) -> Description:
    """Return a key that differs between records: the number of entries, the shapes, and single numbers.

    To be sorted by: the longest record is last, and among records of one shape that with the largest label.
    """
    leaves = list(_leaves(batch))
    entries = sum(int(np.prod(leaf.shape)) for leaf in leaves)
    numbers = tuple(_number(leaf) for leaf in leaves if int(np.prod(leaf.shape)) == 1)
    return entries, tuple(tuple(leaf.shape) for leaf in leaves), numbers


def _number(leaf: Any) -> float:
    value = complex(leaf.item()).real
    return value if value == value else 0.0


def _leaves(value: Any) -> Iterator[Any]:
    """Return True for tensors and arrays of numbers; values of other kinds do not describe a record."""
    if isinstance(value, PackedSequence):
        yield value.data
    elif isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc"):
        yield value
    else:
        for part in _parts(value):
            yield from _leaves(part)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, PackedSequence):
        return iter(())
    if isinstance(value, Mapping):
        return iter(value.values())
    return iter(value) if isinstance(value, list | tuple) else iter(())


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the container with ``change`` applied to every part, and anything else as it is."""
    if isinstance(value, Mapping):
        pairs = {key: change(part) for key, part in value.items()}
        try:
            return type(value)(pairs)  # type: ignore[call-arg]
        except TypeError:
            return pairs
    if isinstance(value, list | tuple):
        parts = [change(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _is_equal(a: Any, b: Any) -> bool:
    """Return True if type, shape and values are equal; two NaN are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_is_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_is_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, str | bytes | int | float | bool) or a is None:
        return bool(a == b) or (a != a and b != b)
    return True
