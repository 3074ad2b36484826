"""Noise multipliers in a composition: rounded down, so that those that differ in their last bits are one."""

from __future__ import annotations

import math

COARSE = 2e-13
"""A noise multiplier in a composition may be this part less than the true one: rounding, here and in the ratio."""


def inverse(ratio: float) -> float:
    """1 / ``ratio``; infinite noise where the ratio is too small for a double."""
    return 1 / ratio if ratio > 1e-300 else math.inf


def rounded_down(multiplier: float) -> float:
    """Return the multiplier to thirteen figures, never more than it is and less by at most `COARSE` of it.

    A clip norm that changes from step to step with its noise gives multipliers equal but for their last bits; so
    rounded they are one term, and cost one computation. Lower bounds are computed for `COARSE` more noise.
    """
    shrunk = multiplier * (1 - 2e-14)
    if not 1e-200 < shrunk < 1e200:
        return shrunk
    scale = 10.0 ** (13 - math.floor(math.log10(shrunk)))
    return min(math.floor(shrunk * scale) / scale, multiplier)
