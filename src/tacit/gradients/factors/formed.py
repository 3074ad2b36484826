"""Small gradients of linear maps at many positions, formed for all examples by one product as they arrive."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.gradients.factors.contribution import Dense
from tacit.gradients.factors.outer import AT_ONCE, NARROW, Outer

MOST_ADDED = 4
"""Fewer positions of zeros than this are added."""


def formed_at_once(a: Tensor, g: Tensor) -> Dense | None:
    """Return Σ_t g[i,t,:] ⊗ a[i,t,:] for every example; None where `Outer` has to be asked what to do with it.

    Zeros are added as further positions where that lets the matrices of all examples begin at like places in memory:
    a batched product may round by where a matrix begins, and a record's gradient must not depend on its place.
    """
    if a.dtype is not torch.float32 or g.dtype is not torch.float32 or not g.is_cpu:
        return None
    more, turned = _at_once(a.shape[1], a.shape[2], g.shape[2])
    if more is None:
        return None
    if more:
        a, g = F.pad(a, (0, 0, 0, more)), F.pad(g, (0, 0, 0, more))
    if turned:
        return Dense(torch.bmm(a.transpose(1, 2), g).transpose(1, 2))
    return Dense(torch.bmm(g.transpose(1, 2), a))


@functools.lru_cache(1024)
def _at_once(positions: int, width_in: int, width_out: int) -> tuple[int | None, bool]:
    """Return how many positions of zeros are added, None where nothing is formed at once, and whether it is turned.

    By the shapes alone, which are public.
    """
    first = _outer(positions, width_in, width_out)
    if positions > 1 and first.size <= 2 * first.factor_numel() and first.bytes_each <= AT_ONCE:
        for more in range(MOST_ADDED):
            if _outer(positions + more, width_in, width_out).alike():
                return more, first.turned(NARROW)
    return None, False


def _outer(positions: int, width_in: int, width_out: int) -> Outer:
    """Return one example's."""
    a, g = torch.empty(1, 1, positions, width_in), torch.empty(1, 1, positions, width_out)
    return Outer(a, g, (width_out, width_in))
