"""Where each example's entries live inside a tensor.

A tensor that depends on the batch carries one of four tags:

- `Layout`: every entry belongs to exactly one example, found from its position along one dimension;
- `Only`: every entry belongs to one and the same example, picked out of the batch;
- `Total`: a linear reduction over examples (a loss, or a batch mean used for logging);
- `Mixed`: entries that depend on several examples in any other way. No per-example gradient exists beyond this point.

A tensor without a tag is *shared*: it is the same for any batch (parameters, constants, functions of them).
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layout:
    """Entry j along `dim` belongs to example (j // inner) % batch, or to owner[j] when the order is irregular."""

    dim: int
    inner: int = 1
    owner: Tensor | None = field(default=None, compare=False)
    by_data: Literal["order", "count"] | None = field(default=None, compare=False)
    """True if data of the batch decided which example is where, or even how many rows each has."""

    def at(self, dim: int) -> Layout:
        return Layout(dim, self.inner, self.owner, self.by_data)

    def same_order(self, other: Layout) -> bool:
        if self.owner is None or other.owner is None:
            return self.owner is other.owner and self.inner == other.inner
        return self.owner is other.owner or torch.equal(self.owner, other.owner)


@dataclass(frozen=True, slots=True)
class Only:
    """Every entry belongs to this example: a row picked out of the batch, to be put back beside the others."""

    example: int
    by_data: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Total:
    """Σ_i or (1/batch)·Σ_i over examples of something linear in each."""

    kind: Literal["mean", "sum"]
    own: Callable[[], Tensor] | None = field(default=None, compare=False)
    """Computes each example's own share, [batch], of a sum over the whole batch (see `own_means`)."""
    last: int | None = None
    """The example whose loss completed a sum that a loop adds up; it may have more terms."""
    by_data: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Mixed:
    """Entries that depend on several examples; `reason` says where it happened and what to do instead.

    `foreign` are entries that may depend on examples of other batches, which one example alone does not make its own.
    """

    reason: str
    foreign: bool = False
    own: Callable[[], Tensor] | None = field(default=None, compare=False)
    """As for `Total`, of a function of such a sum."""
    added: frozenset[int] = frozenset()
    """The examples of an unfinished sum of own losses, which becomes a `Total` once it has all of them."""
    by_data: ClassVar[None] = None


Tag = Layout | Only | Total | Mixed


def same_everywhere(t: Tensor, dim: int) -> bool:
    """Return whether a constant has the same entries at every place along a dimension."""
    t = t.detach()
    return t.shape[dim] < 2 or not t.stride(dim) or torch.equal(t, t.narrow(dim, 0, 1).expand_as(t))


def steps_agree(owner: Tensor, sizes: Tensor) -> bool:
    """Return True if a packed sequence's rows belong to the examples of its first step, in order, at every step."""
    column = torch.cat([torch.arange(n) for n in sizes.tolist()]).to(owner.device)
    return owner.numel() == column.numel() and torch.equal(owner, owner[column])


def uneven(layout: Layout, batch: int) -> bool:
    """Return whether some examples have more entries along the layout's dimension than others."""
    if layout.owner is None:
        return False
    counts = torch.bincount(layout.owner, minlength=batch)
    return bool((counts != counts[0]).any())


def owners(layout: Layout, batch: int, size: int, device: torch.device | None = None) -> Tensor:
    """The example of every entry along the layout's dimension."""
    if layout.owner is not None:
        return layout.owner
    return torch.arange(size, device=device).div(layout.inner, rounding_mode="floor").remainder(batch)


def reshaped(layout: Layout, batch: int, old: Sequence[int], new: Sequence[int]) -> Layout | None:
    """The layout after a row-major reshape, or None where examples no longer lie along one dimension.

    With flat index (p·batch + b)·suffix + s a reshape changes neither p, b nor s, so it is enough to find the new
    dimension that contains the whole stride range [suffix, suffix·batch). One example alone may be said to lie along
    several: along the narrowest then, as it would beside others.
    """
    before, after = math.prod(old[: layout.dim]), math.prod(old[layout.dim + 1 :])
    size = old[layout.dim]
    if layout.owner is not None:
        return _regrouped(layout.owner, before, after, new)
    found: Layout | None = None
    for dim, width in enumerate(new):
        left, right = math.prod(new[:dim]), math.prod(new[dim + 1 :])
        prefix, suffix = before * (size // (batch * layout.inner)), after * layout.inner
        if left and right and prefix % left == 0 and suffix % right == 0:
            outer, inner = prefix // left, suffix // right
            if width != outer * batch * inner:
                continue
            if batch > 1:
                return Layout(dim, inner)
            if found is None or width < new[found.dim]:
                found = Layout(dim, inner)
    return found


def _regrouped(owner: Tensor, before: int, after: int, new: Sequence[int]) -> Layout | None:
    """Rows of an irregular layout after a reshape: where they are now, or else where each place is one example's."""
    places = [(dim, math.prod(new[:dim]), math.prod(new[dim + 1 :])) for dim in range(len(new))]
    places = [(dim, left, right) for dim, left, right in places if left and right and after]
    for dim, left, right in sorted(places, key=lambda place: place[1] != before or after % place[2] != 0):
        rows = owner.repeat(before)
        if after % right == 0:
            rows = rows.repeat_interleave(after // right)
        elif right % after == 0 and len(rows) % (right // after) == 0:
            several = rows.view(-1, right // after)
            if not same_everywhere(several, 1):
                continue
            rows = several[:, 0]
        else:
            continue
        rows = rows.view(left, new[dim])
        if same_everywhere(rows, 0):
            return Layout(dim, 1, rows[0])
    return None


def by_example(x: Tensor, layout: Layout, batch: int) -> Tensor:
    """View (or gather) `x` as [batch, entries per example along the layout's dimension, *other dimensions].

    Irregular layouts are padded with zero rows, which add nothing to any gradient contraction.
    """
    size = x.shape[layout.dim]
    if layout.owner is None:
        outer = size // (batch * layout.inner)
        x = x.unflatten(layout.dim, (outer, batch, layout.inner))  # type: ignore[no-untyped-call]
        if layout.dim or outer != 1:
            x = x.movedim((layout.dim + 1, layout.dim, layout.dim + 2), (0, 1, 2))
            return x.flatten(1, 2)
        return x.squeeze(0)
    rows = x.movedim(layout.dim, 0)
    order = torch.argsort(layout.owner, stable=True)
    owner = layout.owner[order]
    counts = torch.bincount(owner, minlength=batch)
    longest = int(counts.max()) if size else 0
    if x.is_floating_point():
        warn_of_lengths()
    position = torch.arange(size, device=owner.device) - (counts.cumsum(0) - counts)[owner]
    padded = rows.new_zeros((batch, longest, *rows.shape[1:]))
    return padded.index_put((owner, position), rows[order])


@functools.cache
def warn_of_lengths() -> None:
    """Warn once where lengths could differ. Whether they do is private: no budget was spent to log it."""
    log.warning(
        "examples can have different numbers of positions here (packed sequences, masks): how all of them are rounded "
        "would depend on the longest in a batch, which the margin in S does not cover; pad to a fixed length to have "
        "it proved"
    )


def select_examples(x: Tensor, layout: Layout, batch: int, lo: int, hi: int) -> Tensor:
    """The part of `x` that belongs to examples lo..hi-1, the layout's order kept."""
    if layout.owner is None and layout.inner * batch == x.shape[layout.dim]:
        return x.narrow(layout.dim, lo * layout.inner, (hi - lo) * layout.inner)
    owner = owners(layout, batch, x.shape[layout.dim], x.device)
    return x.index_select(layout.dim, ((owner >= lo) & (owner < hi)).nonzero().flatten())
