"""Noise added to a sum, in place.

Formal guarantee: the sum gets independent noise of the given standard deviation (or scale) on every coordinate, from
the source, once. The noisy value is then rounded to a public grid, the largest power of two not above 2^-14 of the
noise: that is post-processing, adds a variance of less than 2^-31 of the noise's, and hides the low bits, in which a
floating-point sum of real noise tells too much about the true value (Mironov 2012). It is a defence, not a proof: the
guarantee assumes that floating-point noise, so rounded, is as good as real noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tacit.randomness import Source

_GRID_BITS = 14
_PIECE = 1 << 18


def add_gaussian_(total: torch.Tensor, std: float, source: Source) -> torch.Tensor:
    """Add N(0, std^2) to every coordinate of ``total``."""
    return _add_(total, std, source.normal_)


def add_laplace_(total: torch.Tensor, scale: float, source: Source) -> torch.Tensor:
    """Add Laplace noise of the given scale to every coordinate of ``total``."""
    return _add_(total, scale, source.laplace_)


def _add_(total: torch.Tensor, scale: float, draw_: Callable[[torch.Tensor, float], torch.Tensor]) -> torch.Tensor:
    if total.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the sum is {total.dtype}; sums are accumulated and released in float32 or float64.")
    if not 1e-20 < scale < 1e20:
        raise ValueError(f"the noise is {scale!r}; it must be between 1e-20 and 1e20: measure the sum in other units.")
    grid = 2.0 ** (math.floor(math.log2(scale)) - _GRID_BITS)
    with torch.no_grad():
        flat = total.view(-1) if total.is_contiguous() else total.reshape(-1)
        noise = torch.empty(min(flat.numel(), _PIECE), dtype=total.dtype)
        for piece in torch.split(flat, _PIECE):
            drawn = draw_(noise[: piece.numel()], scale)
            piece.add_(drawn.to(total.device)).div_(grid).round_().mul_(grid)
        return total if total.is_contiguous() else total.copy_(flat.view(total.shape))
