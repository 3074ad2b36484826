"""Means that divide by a count over the whole batch: `(loss * mask).sum() / mask.sum()`.

The divisor depends on all examples. Each example's own mean does not: such a quotient is taken as the mean over
examples of each one's own quotient, which is what one example alone would have, and the same where all have as many
entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed, Only, Total
from tacit.gradients.names import POINTWISE, words
from tacit.gradients.traced import Traced

_SCALING = words("mul div true_divide floor_divide remainder fmod")


def own_share(call: Call) -> Callable[[], Tensor] | None:
    """Return what computes each example's share of a sum over the batch, or of a function of one such sum.

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
        return (lambda: _each(t, tag, call.batch)) if whole and several and tag.owner is None else None
    if isinstance(tag, Only) or tag.own is None or t.requires_grad or call.main() is not t:
        return None
    if call.name not in POINTWISE or call.name in _SCALING:
        return None
    of, rest = tag.own, call.args[1:]
    if any(isinstance(v, Tensor) for v in (*rest, *call.kwargs.values())) or not isinstance(call.out, Tensor):
        return None
    return lambda: call.func(of(), *rest, **call.kwargs)


def _each(t: Tensor, layout: Layout, batch: int) -> Tensor:
    """Return the sum over every example's entries, [batch]."""
    whole = t.movedim(layout.dim, 0)
    return whole.reshape(-1, batch, layout.inner, *whole.shape[1:]).transpose(0, 1).reshape(batch, -1).sum(1)


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
