"""The model's inputs: which of them hold the batch, along which dimension, and their tags."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tacit.gradients.isolation.divided import Divided, Split, divided
from tacit.gradients.layout import Layout
from tacit.gradients.listed import as_own_entries, divided_list, has_own_entries, is_list
from tacit.gradients.nested import rebuilt, tensors
from tacit.gradients.recording import Recording
from tacit.gradients.traced import Traced, mark

BatchDim = int | Mapping[str | int, int | None]
Dims = Mapping[str | int, int | None] | int
Fresh = tuple[Tensor, int, str | int]
"""A tensor that enters the model, the dimension of its examples, and its argument's name or position."""


_WHOLE = (Tensor, PackedSequence, Mapping, nn.Module, str, bytes, type, int, float, complex, type(None), np.ndarray)
"""Arguments that are never one object for the whole batch."""


def divisions(value: Any) -> list[Divided]:
    """Every argument that was divided, in nested arguments."""
    found, left = list[Divided](), [value]
    while left:
        each = left.pop()
        if isinstance(each, Divided):
            found.append(each)
        elif isinstance(each, (tuple, list)):
            left += each
        elif isinstance(each, dict):
            left += each.values()
    return found


class Inputs:
    """Tags the model's inputs. An example is `rows` consecutive entries along its dimension."""

    def __init__(
        self, model: nn.Module, recorder: Recording, batch_dim: BatchDim, rows: int, split: Split | None = None
    ) -> None:
        self._model, self._recorder, self._rows, self._split = model, recorder, rows, split
        recorder.rows = rows
        self._listed = set[tuple[Any, ...]]()
        """Places in the batch where a list has an entry for each example."""
        self._dims: Dims = batch_dim
        if isinstance(batch_dim, Mapping):
            positions = {name: i for i, name in enumerate(inspect.signature(model.forward).parameters)}
            self._dims = {**{positions[k]: d for k, d in batch_dim.items() if k in positions}, **batch_dim}

    def marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the batch's tensors tagged (aliases of them: the user's own stay as they are)."""
        fresh: list[Fresh] = []
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Tensor):
                args, kwargs = self._divide(args), self._divide(kwargs)
                break
        new_args, new_kwargs = list(args), dict(kwargs)
        for i, a in enumerate(args):
            new_args[i] = self._walk(a, self._dim_of(i), i, fresh)
        for k, v in kwargs.items():
            new_kwargs[k] = self._walk(v, self._dim_of(k), k, fresh)
        parts = divisions((args, kwargs))
        examples = {len(each.parts) for each in parts} if parts else set()
        if len(examples) == 1:
            self._recorder.begin(examples.pop(), [])
        followed = bool(parts) or any(map(self._recorder.follows, tensors((args, kwargs))))
        self._tag(fresh, (self._recorder.batch or 0) * self._rows if followed else None)
        return tuple(new_args), new_kwargs

    def _divide(self, value: Any) -> Any:
        """Divide the objects among some arguments that are one for the whole batch, and lists by example."""
        found = divided_list(value, self._recorder)
        if found is not None:
            return found
        if isinstance(value, (tuple, list)) and not isinstance(value, PackedSequence):
            return rebuilt(value, [self._divide(v) for v in value])
        if type(value) is dict:
            return {key: self._divide(v) for key, v in value.items()}
        if isinstance(value, _WHOLE) or (self._split is not None and not hasattr(value, "__dict__")):
            return value
        found = divided(value, self._split)
        return value if found is None else found

    def traced(self, batch: Any, size: int) -> Any:
        """A batch of `size` examples before it enters the model, with the tensors that have a row for each tagged.

        Only where the examples are first in every input; elsewhere a tensor's own shape does not tell.
        """
        if self._dims != 0:
            return batch
        fresh: list[Fresh] = []
        rows = size * self._rows
        if self._rows == 1 and size:
            batch = self._own_entries(batch, size)
        found = self._walk(batch, 0, 0, fresh)
        self._tag([each for each in fresh if each[0].shape[0] == rows])
        return found

    def _own_entries(self, value: Any, size: int, place: tuple[Any, ...] = ()) -> Any:
        """Tag the entries of lists inside the batch that have one for each example; the batch itself is no such list.

        A place where there was such a list has one in every batch.
        """
        known = place in self._listed and is_list(value, size)
        if place and (known or has_own_entries(value, size)):
            self._listed.add(place)
            self._recorder.begin(size, [])
            return as_own_entries(value, self._recorder)
        if isinstance(value, (tuple, list)):
            return rebuilt(value, [self._own_entries(v, size, (*place, i)) for i, v in enumerate(value)])
        if type(value) is dict:
            return {key: self._own_entries(v, size, (*place, key)) for key, v in value.items()}
        return value

    def _dim_of(self, key: str | int) -> int | None:
        return self._dims if isinstance(self._dims, int) else self._dims.get(key, self._dims.get("*", 0))

    def _walk(self, value: Any, dim: int | None, name: str | int, fresh: list[Fresh]) -> Any:
        if isinstance(value, PackedSequence):
            return self._packed(value)
        if isinstance(value, Tensor):
            if dim is None or value.ndim == 0 or self._recorder.follows(value):
                return value
            if type(value) is Traced:
                _refuse_stale(value, dim % value.ndim, self._rows)
            copy = value.as_subclass(torch.Tensor)
            copy = copy.view_as(copy) if copy is value else copy
            fresh.append((copy, dim % value.ndim, name))
            return copy
        if isinstance(value, (tuple, list)):
            return rebuilt(value, [self._walk(v, dim, name, fresh) for v in value])
        if isinstance(value, dict):
            keyed = isinstance(self._dims, Mapping)
            pairs = {
                k: self._walk(v, self._dim_of(k) if keyed and isinstance(k, str) else dim, str(k), fresh)
                for k, v in value.items()
            }
            try:
                return type(value)(pairs)
            except TypeError:
                return pairs
        return value

    def _tag(self, fresh: list[Fresh], rows: int | None = None) -> None:
        """Tag tensors, each along its dimension; ``rows`` is how many those have that are followed already."""
        sizes = set()
        for t, d, _ in fresh:
            sizes.add(t.shape[d])
        if len(sizes) > 1 or (rows is not None and not sizes <= {rows}):
            named = [(self._name(name), t, d) for t, d, name in fresh]
            shown = ", ".join(
                f"{n!r} ({t.dtype} of {t.ndim} dimensions, dimension {d})" for n, t, d in named
            )  # no sizes
            raise ValueError(
                f"the model's inputs do not agree on the number of examples: {shown}; declare which of them have no "
                f"examples (None), or where they are: batch_dim={{{named[-1][0]!r}: None}}, say, or {{'mask': 1}}"
            )
        if sizes:
            self._begin(sizes.pop(), [t for t, _, _ in fresh])
        for t, d, _ in fresh:
            mark(t, self._recorder, Layout(d, self._rows))
            t._entered = True  # type: ignore[attr-defined]

    def _name(self, key: str | int) -> str | int:
        """Return the name of a positional argument, if the model's forward has one for it."""
        names = list(inspect.signature(self._model.forward).parameters)
        return names[key] if isinstance(key, int) and key < len(names) else key

    def _begin(self, rows: int, inputs: list[Tensor]) -> None:
        if rows % self._rows:
            raise ValueError(
                f"the rows of the batch do not divide into records of rows_per_record={self._rows} rows each; let "
                "every record have as many rows"
            )
        self._recorder.begin(rows // self._rows, inputs)

    def _packed(self, packed: PackedSequence) -> PackedSequence:
        sizes = packed.batch_sizes
        sequences = int(sizes[0]) if sizes.numel() else 0
        self._begin(sequences, [packed.data])
        order = (
            packed.sorted_indices
            if packed.sorted_indices is not None
            else torch.arange(sequences, device=packed.data.device)
        )
        order = order.div(self._rows, rounding_mode="floor")
        if not sequences:
            sizes = sizes.new_zeros(1)  # recurrent layers read the first entry
        owner = torch.cat([order[:n] for n in sizes.tolist()])
        data = packed.data.view_as(packed.data)
        mark(data, self._recorder, Layout(0, 1, owner, by_data="count"))
        return PackedSequence(data, sizes, packed.sorted_indices, packed.unsorted_indices)


def _refuse_stale(value: Traced, dim: int, rows: int) -> None:
    """A tensor of another batch or engine enters as new examples only if a row of it is a record of its own."""
    tag, other = value._tag, value._recorder
    current = value._epoch == other.epoch and other.batch is not None
    whole = isinstance(tag, Layout) and tag.dim == dim and tag.owner is None and tag.inner == rows
    if value._entered or (whole and current and value.shape[dim] == (other.batch or 0) * rows):
        return
    raise ValueError(
        "a tensor that was computed from an earlier batch enters the model as a new one, and it is no longer known "
        "which examples its rows depend on; compute it from the current batch"
    )
