"""Lots cut into physical batches, and the batches read from a data set.

How a lot is cut is a matter of memory only: the records are those of the lot, in order, each exactly once. An empty lot
is one empty batch, of the right shapes and types.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tacit.randomness import Integers

Collate = Callable[[list[Any]], Any]


def batches(indices: Integers, batch_size: int, *, least: int = 1) -> Iterator[Integers]:
    """Yield ``indices`` in pieces of at most ``batch_size``, then empty pieces until there are ``least``.

    >>> [piece.tolist() for piece in batches(np.array([5, 8, 9]), 2)]
    [[5, 8], [9]]
    >>> [piece.tolist() for piece in batches(np.array([], dtype=np.int64), 2)]
    [[]]
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number, at least 1.")
    for number in range(max(-(-len(indices) // batch_size), least)):
        yield indices[number * batch_size : (number + 1) * batch_size]


class LotReader:
    """Reads lots from a data set, batch by batch.

    The data set is a tensor, a `TensorDataset` (both indexed at once), or anything with a length and ``dataset[i]``
    (or ``__getitems__``, as Hugging Face data sets have); its examples are put together by ``collate_fn``. With
    ``num_workers``, reading happens in that many processes, which live as long as the reader and never read beyond the
    lot they were given: no record is drawn, or charged for, ahead of time. Random draws stay in this process.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        num_workers: int = 0,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
    ) -> None:
        next(batches(np.empty(0, dtype=np.int64), batch_size))  # checks batch_size
        self._dataset, self._batch_size, self._pin = dataset, batch_size, pin_memory
        self._tensors = _tensors_of(dataset) if collate_fn is None else None
        self._collate = _EmptyCollate(dataset, collate_fn or default_collate)
        self._current = _Current()
        self._kept: dict[int, Any] = {}
        """Records that `sample` has read, for the first batch that `read` gives."""
        self._loader: DataLoader[Any] | None = None
        if num_workers:
            self._loader = DataLoader(
                dataset,
                batch_sampler=self._current,
                num_workers=num_workers,
                collate_fn=self._collate,
                pin_memory=pin_memory,
                persistent_workers=True,
            )

    def read(self, indices: Integers, *, least: int = 1) -> Iterator[Any]:
        """The batches of the lot ``indices``, in order, and empty ones until there are ``least``."""
        pieces = list(batches(np.asarray(indices, dtype=np.int64), self._batch_size, least=least))
        if self._loader is not None:
            self._current.pieces = pieces
            yield from self._loader
            return
        for piece in pieces:
            yield self._fetch(piece)

    def sample(self, indices: Integers) -> Callable[[Sequence[int]], Any]:
        """Read a few records and return a function that makes batches of them, by their places in ``indices``.

        In this process, where `read` does not read them again: a record that a data set changes at random is the same
        in all these batches and in the lot's own.
        """
        if self._tensors is not None:
            return lambda places: self._fetch(indices[list(places)])
        examples = self._examples(indices.tolist())
        if len(examples) != len(indices):  # a data set that gives batches as they are, to a collate function of its own
            return lambda places: self._fetch(indices[list(places)])
        if self._loader is None:
            self._kept = dict(zip(indices.tolist(), examples, strict=True))

        def batch(places: Sequence[int]) -> Any:
            made = self._collate([_copied(examples[place]) for place in places])
            return _pin(made) if self._pin else made

        return batch

    def _examples(self, indices: list[int]) -> list[Any]:
        """Read records, but for those that `sample` has read."""
        kept, self._kept = self._kept, {}
        missing = [index for index in indices if index not in kept] if kept else indices
        if callable(getattr(self._dataset, "__getitems__", None)):
            found = list(self._dataset.__getitems__(missing)) if missing else []
        else:
            found = [self._dataset[index] for index in missing]
        if not kept:
            return found
        rest = iter(found)
        return [kept[index] if index in kept else next(rest) for index in indices]

    def _fetch(self, piece: Integers) -> Any:
        if self._tensors is not None:
            rows = torch.from_numpy(piece)
            picked = tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self._tensors)
            batch: Any = picked[0] if isinstance(self._dataset, torch.Tensor) else picked
        else:
            batch = self._collate(self._examples(piece.tolist()))
        return _pin(batch) if self._pin else batch


def _tensors_of(dataset: Any) -> Sequence[torch.Tensor] | None:
    if isinstance(dataset, torch.Tensor):
        return (dataset,)
    return dataset.tensors if type(dataset) is TensorDataset else None


def _copied(example: Any) -> Any:
    """An example that may be changed in place without changing the original: containers, tensors and arrays copied."""
    if isinstance(example, torch.Tensor):
        return example.clone()
    if isinstance(example, np.ndarray):
        return example.copy()
    if isinstance(example, MutableMapping):
        return _changed(example, _copied)
    if isinstance(example, list | tuple):
        parts = [_copied(value) for value in example]
        return type(example)(*parts) if hasattr(example, "_fields") else type(example)(parts)
    return example


class _Current:
    """A batch sampler that yields the batches of the lot being read."""

    def __init__(self) -> None:
        self.pieces: list[Integers] = []

    def __iter__(self) -> Iterator[list[int]]:
        return (piece.tolist() for piece in self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)


class _EmptyCollate:
    """Collates examples; an empty list gives the batch of the first example, cut to length zero."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, examples: list[Any]) -> Any:
        if examples:
            return self._collate(examples)
        if not len(self._dataset):
            raise ValueError("the data set is empty; an empty batch takes its shapes from the first example.")
        return _cut(self._collate([self._dataset[0]]))


def _cut(batch: Any) -> Any:
    """``batch`` without its records: every tensor, array or column of plain values cut to length zero."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return batch[:0]
    if isinstance(batch, MutableMapping):
        return _changed(batch, _cut)
    if isinstance(batch, list | tuple):
        if any(isinstance(value, str | bytes | int | float | None) for value in batch):
            return batch[:0]
        parts = [_cut(value) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    raise ValueError(
        f"collate_fn returned a {type(batch).__name__}; return tensors, or lists, tuples or dicts of them."
    )


def _pin(batch: Any) -> Any:
    """Return ``batch`` in pinned memory, from which a GPU can read while the host continues."""
    if callable(getattr(batch, "pin_memory", None)):
        return batch.pin_memory()
    if isinstance(batch, MutableMapping):
        return _changed(batch, _pin)
    if isinstance(batch, list | tuple):
        parts = [_pin(value) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _changed(batch: MutableMapping[Any, Any], change: Callable[[Any], Any]) -> MutableMapping[Any, Any]:
    """A copy of ``batch``, of the same type, with every value changed."""
    other = copy.copy(batch)
    for key, value in batch.items():
        other[key] = change(value)
    return other
