"""Moments of the likelihood ratio of a sampled Gaussian: the one integral under the moments and Rényi accountants.

A record takes part with probability q and then moves the sum by one unit; the noise has standard deviation z. With
r(t) = exp(t/z - 1/(2 z²)), the ratio of the shifted to the unshifted density at noise t·z, and t standard normal,

    A(p) = E[(1 - q + q r(t))^p].

A(λ + 1) and A(-λ) are E2 and E1 of Abadi et al. 2016, equations 3 and 4; log A(α)/(α - 1) and log A(1 - α)/(α - 1)
are the two Rényi divergences of order α.

How it is computed. E[r] = 1, so A(p) - 1 = E[(1 + u)^p - 1 - p u] with u = q (r - 1). For p outside [0, 1] that
integrand is never negative: sums do not cancel, however small q is, and dropping tails only ever loses a part that is
bounded below. The integrand is analytic for |Im t| < π z, so the trapezoidal rule converges geometrically: with step h
its error is at most 2 M / (exp(2π d / h) - 1), M the largest integral of |integrand| along a line |Im t| <= d
(Trefethen & Weideman 2014, Theorem 5.1). On such a line |phi| grows by exp(d²/2), and with θ = d / z

    cos(θ/2) (1 - s + s r) <= |1 - s + s r exp(iθ)| <= 1 - s + s r        for every s in [0, 1],

so M exceeds the real integral by no more than exp(d²/2) cos(θ/2)^(-n), n = max(0, 2 - p), times what |r exp(iθ) - 1|²
adds to (r - 1)² (a factor of the order 1 + 4 z²). `_step` picks h so that the bound is below exp(-40). The tails beyond
`_WIDTH` standard deviations of the outermost mode hold less than 1e-18 of the mass, because the logarithm of the
integrand is there at least as curved as that of a Gaussian. What is left is rounding, covered by `_SLACK`; the tests
compare with 50-digit arithmetic.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_WIDTH = 9.5
_SLACK = 1e-12
_FRACTIONS = 64.0
_MOST_NOISE = 1e8
_MOST_POINTS = 1 << 14


def log_moments(rate: float, noise: float, orders: Array) -> Array:
    """log A(p) for every p in ``orders`` (each above 1 or below 0), rounded up.

    ``rate`` is q in (0, 1], ``noise`` is z > 0, the noise over the shift. At q = 1 the closed form p (p - 1) / (2 z²).
    Above order 64 only whole orders are computed; between two of them the chord is used, which lies above log A
    because log A is convex in p (Hölder). More noise than 1e8 counts as 1e8, which costs more.
    """
    p = np.asarray(orders, dtype=np.float64)
    noise = min(noise, _MOST_NOISE)
    if rate == 1.0:
        return np.asarray(p * (p - 1) / 2 / noise / noise)
    out = np.empty_like(p)
    sums = (p > _FRACTIONS) | ((p > 16) & (p == np.floor(p)) & (p / noise > 8))
    for index in np.flatnonzero(sums):
        whole = math.floor(p[index])
        part = float(p[index]) - whole
        out[index] = (1 - part) * _binomial(rate, noise, whole)
        if part:
            out[index] += part * _binomial(rate, noise, whole + 1)
    rest = np.flatnonzero(~sums)
    if rest.size:
        out[rest] = _integrate(rate, noise, p[rest])
    return out * (1 + _SLACK)


def _binomial(rate: float, noise: float, order: int) -> float:
    """log A at a whole order: A - 1 = sum_k C(p, k) q^k (1-q)^(p-k) (exp(k (k-1) / (2 z²)) - 1), all terms positive."""
    k, log_choose = log_binomials(order)
    weight = log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate)
    return float(np.logaddexp(0.0, log_sum(weight + log_expm1(k * (k - 1) / 2 / noise / noise))))


@lru_cache(maxsize=256)
def log_binomials(order: int) -> tuple[Array, Array]:
    """k = 2 .. order and log C(order, k)."""
    k = np.arange(2, order + 1, dtype=np.float64)
    log_choose = np.asarray(math.log(order) + np.cumsum(np.log((order - k + 1) / k)))
    k.setflags(write=False)
    log_choose.setflags(write=False)
    return k, log_choose


def _integrate(rate: float, noise: float, p: Array) -> Array:
    step = _step(noise, p)
    start = _lowest_mode(rate, noise, np.minimum(p - 2, 0.0)) - _WIDTH
    points = np.ceil((np.maximum(p, 2.0) / noise + _WIDTH - start) / step) + 1
    # With next to no noise: x^p is convex, so A(p) <= 1 - q + q E[r^p]; and r >= 0 gives A(p) <= (1-q)^p for p < 0.
    convex = np.logaddexp(math.log1p(-rate), math.log(rate) + p * (p - 1) / 2 / noise / noise)
    out = np.where(p < 0, np.minimum(convex, p * math.log1p(-rate)), convex)
    sizes = np.where(points <= _MOST_POINTS, np.ceil(2 * np.log2(points)), 0)
    for size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == size)
        block = max(1, int(4e6 // points[rows].max()))
        for begin in range(0, rows.size, block):
            part = rows[begin : begin + block]
            grid = np.arange(points[part].max()) * step[part, None] + start[part, None]
            log_ratio = grid / noise - 0.5 / noise / noise
            terms = _log_excess(log_mixture(rate, log_ratio), p[part, None]) - grid * grid / 2
            total = log_sum(terms, axis=1) + np.log(step[part] / math.sqrt(2 * math.pi))
            out[part] = np.logaddexp(0.0, total)
    return out


def _step(noise: float, p: Array) -> Array:
    """A step whose discretisation error is below exp(-40) of the integral; see the module's text."""
    powers = np.maximum(0.0, 2 - p)
    digits = 40 + math.log1p(4 * noise * noise)
    strip = np.sqrt(digits / (0.5 + powers / (8 * noise * noise)))
    strip = np.minimum(strip, np.where(powers > 0, 0.9, 1.0) * math.pi * noise)
    growth = strip * strip / 2 - powers * np.log(np.cos(np.minimum(strip / (2 * noise), 1.5)))
    return np.asarray(2 * math.pi * strip / (digits + growth))


def _lowest_mode(rate: float, noise: float, p: Array) -> Array:
    """At or left of the mode of phi(t) (1 + u)^p for p <= 0: there -t + p s(t) / z = 0, s the chance of taking part."""
    low, high = p / noise, np.zeros_like(p)
    if float(p.min()) > -1:
        return low
    bias = math.log(rate) - math.log1p(-rate) - 0.5 / noise / noise
    for _ in range(20):
        middle = (low + high) / 2
        posterior = 0.5 * (1 + np.tanh((middle / noise + bias) / 2))
        left = -middle + p * posterior / noise > 0
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return low


def log_mixture(rate: float | Array, log_ratio: Array) -> Array:
    """log(1 - q + q exp(x)) to full relative precision, also where it is close to 0."""
    large = log_ratio > 30
    out = np.log1p(rate * np.expm1(np.minimum(log_ratio, 30.0)))
    if large.any():
        far = np.log(rate) + log_ratio + np.log1p((1 - rate) / rate * np.exp(-np.maximum(log_ratio, 30.0)))
        out = np.where(large, far, out)
    if np.any(np.greater(rate, 0.5)):
        # 1 - q + q exp(x) is a sum of two positive numbers; 1 + q (exp(x) - 1) is not.
        low = np.log((1 - rate) + rate * np.exp(np.minimum(log_ratio, 0.0)))
        out = np.where((log_ratio < -1) & np.greater(rate, 0.5), low, out)
    return np.asarray(out)


def _log_excess(x: Array, p: Array) -> Array:
    """log(exp(p x) - 1 - p (exp(x) - 1)), which is never negative inside the logarithm for p outside [0, 1]."""
    y = p * x
    small = (np.abs(y) < 0.1) & (np.abs(x) < 0.1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # Same sign: exp(y) times a bracket whose exponentials are at most 1.
        fall = -(p - 1) * x
        same = y + np.log(-np.expm1(fall) + (p - 1) * np.exp(fall) * np.expm1(-x))
        # Opposite sign: exp(y) is at most 1 and the rest is positive.
        clipped = np.minimum(x, 30.0)
        other = np.where(x > 30, np.log(np.abs(p)) + x, np.log(np.expm1(np.minimum(y, 0.0)) - p * np.expm1(clipped)))
        out = np.where(y > 0, same, other)
        if small.any():
            # sum over k >= 2 of (p^k - p) x^k / k!, with x² taken out so that nothing underflows.
            tail = np.zeros_like(y)
            of_y, of_x = np.ones_like(y), np.ones_like(y)
            for k in range(2, 11):
                tail += (p * p * of_y - p * of_x) / math.factorial(k)
                of_y, of_x = of_y * y, of_x * x
            series = 2 * np.log(np.abs(x)) + np.log(np.abs(tail))
            out = np.where(small, series, out)
    return np.asarray(np.where(np.isnan(out), -np.inf, out))


def log_sum(terms: Array, axis: int = -1) -> Array:
    """log of the sum of exponentials."""
    top = np.max(terms, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(terms - top), axis=axis)) + np.squeeze(top, axis=axis))


def log_expm1(x: Array) -> Array:
    """log(exp(x) - 1) for x > 0 without overflow."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(x > 30, x, np.log(np.expm1(np.minimum(x, 30.0)))))
