"""Batch rules' decisions, remembered by everything that they depend on.

Most operations of a model come again in every batch with the same arguments. Where examples lie after an operation of
`REMEMBERED` follows from its name, its arguments other than tensors, the layouts, shapes and types of its tensors, and
the size of the batch, and from nothing else. A decision is found again only if all of these are the same: a model that
does something else in the next batch is decided about anew. Refusals are never remembered.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layout import Layout, Tag
from tacit.gradients.names import words
from tacit.gradients.traced import Traced

REMEMBERED = words(
    """
    view reshape flatten unflatten squeeze unsqueeze transpose permute t T mT movedim swapaxes expand select narrow
    getitem sum softmax log_softmax matmul bmm scaled_dot_product_attention contiguous cat stack
    """
)
"""Operations whose batch rules read shapes and layouts, never values, of tensors of the batch."""

MOST = 4096
"""Decisions that are kept; all are forgotten when there are more."""

_VALUES = (int, float, str, bool, type(None), type(...), torch.dtype, torch.Size)


def is_regular(tag: Any) -> bool:
    """Return whether a tag is a layout in the examples' own order, which data did not decide."""
    return type(tag) is Layout and tag.owner is None and not tag.by_data


def premises(
    name: str, batch: int | None, args: tuple[Any, ...], kwargs: dict[str, Any], tagged: list[tuple[Tensor, Tag]]
) -> Hashable | None:
    """Return all that a decision depends on; None where it depends on more than can be listed.

    A tensor that is not of the batch may be an index, whose values decide; the same tensor twice may be told apart from
    two that are alike. Neither is remembered, nor is anything about a tensor of another batch.
    """
    found: list[Any] = [name, batch, *kwargs]
    seen: set[int] = set()
    left = [*args, *kwargs.values()] if kwargs else list(args)
    left.reverse()
    while left:
        value = left.pop()
        kind = type(value)
        if kind is Traced:
            tag = value._tag
            if len(seen) == len(tagged) or tagged[len(seen)][1] is not tag or id(value) in seen:
                return None
            if not isinstance(tag, Layout) or not is_regular(tag):
                return None
            found += (tag.dim, tag.inner, value.shape, value.dtype)
            seen.add(id(value))
        elif kind in _VALUES:
            found += (kind, value)
        elif kind is tuple or kind is list:
            found += (kind, len(value))
            left.extend(reversed(value))
        elif kind is slice:
            found.append(slice)
            left += (value.step, value.stop, value.start)
        else:
            return None
    return tuple(found)
