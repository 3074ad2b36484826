"""Compare values that were computed beside other rows: they agree up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_TOLERANCE = {torch.float64: (1e-8, 1e-9), torch.float32: (1e-3, 1e-4)}
"""The relative difference of an entry, and of the largest one, that kernels for other numbers of rows may cause."""


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """How far results of ``dtype`` may be apart that were computed beside other rows: relative, and of the largest."""
    return _TOLERANCE.get(dtype, (3e-2, 3e-2))


def are_equal(penalties: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether penalties on the parameters have the same values, to the bit: nothing else went into them.

    A looser comparison would let pass a small penalty that is divided by the number of examples, and may grow.
    """
    if len(penalties) != len(others):
        return False
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(penalties, others, strict=True))


def is_same(a: Tensor, b: Tensor, *, coarsest: torch.dtype | None = None, by_row: bool = False) -> bool:
    """Return True if two tensors, or their rows, agree up to rounding in their type or in ``coarsest``."""
    if a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    relative, absolute = tolerance(coarsest or a.dtype)
    if torch.is_autocast_enabled(a.device.type):
        relative, absolute = tolerance(torch.bfloat16)
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = (t.cpu() if t.device.type == "mps" else t for t in (a, b))  # where there is no float64
    a, b = a.to(wide), b.to(wide)
    if torch.equal(a, b) or not a.numel():
        return True
    sizes, distance = a.abs().nan_to_num(0, 0, 0), (a - b).abs()
    largest = sizes.amax(1, keepdim=True) if by_row else sizes.max()
    near = distance.isfinite() & (distance <= absolute * largest + relative * b.abs())
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())
