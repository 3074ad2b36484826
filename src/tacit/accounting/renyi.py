"""Rényi divergence of each kind of term, as K(α) = (α - 1) D_α: an upper bound over all pairs of neighbours.

K is what adds up under composition, K(1) = 0, and for each pair of distributions K is convex in α (Hölder). So a bound
known at whole orders only gives one everywhere between by the chord (`chord`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.accounting import discrete
from tacit.accounting.composition import Base, Best, DiscreteGaussian, Gaussian, Laplace, Policy, Pure, Term, Unproved
from tacit.accounting.mixture import Array, log_binomials, log_expm1, log_moments, log_sum
from tacit.accounting.replacement import chord, expansion, gaussian_differences, never_worse, triangle
from tacit.accounting.tail import LEAST_NOISE, MOST_NOISE
from tacit.ledger.events import Adjacency

Curve = Callable[[Array], Array]


def curve(term: Term, adjacency: Adjacency, orders: Array) -> Array:
    """K at ``orders`` for every kind of term but `Best` (that is `tacit.accounting.selection`)."""
    base, rate = term.base, term.rate
    factor = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    if isinstance(base, Gaussian | DiscreteGaussian | Laplace) and base.noise_multiplier < LEAST_NOISE:
        return np.full_like(orders, math.inf)
    if isinstance(base, Gaussian):
        z = min(base.noise_multiplier, MOST_NOISE)
        if term.policy is Policy.ALWAYS:
            return gaussian(z / factor, orders)
        if term.policy is Policy.POISSON:
            return sampled_gaussian(rate, z, orders) if factor == 1 else _replaced_gaussian(rate, z, 1, orders)
        if term.policy is Policy.FIXED_SIZE and factor == 2:
            return _replaced_gaussian(rate, z, 2, orders)
    elif isinstance(base, DiscreteGaussian):
        z = min(base.noise_multiplier, MOST_NOISE)
        if term.policy is Policy.ALWAYS:
            return discrete.whole(z / factor, orders)
        if term.policy is Policy.POISSON:
            return discrete.sampled(rate, z, orders) if factor == 1 else discrete.replaced(rate, z, 1, orders)
        if term.policy is Policy.FIXED_SIZE and factor == 2:
            return discrete.replaced(rate, z, 2, orders)
    elif isinstance(base, Laplace):
        z = min(base.noise_multiplier, MOST_NOISE)
        if term.policy is Policy.ALWAYS:
            return laplace(z / factor, orders)
        if term.policy is Policy.POISSON:
            return sampled_laplace(rate, z, orders) if factor == 1 else _replaced_laplace(rate, z, orders)
        if term.policy is Policy.FIXED_SIZE and factor == 2:
            return _fixed_size_laplace(rate, z / 2, orders)
    elif isinstance(base, Pure) and term.policy is Policy.ALWAYS:
        return pure(base.epsilon, orders)
    raise Unproved(_refusal(base, term.policy, adjacency))


def _refusal(base: Base, policy: Policy, adjacency: Adjacency) -> str:
    kind = "selection" if isinstance(base, Best) else type(base).__name__
    return f"the rdp accountant has no proof for {kind} with {policy} sampling under {adjacency}."


def gaussian(noise: float, orders: Array) -> Array:
    """K = α (α - 1) / (2 z²), z the noise over the shift (Mironov 2017, Proposition 7)."""
    return np.asarray(orders * (orders - 1) / 2 / noise / noise)


def sampled_gaussian(rate: float, noise: float, orders: Array) -> Array:
    """Poisson sampling under add/remove: K = log A(α) of `tacit.accounting.mixture`, exact.

    With a record more the answer is the mixture μ, without it μ0. D_α(μ ‖ μ0) is never below D_α(μ0 ‖ μ) since the
    reflection x → 1 - x swaps μ0 and μ1 (Mironov, Talwar & Zhang 2019, Theorem 5), so one direction is enough.
    """
    return log_moments(rate, noise, orders)


def laplace(scale: float, orders: Array) -> Array:
    """K(s) = log((α e^((α-1)s) + (α-1) e^(-αs)) / (2α-1)), s = 1/scale (Mironov 2017, Proposition 6).

    Several coordinates: noise is independent, so K of a shift (s_1 .. s_d) is the sum of the K(s_i). K is a logarithm
    of a sum of exponentials, so convex in s, with K(0) = 0 and K'(0) = 0: it grows, and K(x) + K(y) <= K(x + y). The
    worst shift of L1 norm s is one coordinate moving by all of s, whatever the dimension.
    """
    a, s = np.asarray(orders, dtype=np.float64), 1 / scale
    up, down = (a - 1) * s, -a * s
    with np.errstate(over="ignore"):
        direct = np.log1p((a * np.expm1(np.minimum(up, 30.0)) + (a - 1) * np.expm1(down)) / (2 * a - 1))
    far = up + np.log(a / (2 * a - 1)) + np.log1p((a - 1) / a * np.exp(down - up))
    # The terms of first order cancel; a series where they would drown the rest.
    series = np.zeros_like(a)
    for k in range(2, 14):
        series += (a * up**k + (a - 1) * down**k) / (2 * a - 1) / math.factorial(k)
    near = np.abs(down) < 0.25
    return np.asarray(np.where(near, np.log1p(np.where(near, series, 0.0)), np.where(up > 30, far, direct)))


def sampled_laplace(rate: float, scale: float, orders: Array) -> Array:
    """Poisson sampling under add/remove, exact at whole orders for one coordinate, an upper bound otherwise.

    E[(1 - q + q r)^α] = Σ_k C(α, k) (1-q)^(α-k) q^k E[r^k] and E[r^k] = exp(K_k) with K_k as in `laplace`. As for the
    Gaussian a reflection swaps the two densities, for every shift, so the other direction is smaller.
    """

    def at(order: int) -> float:
        k, log_choose = log_binomials(order)
        weight = log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate)
        return float(np.logaddexp(0.0, log_sum(weight + log_expm1(laplace(scale, k)))))

    return chord(at, orders)


def pure(epsilon: float, orders: Array) -> Array:
    """The largest K of an ε-DP mechanism, that of randomised response (Bun & Steinke 2016, proof of Proposition 3.3).

    exp K = (e^(αε) + e^((1-α)ε)) / (1 + e^ε), written so that small ε loses nothing:
    exp K - 1 = (1 - e^(-(α-1)ε)) (e^(αε) - 1) / (1 + e^ε). It is never above Lemma C.1 of Abadi et al. 2016.
    """
    a = np.asarray(orders, dtype=np.float64)
    excess = np.log(-np.expm1(-(a - 1) * epsilon)) + log_expm1(a * epsilon) - np.logaddexp(0.0, epsilon)
    return np.asarray(np.logaddexp(0.0, excess))


def _replaced_gaussian(rate: float, noise: float, near: int, orders: Array) -> Array:
    """A sampled Gaussian sum under replace-one, for Poisson (near = 1) and fixed-size (near = 2) sampling.

    Both reduce to (1-q) N(c) + q N(a) against (1-q) N(c) + q N(b) with |a - b| <= 2, |a - c| and |b - c| <= ``near``
    (see `tacit.accounting.replacement`). Every bound there holds, so the least does.
    """
    differences = gaussian_differences(rate, noise, near)
    best = chord(lambda order: expansion(rate, order, differences), orders)
    best = np.minimum(best, never_worse(rate, gaussian(noise / 2, orders)))
    return np.minimum(
        best,
        triangle(
            lambda p: log_moments(rate, noise / near, p), lambda p: log_moments(rate, noise / near, 1 - p), orders
        ),
    )


def _replaced_laplace(rate: float, scale: float, orders: Array) -> Array:
    """By way of the data set without the record; at high orders, where that brings little, by convexity alone."""

    def one(p: Array) -> Array:
        return sampled_laplace(rate, scale, p)

    out = never_worse(rate, laplace(scale / 2, orders))
    low = orders <= 256
    out[low] = np.minimum(out[low], triangle(one, one, orders[low]))
    return out


def _fixed_size_laplace(rate: float, scale: float, orders: Array) -> Array:
    """The general bound of Wang, Balle & Kasiviswanathan 2019, Theorem 9; ``scale`` is in units of a replacement."""

    def differences(order: int) -> Array:
        j = np.arange(2, order + 1, dtype=np.float64)
        moments = laplace(scale, j)
        cap = np.minimum(math.log(2), j * log_expm1(np.full_like(j, 1 / scale)))
        out = moments + cap
        out[0] = min(out[0], math.log(4) + float(log_expm1(moments[:1])[0]))
        return np.asarray(out)

    best = chord(lambda order: expansion(rate, order, differences), orders)
    return np.minimum(best, never_worse(rate, laplace(scale, orders)))
