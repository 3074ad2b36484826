"""The Gaussian mechanism in closed form (Balle & Wang 2018): N(shift, 1) against N(0, 1)."""

from __future__ import annotations

import math
import sys

from scipy.special import log_ndtr

_EPS = sys.float_info.epsilon


def log_delta(shift: float, epsilon: float, sign: int = +1) -> float:
    """log of δ(ε) = Φ(shift/2 - ε/shift) - e^ε Φ(-shift/2 - ε/shift), where the two nearly cancel from above for
    ``sign`` +1 and from below for -1.
    """
    inside = float(log_ndtr(shift / 2 - epsilon / shift))
    other = float(log_ndtr(-shift / 2 - epsilon / shift))
    ratio = epsilon + other - inside - sign * 4 * _EPS * (abs(epsilon) + abs(other) + abs(inside))
    return inside + math.log(-math.expm1(ratio)) if ratio < 0 else -math.inf


def delta(shift: float, epsilon: float, sign: int = +1) -> float:
    return math.exp(log_delta(shift, epsilon, sign))


def epsilon(shift: float, delta: float, sign: int = +1) -> float:
    """The smallest ε ≥ 0 with δ(ε) <= delta, from above for ``sign`` +1: an end of a bisection to rounding.

    >>> round(epsilon(1.0, 1e-5), 6)
    4.377178
    """
    target = math.log(delta)
    if log_delta(shift, 0.0, sign) <= target:
        return 0.0
    low, high = 0.0, shift
    while log_delta(shift, high, sign) > target:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high) and high - low > 1e-14 * high:
        low, high = (middle, high) if log_delta(shift, middle, sign) > target else (low, middle)
    return high if sign > 0 else low
