"""Lists with one entry for each example: the boxes of an image, texts of several lengths, images of several sizes.

No tensor in such a list has the batch as a dimension, so none of them can be followed as rows. Each entry belongs to
one example, and a model that is given the list runs one example at a time, on a list of one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.isolation.divided import Divided
from tacit.gradients.layout import Only
from tacit.gradients.nested import mapped, rebuilt, tensors
from tacit.gradients.recording import Recording
from tacit.gradients.traced import Traced, mark, plain


def has_own_entries(value: Any, size: int) -> bool:
    """Return whether a list has an entry for each of `size` examples, and not several tensors with a row for each.

    Entries that are dicts are examples. Of a list of tensors it shows as soon as one has another number of rows.
    """
    if not is_list(value, size):
        return False
    inside = tensors(value)
    keyed = all(isinstance(entry, dict) for entry in value)
    return bool(inside) and (keyed or any(t.ndim == 0 or t.shape[0] != size for t in inside))


def is_list(value: Any, size: int) -> bool:
    """Return whether a value is a list or tuple of this length."""
    return isinstance(value, (tuple, list)) and len(value) == size and not hasattr(value, "_fields")


def as_own_entries(value: Any, recorder: Recording) -> Any:
    """Return such a list with the tensors of entry i tagged as example i's (aliases of them)."""

    def owned(entry: Any, example: int) -> Any:
        def alias(t: Tensor) -> Tensor:
            copy = t.as_subclass(torch.Tensor)
            copy = mark(copy.view_as(copy), recorder, Only(example))
            copy._entered = True  # type: ignore[attr-defined]
            return copy

        return mapped(entry, alias)

    return rebuilt(value, [owned(entry, i) for i, entry in enumerate(value)])


def divided_list(value: Any, recorder: Recording) -> Divided | None:
    """Return the entries of a list in which the i-th is example i's alone; None if it is no such list."""
    if not recorder.batch or not is_list(value, recorder.batch):
        return None
    for i, entry in enumerate(value):
        followed = [t._tag for t in tensors(entry) if recorder.follows(t) and isinstance(t, Traced)]
        if not followed or any(tag != Only(i) for tag in followed):
            return None
    whole = plain(value)
    return Divided(whole, [rebuilt(whole, [entry]) for entry in whole], mergeable=True)
