"""Searches for the argument at which a monotone cost meets a target, from the side that does not exceed it."""

from __future__ import annotations

import math
from collections.abc import Callable


def largest(fits: Callable[[int], bool], low: int, high: int, what: str, epsilon: float) -> int:
    """Return the largest whole number in [low, high] that fits; ``fits`` is true up to some point and false beyond."""
    if not fits(low):
        raise ValueError(f"epsilon is {epsilon:g}; even a {what} of {low} costs more. Raise epsilon or the noise.")
    known, size = low, max(low, 16)
    while size < high and fits(size):
        known, size = size, size * 4
    if size >= high:
        if fits(high):
            return high
        size = high
    while size - known > 1:
        middle = (known + size) // 2 if size < 4 * known else math.isqrt(known * size)
        known, size = (middle, size) if fits(middle) else (known, middle)
    return known


def least_noise(epsilon_at: Callable[[float], float], target: float, guess: float) -> float:
    """Return the noise multiplier that spends ``target`` to within 0.1 %, never more; looked for from ``guess`` on."""
    if target <= 0:
        raise ValueError(f"epsilon is {target!r}; no finite noise gives 0.")

    def gap(z: float) -> float:
        try:
            return math.log(max(epsilon_at(z), 1e-12) / target)
        except ValueError:
            return math.inf  # no finite epsilon with so little noise

    low = high = guess
    over = under = gap(guess)
    move = 0.2
    while over <= 0 and low > 1e-4:
        high, under, low = low, over, low * math.exp(-move)
        over = gap(low)
        move = _onward(move, -under, -over)
    while under > 0:
        low, over, high = high, under, high * math.exp(move)
        if high > 1e9:
            raise ValueError(f"epsilon is {target:g}; no noise multiplier up to 1e9 reaches it.")
        under = gap(high)
        move = _onward(move, over, under)
    if over <= 0:
        return high
    # Illinois: regula falsi in log z, halving the weight of an end that stays.
    stayed, short = 0, under
    while short < -1e-3 and high / low > 1 + 1e-9:
        slope = over / (over - under) if math.isfinite(over) else 0.5
        middle = math.exp(math.log(low) + min(max(slope, 0.02), 0.98) * math.log(high / low))
        value = gap(middle)
        if value > 0:
            low, over = middle, value
            under, stayed = (under / 2 if stayed == 1 else under), 1
        else:
            high, under, short = middle, value, value
            over, stayed = (over / 2 if stayed == -1 else over), -1
    return high


def _onward(move: float, before: float, after: float) -> float:
    """How far to go on if ``move`` changed what is missing from ``before`` to ``after``: a little beyond zero."""
    if not 0 < after < before < math.inf:
        return 2 * move
    return min(1.2 * after / (before - after) + 0.05, 4.0) * move
