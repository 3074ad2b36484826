"""Pad sequences to a fixed length, so that a record's row does not depend on the other records of its batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

Key = str | int


class PadTo:
    """A collate function; made by `pad_to`."""

    def __init__(self, length: int, value: float | Mapping[Key, float], fields: Collection[Key] | None) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"length is {length!r}; it must be a whole number, at least 1.")
        self.length, self.value, self.fields = length, value, fields

    def __call__(self, examples: list[Any]) -> Any:
        """Collate examples, every sequence in them padded or cut to the length."""
        from torch.utils.data import default_collate

        return default_collate([self._example(example) for example in examples])

    def _example(self, example: Any) -> Any:
        if isinstance(example, Mapping):
            return {key: self._field(key, value) for key, value in example.items()}
        if isinstance(example, tuple) or (isinstance(example, list) and not _is_sequence(example)):
            return tuple(self._field(place, value) for place, value in enumerate(example))
        return self._field(0, example)

    def _field(self, key: Key, field: Any) -> Any:
        if not _is_sequence(field) or (self.fields is not None and key not in self.fields):
            return field
        import torch
        from torch.nn import functional as F

        empty = isinstance(field, list) and not field  # takes the others' type when it is stacked
        row = torch.as_tensor(np.zeros(0, np.int64) if empty else field)[: self.length]
        fill = self.value.get(key, 0) if isinstance(self.value, Mapping) else self.value
        return F.pad(row, (*(0, 0) * (row.ndim - 1), 0, self.length - len(row)), value=fill)


def _is_sequence(field: Any) -> bool:
    """Return True if a field has a first dimension: a tensor, an array, or a list of numbers (or of such lists)."""
    if not isinstance(field, list):
        return getattr(field, "ndim", 0) > 0
    numbers = all(isinstance(entry, int | float) for entry in field)
    return numbers or all(isinstance(entry, list) and _is_sequence(entry) for entry in field)


def pad_to(
    length: int, *, value: float | Mapping[Key, float] = 0, fields: Collection[Key] | None = None
) -> Callable[[list[Any]], Any]:
    """Return a collate function that pads every sequence to ``length`` entries, and cuts longer ones.

    An example is a sequence, a tuple or a dictionary; sequences are tensors, arrays or lists of numbers, of any number
    of dimensions, of which the first is padded. Everything else is collated as PyTorch does.

    * ``value`` fills the padding; a mapping gives one for each field, by its name or place: ``{"labels": -100}``.
    * ``fields`` names those that are padded, where others have a first dimension too (images).

    With a fixed length a record's row is made from that record alone, as private training needs it. Padded to the
    longest of the batch, a long record would change the rows, and with most models the gradients, of all others.

    >>> pad_to(3)([([5, 6], 1), ([7, 8, 9, 10], 0)])
    [tensor([[5, 6, 0],
            [7, 8, 9]]), tensor([1, 0])]
    """
    return PadTo(length, value, fields)
