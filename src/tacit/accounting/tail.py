"""From Rényi divergence to (ε, δ) and back, and what counts as a permitted ε, δ or order."""

from __future__ import annotations

import math
import sys

import numpy as np

from tacit.accounting.mixture import Array

LEAST_ORDER = 1.001
MOST_ORDER = 65536.0
LEAST_DELTA = sys.float_info.min
# Below the least noise multiplier nothing is claimed, above the most no less than at it: squares stay in range.
LEAST_NOISE, MOST_NOISE = 1e-6, 1e8


def check_delta(delta: float) -> float:
    """δ as a float in (0, 1), or one sentence that says what is wrong with it."""
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; it must be in (0, 1).")
    return float(delta)


def check_epsilon(epsilon: float) -> float:
    """ε as a float in [0, ∞), or one sentence that says what is wrong with it."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon!r}; it must be a finite number, at least 0.")
    return float(epsilon)


def times(count: int, values: Array) -> Array:
    """``count`` steps of ``values`` each; a count beyond floating point has no bound."""
    return np.asarray(values * (float(count) if count < 10**300 else math.inf))


def finite(epsilon: float, name: str) -> float:
    """``epsilon``, or a ValueError when the accountant ran out of numbers: infinity is no guarantee."""
    if not math.isfinite(epsilon):
        raise ValueError(
            f"the {name} accountant finds no finite epsilon for this composition; use more noise or fewer steps."
        )
    return epsilon


def epsilons(orders: Array, divergences: Array, delta: float) -> Array:
    """ε at every order: (α, ρ)-RDP implies (ε, δ)-DP (Canonne, Kamath & Steinke 2020, Proposition 12).

    δ(ε) = E[(1 - exp(ε - Z))₊] for the privacy loss Z, and (1 - exp(-x))₊ <= exp((α-1) x) (1 - 1/α)^α / (α - 1) for
    every real x. So δ(ε) <= exp((α-1)(ρ-ε)) (1 - 1/α)^α / (α-1), for every real ε; solved for ε. δ(ε) falls with ε,
    hence a negative solution proves ε = 0. That too is proved when the total variation distance is at most δ, and it
    is at most sqrt(1 - exp(-ρ)) (Bretagnolle & Huber 1979, with KL <= ρ).
    """
    solved = divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    alike = np.sqrt(-np.expm1(-divergences)) <= delta
    return np.asarray(np.where(alike, 0.0, np.maximum(solved, 0.0)))


def deltas(orders: Array, divergences: Array, epsilon: float) -> Array:
    """δ at every order, never above 1 nor 0 by underflow; the two bounds of `epsilons` read the other way."""
    power = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    distance = np.sqrt(-np.expm1(-divergences))
    return np.maximum(np.minimum(np.exp(np.minimum(power, 0.0)), distance), LEAST_DELTA)
