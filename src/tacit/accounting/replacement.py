"""Sampling when one record is replaced by another: bounds on K(α) = (α - 1) D_α.

*Poisson.* With the replaced record out of the sample the answer is the same, N(c); with it in, it is N(a) or N(b).
Given which other records were drawn, the two answers are P = (1-q) R + q P' and Q = (1-q) R + q Q' with R = N(c),
P' = N(a), Q' = N(b), |a - c| and |b - c| at most one record's contribution, |a - b| at most two.

*Fixed size.* Draw b - 1 of the other n - 1 slots and one more of them; with probability q = b/n the lot is those b - 1
and the replaced slot, else it is those b. So again P = (1-q) R + q P' and so on, but R holds another record in the
place of the replaced one: all three are at most two contributions apart.

K is jointly quasi-convex, so what is given may be fixed at its worst. Two ways on from there, both proved:

1. `expansion` (Wang, Balle & Kasiviswanathan 2019). Exp K = E_Q[(P/Q)^α] and P - Q = q (P' - Q'), so for whole α
   exp K = 1 + Σ_j>=2 C(α, j) q^j E_Q[((P' - Q')/Q)^j]. Each |x|^j y^(1-j) is jointly convex, so the expectation is at
   most (1-q) E_R|(P'-Q')/R|^j + q E_Q'|(P'-Q')/Q'|^j.
2. `triangle` (Mironov 2017, Proposition 11): from P to Q by way of R, at the price of higher orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tacit.accounting.mixture import Array, log_binomials, log_expm1, log_sum

_EXACT = 64
_LEAST = 0.1
_SLACK = 1e-10


def expansion(rate: float, order: int, differences: Callable[[int], Array]) -> float:
    """K at a whole order; ``differences(order)`` bounds log E_Q|(P'-Q')/Q|^j for j = 2 .. order."""
    j, log_choose = log_binomials(order)
    return float(np.logaddexp(0.0, log_sum(log_choose + j * math.log(rate) + differences(order)))) * (1 + _SLACK)


def gaussian_differences(rate: float, noise: float, near: int) -> Callable[[int], Array]:
    """The bound for Gaussians: |a - b| <= 2, |a - c| and |b - c| <= ``near`` (1 or 2), noise ``noise`` times that unit.

    j = 2, exactly: E_R((P'-Q')/R)² = e^(A²) + e^(B²) - 2 e^(a·b), A = |a|, B = |b|, c = 0, in units of the noise, and
    a·b = (A² + B² - |a-b|²)/2. That grows with A, B and |a - b| while both A and B are at most 2, so
    A = B = near, |a - b| = 2 is the worst: 2 (e^(near²/z²) - e^((near²-2)/z²)).

    j > 2, the least of three. Write X_j(s) = E|r - 1|^j for a shift s, an f-divergence and so growing with s.
    (i) |P'-Q'|^j <= P'^j + Q'^j gives 2 E_R(P'/R)^j. (ii) Minkowski around R gives 2^j X_j(near).
    (iii) Where P' >= Q': if R >= Q' then the term is at most (P'-Q')^j Q'^(1-j), else at most (P'-R)^j R^(1-j); the
    same with P' and Q' swapped: 2 X_j(2) + 2 X_j(near) in all.
    """
    apart, close = noise / 2, noise / near
    z2 = noise * noise
    first = math.log(2) + (near * near - 2) / z2 + float(log_expm1(np.array([2 / z2]))[0])
    second = float(log_expm1(np.array([4 / z2]))[0])
    stay, move = math.log1p(-rate), math.log(rate)

    @lru_cache(maxsize=1)
    def known() -> tuple[Array, Array]:
        return _absolute_moments(apart), _absolute_moments(close)

    def differences(order: int) -> Array:
        j = np.arange(2, order + 1, dtype=np.float64)
        around = math.log(2) + j * (j - 1) / 2 / close / close
        across = np.logaddexp(0.0, j * (j - 1) / 2 / apart / apart)
        far_x, near_x = known()
        exact = min(len(j), len(far_x), len(near_x))
        far_x, near_x = far_x[:exact], near_x[:exact]
        across[:exact] = np.minimum(across[:exact], far_x)
        split = math.log(2) + np.logaddexp(far_x, near_x)
        around[:exact] = np.minimum(around[:exact], np.minimum(j[:exact] * math.log(2) + near_x, split))
        around[0], across[0] = first, second
        return np.asarray(np.logaddexp(stay + around, move + across))

    return differences


def _absolute_moments(noise: float) -> Array:
    """log X_j for j = 2 .. 64, X_j = E|r - 1|^j, r the ratio of N(1, z²) to N(0, z²) under the latter.

    Even j by the trapezoidal rule (an entire function that falls like a Gaussian); odd j from its neighbours, as the
    moments of |r - 1| are log-convex in j. With next to no noise nothing is computed; the caller has other bounds.
    """
    if noise < _LEAST:
        return np.empty(0)
    even = np.arange(2, _EXACT + 3, 2, dtype=np.float64)
    step = 0.2 * min(1.0, noise)
    low = -math.sqrt(_EXACT + 2) - 10
    grid = np.arange(low, (_EXACT + 2) / noise - low, step)
    log_ratio = grid / noise - 0.5 / noise / noise
    with np.errstate(divide="ignore"):
        size = np.where(log_ratio > 30, log_ratio, np.log(np.abs(np.expm1(np.minimum(log_ratio, 30.0)))))
    values = log_sum(even[:, None] * size - grid * grid / 2, axis=1) + math.log(step / math.sqrt(2 * math.pi))
    out = np.empty(_EXACT - 1)
    out[0::2] = values[:-1]
    out[1::2] = (values[:-1] + values[1:])[: out[1::2].size] / 2
    return out


def triangle(first: Callable[[Array], Array], second: Callable[[Array], Array], orders: Array) -> Array:
    """K_α(P ‖ Q) <= K_(aα)(P ‖ R) / a + K_(b(α-1)+1)(R ‖ Q) / b for 1/a + 1/b = 1 (Hölder), the best of a few a.

    ``first`` is K(P ‖ R), ``second`` K(R ‖ Q), each a function of the order.
    """
    best = np.full(len(orders), math.inf)
    for a in (1.5, 2.0, 3.0):
        b = a / (a - 1)
        best = np.minimum(best, first(a * orders) / a + second(b * (orders - 1) + 1) / b)
    return best


def never_worse(rate: float, whole: Array) -> Array:
    """exp K is jointly convex in the two distributions, so sampling gives at most 1 - q + q exp(K of the whole)."""
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + whole))


def chord(at: Callable[[int], float], orders: Array) -> Array:
    """K between whole orders from K at whole orders, by convexity; K(1) = 0."""
    known: dict[int, float] = {1: 0.0}
    out = np.empty(len(orders))
    for index, order in enumerate(orders):
        low = math.floor(order)
        part = float(order) - low
        for whole in (low, low + 1) if part else (low,):
            if whole not in known:
                known[whole] = at(whole)
        out[index] = known[low] + (part * (known[low + 1] - known[low]) if part else 0.0)
    return out
