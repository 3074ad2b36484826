"""Noise added to sums, in place.

Formal guarantee: each sum gets independent noise of its standard deviation (or scale) on every coordinate, from the
source, once. The noisy value is then rounded to a public grid, the largest power of two not above 2^-14 of the noise:
that is post-processing, adds a variance of less than 2^-31 of the noise's, and hides the low bits, in which a
floating-point sum of real noise tells too much about the true value (Mironov 2012). It is a defence, not a proof: the
guarantee assumes that floating-point noise, so rounded, is as good as real noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from tacit.randomness import Source

_GRID_BITS = 14
_PIECE = 1 << 18

Noisy = Sequence[tuple[torch.Tensor, float]]
"""Sums and the standard deviation (or scale) of the noise that each is to get."""


def add_gaussian_(sums: Noisy, source: Source) -> None:
    """Add N(0, std^2) to every coordinate of each sum, for pairs (sum, std)."""
    _add_(sums, source.normal_)


def add_laplace_(sums: Noisy, source: Source) -> None:
    """Add Laplace noise to every coordinate of each sum, for pairs (sum, scale)."""
    _add_(sums, source.laplace_)


def _add_(sums: Noisy, draw_: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for total, scale in sums:
        if total.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a sum is {total.dtype}; sums are accumulated and released in float32 or float64.")
        if not 1e-20 < scale < 1e20:
            raise ValueError(f"the noise is {scale!r}; it must be between 1e-20 and 1e20: change the units of the sum.")
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            mine = [(total, scale) for total, scale in sums if total.dtype == dtype]
            tape = _Tape(sum(total.numel() for total, _ in mine), dtype, draw_)
            for total, scale in mine:
                flat = total.reshape(-1)  # a view where it can be
                start = 0
                while start < flat.numel():
                    noise = tape.take(flat.numel() - start)
                    piece = flat[start : start + noise.numel()]
                    grid = 2.0 ** (math.floor(math.log2(scale)) - _GRID_BITS)
                    piece.add_(noise.to(total.device), alpha=scale).mul_(1 / grid).round_().mul_(grid)
                    start += noise.numel()
                if flat.data_ptr() != total.data_ptr():
                    total.copy_(flat.view(total.shape))


class _Tape:
    """``size`` standard noise values, drawn in large pieces and handed out in order, each once."""

    def __init__(self, size: int, dtype: torch.dtype, draw_: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._undrawn, self._draw_ = size, draw_
        self._buffer = torch.empty(min(size, _PIECE), dtype=dtype)
        self._drawn = self._buffer[:0]

    def take(self, most: int) -> torch.Tensor:
        """Between one and ``most`` values."""
        if not self._drawn.numel():
            self._drawn = self._draw_(self._buffer[: min(self._undrawn, _PIECE)])
            self._undrawn -= self._drawn.numel()
        taken, self._drawn = self._drawn[:most], self._drawn[most:]
        return taken
