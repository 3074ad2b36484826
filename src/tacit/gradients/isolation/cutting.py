"""Cut a module's arguments along the batch, and put its outputs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.gradients.isolation.divided import Divided
from tacit.gradients.layout import Layout, same_everywhere
from tacit.gradients.problems import CannotCut
from tacit.gradients.torch_internals import pytree
from tacit.gradients.traced import Traced, plain


@dataclass(frozen=True)
class Join:
    """How the examples' own values of one output become one value.

    ``rows`` are put together along ``dim``, in ``outer`` blocks of one entry each for every example. A scalar is the
    ``mean`` or ``sum`` of the examples' own. ``same`` is a value that no example changes; that is checked in every
    call. A cache of keys and values, which training does not use, is ``left out``.
    """

    kind: Literal["rows", "mean", "sum", "same", "left out"]
    dim: int = 0
    outer: int = 1

    def join(self, values: Sequence[Any]) -> Any:
        """Put the values of all examples together; scalars stay one for each example."""
        if self.kind != "rows":
            return torch.stack(list(values))
        if len({v.shape for v in values}) > 1:
            raise CannotCut("its outputs for single examples differ in shape")
        if self.outer == 1:
            return torch.cat(list(values), self.dim)
        blocks = [v.unflatten(self.dim, (self.outer, -1)) for v in values]
        return torch.stack(blocks, self.dim + 1).flatten(self.dim, self.dim + 2)


def cut(value: Any, batch: int) -> list[Any]:
    """Return one nested value for each example: its own rows of every tensor of the batch, constants as they are.

    The rows are copies with a graph that leads back to the batch.
    """
    leaves, tree = pytree.tree_flatten(value)
    columns = [_cut_leaf(leaf, batch) for leaf in leaves]
    return [pytree.tree_unflatten([column[i] for column in columns], tree) for i in range(batch)]


def _cut_leaf(leaf: Any, batch: int) -> Sequence[Any]:
    if type(leaf) is Traced:
        tag, bare = leaf._tag, plain(leaf)
        if batch == 1:
            return [bare.clone()]
        if not isinstance(tag, Layout) or tag.owner is not None:
            raise CannotCut("one of its inputs is not made of rows in the order of the examples")
        outer = bare.shape[tag.dim] // (batch * tag.inner)
        if outer == 1:
            pieces = torch.split(bare, tag.inner, tag.dim)
        else:
            blocks = bare.unflatten(tag.dim, (outer, batch, tag.inner)).unbind(tag.dim + 1)
            pieces = tuple(block.flatten(tag.dim, tag.dim + 1) for block in blocks)
        return [piece.clone() for piece in pieces]  # views of several outputs may not be written to in place
    if isinstance(leaf, Divided):
        return leaf.parts
    if isinstance(leaf, Tensor):
        return [_one_row(leaf, batch)] * batch
    if _holds_batch(leaf):
        raise CannotCut(f"tensors of the batch are inside an object of type {type(leaf).__name__}")
    return [leaf] * batch


def _one_row(constant: Tensor, batch: int) -> Tensor:
    """A constant that was expanded over the batch has one row for each example: take one of the equal rows."""
    if batch > 1 and constant.ndim and constant.shape[0] == batch and same_everywhere(constant, 0):
        return constant.narrow(0, 0, 1)
    return constant


def _holds_batch(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return type(value) is Traced
    if isinstance(value, (tuple, list, set)):
        return any(_holds_batch(v, depth) for v in value)
    if isinstance(value, dict):
        return any(_holds_batch(v, depth) for v in value.values())
    inside = getattr(value, "__dict__", None)
    if depth > 3 or not inside or isinstance(value, (nn.Module, type)) or callable(value):
        return False
    return any(_holds_batch(v, depth + 1) for v in inside.values())


def agreed(values: Sequence[Any]) -> Any:
    """Return the value that all examples have; raise if they differ, since one example's would become everybody's."""
    first = values[0]
    if isinstance(first, Tensor):
        if first.requires_grad or not all(isinstance(v, Tensor) and torch.equal(first, v) for v in values):
            raise CannotCut(_DIFFERS)
    elif not all(v is first or (isinstance(v, _SIMPLE) and type(v) is type(first) and v == first) for v in values):
        raise CannotCut(_DIFFERS)
    return first


_DIFFERS = (
    "an output that was the same for all examples of the first batch differs between them; return it as a tensor with "
    "a row for each example, or leave it out of the model's output"
)


_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
