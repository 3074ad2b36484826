"""Means that divide by a count over the whole batch: `(loss * mask).sum() / mask.sum()`.

The divisor depends on all examples. Each example's own mean does not: such a quotient is taken as the mean over
examples of each one's own quotient, which is what one example alone would have, and the same where all have as many
entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed, Only, Total
from tacit.gradients.names import POINTWISE, words
from tacit.gradients.traced import Traced

_SCALING = words("mul div true_divide floor_divide remainder fmod")


def own_share(call: Call) -> Callable[[], Tensor] | None:
    """Return a function that computes each example's share of a sum over the batch, or of a function of one such sum.

    Known for a sum over all entries of the batch, several for each example, and for functions of that number and of
    Python's that need no gradient (a count with a lower limit). Not for a count that is multiplied or divided: by the
    number of examples, perhaps, with which each one's own mean would then grow.
    """
    (t, tag), *others = call.tagged
    if others or not isinstance(t, Tensor):
        return None
    if isinstance(tag, Layout):
        whole = call.name == "sum" and call.out.ndim == 0 and "dtype" not in call.kwargs
        several = t.numel() > call.batch  # the mean of a single entry would lose its weight
        return Share(t, tag, call.batch) if whole and several and tag.owner is None else None
    if isinstance(tag, Only) or tag.own is None or t.requires_grad or call.main() is not t:
        return None
    if call.name not in POINTWISE or call.name in _SCALING:
        return None
    of, rest = tag.own, call.args[1:]
    if call.name == "rsub":  # how many entries there are, less those that do not count: of each example its own
        if not isinstance(of, Share) or call.args[1:] != (of.x.numel(),):
            return None
        share, own = of, of.x.numel() // call.batch
        return lambda: own - share()
    if call.name in ("add", "sub") and any(type(v) is int and abs(v) > 1 for v in rest):
        return None  # the number of all entries, perhaps
    if any(isinstance(v, Tensor) for v in (*rest, *call.kwargs.values())) or not isinstance(call.out, Tensor):
        return None
    return lambda: call.func(of(), *rest, **call.kwargs)


@dataclass(frozen=True)
class Share:
    """Computes the sum over every example's entries, [batch]."""

    x: Tensor
    layout: Layout
    batch: int

    def __call__(self) -> Tensor:
        whole = self.x.movedim(self.layout.dim, 0)
        parts = whole.reshape(-1, self.batch, self.layout.inner, *whole.shape[1:]).transpose(0, 1)
        return parts.reshape(self.batch, -1).sum(1)


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
    counts = count._tag.own()
    return (total._tag.own() / torch.where(counts == 0, 1, counts)).mean()
