"""Means that divide by a count over the whole batch: `(loss * mask).sum() / mask.sum()`.

The divisor depends on all examples. Each example's own mean does not: such a quotient is taken as the mean over
examples of each one's own quotient, which is what one example alone would have, and the same where all have as many
entries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed, Only, Total
from tacit.gradients.names import POINTWISE, words
from tacit.gradients.traced import Traced, mark, plain

_SCALING = words("div true_divide floor_divide remainder fmod")


def own_share(call: Call) -> Callable[[], Tensor] | None:
    """Return a function that computes each example's share of a sum over the batch, or of a function of one such sum.

    Known for a sum or mean over all entries of the batch, and for functions of that number and of Python's that need no
    gradient (a count with a lower limit). Not for a count that is divided, or multiplied by the number of examples,
    with which each one's own mean would then grow. Not for weights of which examples have one each: the mean
    of a single entry would lose its weight.
    """
    (t, tag), *others = call.tagged
    if others or not isinstance(t, Tensor):
        return None
    if isinstance(tag, Layout):
        known = call.name == "sum" or (call.name == "mean" and tag.owner is None)
        whole = known and call.out.ndim == 0 and "dtype" not in call.kwargs
        several = (t.numel() > call.batch and tag.owner is None) or t.requires_grad
        return Share(t, tag, call.batch, counts=not several, mean=call.name == "mean") if whole else None
    if isinstance(tag, Only) or tag.own is None or t.requires_grad or call.main() is not t:
        return None
    if call.name not in POINTWISE or call.name in _SCALING:
        return None
    of, rest = tag.own, call.args[1:]
    share = of.share if isinstance(of, Function) else of
    if not isinstance(share, Share) or not isinstance(call.out, Tensor):
        return None
    if of is share and share.single and call.name != "rsub":
        return None
    if call.name == "rsub":  # how many entries there are, less those that do not count: of each example its own
        if of is not share or rest != (share.x.numel(),) or share.layout.owner is not None or share.mean:
            return None
        own = share.x.numel() // call.batch
        return Function(share, lambda: own - share())
    if call.name == "mul" and not _is_constant(rest, share):
        return None
    if call.name in ("add", "sub") and any(type(v) is int and abs(v) > 1 for v in rest):
        return None  # the number of all entries, perhaps
    if any(isinstance(v, Tensor) for v in (*rest, *call.kwargs.values())):
        return None
    return Function(share, lambda: call.func(of(), *rest, **call.kwargs))


def _is_constant(factor: tuple[Any, ...], share: Share) -> bool:
    """Return whether a count is multiplied by a number that is not the batch's: how many classes there are, say.

    A number that an earlier batch has shown not to be its own size stays known.
    """
    recorder = share.x._recorder if type(share.x) is Traced else None
    if recorder is None or len(factor) != 1 or type(factor[0]) is not int or share.layout.owner is not None:
        return False
    sizes = list(share.x.shape)
    sizes[share.layout.dim] //= share.batch
    products = {math.prod(some) for n in range(len(sizes) + 1) for some in itertools.combinations(sizes, n)}
    if factor[0] not in {share.batch * product for product in products}:
        recorder.factors.add(factor[0])
    return factor[0] in recorder.factors


class Weighted(Exception):
    """Entries that would count are weights."""


@dataclass(frozen=True)
class Share:
    """Computes the sum or mean over every example's entries, [batch]; what `counts` must be 0 or 1 everywhere."""

    x: Tensor
    layout: Layout
    batch: int
    counts: bool = False
    mean: bool = False

    @property
    def single(self) -> bool:
        """True if it counts examples that have one entry each: perhaps others than those whose losses are added up."""
        return self.counts and self.layout.owner is None

    def __call__(self) -> Tensor:
        if self.counts and bool(((plain(self.x) != 0) & (plain(self.x) != 1)).any()):
            raise Weighted
        if self.layout.owner is not None and type(self.x) is Traced:
            rows = plain(self.x).movedim(self.layout.dim, 0)
            rows = rows.reshape(len(rows), -1).sum(1)
            sums = rows.new_zeros(self.batch).index_add(0, self.layout.owner, rows)
            return mark(sums, self.x._recorder, Layout(0))
        whole = self.x.movedim(self.layout.dim, 0)
        parts = whole.reshape(-1, self.batch, self.layout.inner, *whole.shape[1:]).transpose(0, 1)
        parts = parts.reshape(self.batch, -1)
        return parts.mean(1) if self.mean else parts.sum(1)


@dataclass(frozen=True)
class Function:
    """Computes a function of such sums, [batch]."""

    share: Share
    compute: Callable[[], Tensor]

    def __call__(self) -> Tensor:
        return self.compute()


def mean_of_quotients(total: Any, count: Any) -> Tensor | None:
    """Return the mean over examples of each one's own `total / count`; None where that is not what is divided.

    An example without entries that count has a mean of zero.
    """
    if type(total) is not Traced or type(count) is not Traced or count.requires_grad or not total.requires_grad:
        return None
    if not isinstance(total._tag, Total) or not isinstance(count._tag, (Total, Mixed)):
        return None
    if total._tag.own is None or count._tag.own is None:
        return None
    if isinstance(count._tag.own, Share) and count._tag.own.single:
        return None
    try:
        counts = count._tag.own()
    except Weighted:
        return None
    return (total._tag.own() / torch.where(counts == 0, 1, counts)).mean()
