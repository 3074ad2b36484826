"""Gradients that are zero in most places: looked-up rows, and slots of single examples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution, Dense, Rounding, precise, row_rounding, row_squares
from tacit.gradients.precision import BLOCKS, TOGETHER

SMALL = 1 << 12
"""Tables of so few entries have their gradients formed for every example: by the shape alone, which is public."""


def looked_up(index: Tensor, owner: Tensor, grads: Tensor, shape: torch.Size, batch: int) -> Contribution:
    """The gradients of rows that were looked up; of a small table for all its rows, to be measured with many others."""
    if shape.numel() > SMALL:
        return Rows(index, owner, grads, shape, batch)
    grads = precise(grads)
    each = grads.new_zeros((batch * shape[0], shape[1])).index_add_(0, owner * shape[0] + index, grads)
    return Dense(each.view(batch, *shape))


class Rows(Contribution):
    """Row lookups: G_i has grads[r] added to row index[r] for every r with owner[r] = i."""

    unsettled = True

    def __init__(self, index: Tensor, owner: Tensor, grads: Tensor, shape: Sequence[int], batch: int) -> None:
        self.index, self.owner, self.grads = index, owner, grads
        self.shape, self.batch = torch.Size(shape), batch

    def lookups(self) -> Tensor:
        """How many lookups each example made."""
        return self.owner.new_zeros(self.batch).index_add_(0, self.owner, torch.ones_like(self.owner))

    def settle(self) -> Rows:
        """Add up repeated lookups of the same row by the same example, so that no two entries overlap.

        In the order of examples and rows, whether or not anybody repeats a lookup: all are added up in this order.
        """
        key, place = _merged(self.owner * self.shape[0] + self.index)
        grads = precise(self.grads)
        merged = grads.new_zeros((key.numel(), grads.shape[1])).index_add_(0, place, grads)
        owner = torch.div(key, self.shape[0], rounding_mode="floor")
        return MergedRows(key - owner * self.shape[0], owner, merged, self.shape, self.batch)

    def squares(self) -> Tensor:
        return self.settle().squares()

    def instantiate(self, lo: int, hi: int) -> Tensor:
        out = precise(self.grads).new_zeros((hi - lo, *self.shape))
        mine = ((self.owner >= lo) & (self.owner < hi)).nonzero().flatten()
        return out.index_put_((self.owner[mine] - lo, self.index[mine]), precise(self.grads[mine]), accumulate=True)

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        """In float32 where no row can receive more than a block's worth of additions, one from each example."""
        if self.batch > BLOCKS[0]:
            super().assign(total, weights, positions)
        else:
            total.zero_().index_add_(0, self.index, self._weighted(weights).to(total.dtype))

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        total.index_add_(0, self.index, self._weighted(weights).double())

    def _weighted(self, weights: Tensor) -> Tensor:
        grads = precise(self.grads)
        return grads * weights.to(grads.dtype)[self.owner].unsqueeze(1)

    def without(self, bad: Tensor) -> Rows:
        good = (~bad[self.owner]).nonzero().flatten()
        return type(self)(self.index[good], self.owner[good], self.grads[good], self.shape, self.batch)


def _merged(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys in increasing order, and for every given key the one place among them where it is added up.

    How many different ones there are is a number of the batch, for which the host would have to wait: off the CPU a
    repeated key keeps its places, of which all but the first receive nothing.
    """
    if keys.is_cpu:
        distinct, place = torch.unique(keys, return_inverse=True)
        return distinct, place
    ordered, given = torch.sort(keys, stable=True)
    here = torch.arange(keys.numel(), device=keys.device)
    repeated = torch.zeros_like(keys, dtype=torch.bool)
    repeated[1:] = ordered[1:] == ordered[:-1]
    first = here.masked_fill(repeated, 0).cummax(0).values
    return ordered, torch.empty_like(given).index_copy_(0, given, first)


class MergedRows(Rows):
    """Rows in which every (example, row) pair has one entry that is not zero, so that squared norms add."""

    unsettled = False

    def settle(self) -> Rows:
        return self

    def squares(self) -> Tensor:
        """Added in float64: an example may have made any number of lookups."""
        each = row_squares(self.grads) if self.grads.numel() else self.grads.new_zeros(self.index.shape)
        total = torch.zeros(self.batch, dtype=torch.float64, device=each.device)
        return total.index_add_(0, self.owner, each.double()).to(each.dtype)

    def rounding(self) -> Rounding:
        return Rounding(relative=row_rounding(self.shape[1]) + 1)


def together(parts: Sequence[Rows]) -> Rows:
    """Several lookups in one table as one."""
    first = parts[0]
    index, owner = torch.cat([p.index for p in parts]), torch.cat([p.owner for p in parts])
    return Rows(index, owner, torch.cat([precise(p.grads) for p in parts]), first.shape, first.batch).settle()


class Diagonal(Contribution):
    """A shared tensor that holds one slice per example: G_i is zero outside example i's slice."""

    def __init__(self, grads: Tensor, dim: int, owner: Tensor, batch: int) -> None:
        self.grads, self.dim, self.owner = grads, dim, owner
        self.shape, self.batch = grads.shape, batch

    def _mask(self, of: Tensor) -> Tensor:
        shape = [1] * self.grads.ndim
        shape[self.dim] = -1
        return of.view(shape)

    def squares(self) -> Tensor:
        each = row_squares(precise(self.grads).movedim(self.dim, 0))
        total = torch.zeros(self.batch, dtype=torch.float64, device=each.device)
        return total.index_add_(0, self.owner, each.double()).to(each.dtype)

    def instantiate(self, lo: int, hi: int) -> Tensor:
        grads = precise(self.grads)
        return torch.stack([grads.masked_fill(self._mask(self.owner != i), 0) for i in range(lo, hi)])

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        total.copy_(self._weighted(weights))

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        total += self._weighted(weights)

    def _weighted(self, weights: Tensor) -> Tensor:
        grads = precise(self.grads)
        return grads * self._mask(weights.to(grads.dtype)[self.owner])

    def without(self, bad: Tensor) -> Diagonal:
        return Diagonal(self.grads.masked_fill(self._mask(bad[self.owner]), 0), self.dim, self.owner, self.batch)
