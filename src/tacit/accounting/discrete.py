"""Rényi divergences of the discrete Gaussian: K(α) = (α - 1) D_α for a sum on a lattice, sampled and not.

The noise on coordinate i is N_Z(0, σ_i²), independent, in steps of its own lattice; a record moves the sum by a vector
v of whole numbers. With Q the noise and P the noise moved by v, and z^-2 the largest possible Σ_i v_i²/σ_i²:

1. *Without sampling* K(α) <= α (α - 1) / (2z²) for every α > 1, as for the Gaussian. On one coordinate
   E_Q[(P/Q)^α] = exp(α (α-1) v²/(2σ²)) · Σ_x exp(-(x - αv)²/(2σ²)) / Σ_x exp(-x²/(2σ²)), and the quotient is at most 1:
   by Poisson summation Σ_x exp(-(x-a)²/(2σ²)) = Σ_k c_k cos(2πka) with all c_k > 0, which is largest at a = 0 (Canonne,
   Kamath & Steinke 2020, Proposition 5 and Lemma 6). Where α is whole, αv is, and the quotient is exactly 1.
   Coordinates multiply.

2. *Poisson sampling, with the record against without*, M = (1-q) Q + q P. For whole α
   E_Q[(M/Q)^α] = Σ_k C(α, k) (1-q)^(α-k) q^k E_Q[(P/Q)^k], every factor positive, and by 1. every moment is at most (in
   fact exactly) that of a Gaussian: the Gaussian's K at whole orders. Between whole orders K is below its chord (K is
   convex in α for each pair of distributions, K(1) = 0). The Gaussian's own values there are smaller, and not proved.

3. *Without the record against with it* costs no more, for every α > 1 (Mironov, Talwar & Zhang 2019, Theorem 5, whose
   proof is for densities; here it is again for any measure). The map x → v - x is a bijection of the lattice, its own
   inverse, and exchanges P and Q, so it turns r = P/Q into 1/r and E_Q[g(r)] = E_Q[g(r) + r g(1/r)] / 2. With
   p = 1 - q, a = p + q r, b = p + q/r and f(x) = x^α - x^(1-α) the claim E_Q[a^α] >= E_Q[a^(1-α)] follows from
   f(a) + r f(b) >= 0. Let r >= 1 (else exchange the two). With c = 1/b, f(b) = -f(c)/c, r/c = p r + q, and
   a - 1 = q (r - 1) = (p r + q)(c - 1); a >= c >= 1 because a b = 1 + p q (r + 1/r - 2). f(x)/(x - 1) =
   sinh((2α-1) y)/sinh(y) with y = log(x)/2 grows with x, so f(a) >= (p r + q) f(c) = -r f(b).

4. *One record replaced* reduces to (1-q) R + q P' against (1-q) R + q Q' (`tacit.accounting.replacement`, where nothing
   but the last step is about Gaussians). What is used of the distributions are the moments of 1. alone.

All four hold as they are when some coordinates have Gaussian noise instead: of that only the same moments and the same
reflection are used.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.accounting.mixture import Array, log_expm1, log_moments
from tacit.accounting.replacement import chord, expansion, never_worse, triangle

_MOST_TRIANGLE = 256.0  # at higher orders the way by a third distribution brings little and costs time


def whole(noise: float, orders: Array) -> Array:
    """Every record takes part: 1. above."""
    return np.asarray(orders * (orders - 1) / 2 / noise / noise)


def sampled(rate: float, noise: float, orders: Array) -> Array:
    """Poisson sampling under add/remove: 2. and 3. above. Only whole orders of the Gaussian's moments are used."""
    ends = np.unique(np.concatenate([np.floor(orders), np.ceil(orders)]))
    ends = ends[ends > 1]
    known = dict(zip(ends.astype(int).tolist(), log_moments(rate, noise, ends).tolist(), strict=True))
    return chord(known.__getitem__, orders)


def replaced(rate: float, noise: float, near: int, orders: Array) -> Array:
    """Replace-one, for Poisson (near = 1) and fixed-size (near = 2) sampling: the least of three bounds."""
    best = chord(lambda order: expansion(rate, order, lambda most: _differences(rate, noise, near, most)), orders)
    best = np.minimum(best, never_worse(rate, whole(noise / 2, orders)))
    low = orders <= _MOST_TRIANGLE

    def one(p: Array) -> Array:
        return sampled(rate, noise / near, p)

    best[low] = np.minimum(best[low], triangle(one, one, orders[low]))
    return best


def _differences(rate: float, noise: float, near: int, order: int) -> Array:
    """log of (1-q) E_R|(P'-Q')/R|^j + q E_Q'|(P'-Q')/Q'|^j for j = 2 .. order, from moments alone.

    Around R: |P'-Q'|^j <= P'^j + Q'^j, since both are positive: 2 exp(j (j-1) near²/(2z²)). For j = 2 also (P'-Q')² <=
    2 (P'-R)² + 2 (Q'-R)²: 4 (exp(near²/z²) - 1). Against Q', two contributions away: |r - 1|^j <= 1 + r^j, and for j =
    2 E(r - 1)² = E r² - 1 (Wang, Balle & Kasiviswanathan 2019, Theorem 9, in these terms).
    """
    j = np.arange(2, order + 1, dtype=np.float64)
    half = j * (j - 1) / 2 / noise / noise
    around = math.log(2) + near * near * half
    across = np.logaddexp(0.0, 4 * half)
    square = log_expm1(2 * half[:1] * np.array([near * near / 2, 2.0]))
    around[0] = min(float(around[0]), math.log(4) + float(square[0]))
    across[0] = square[1]
    return np.asarray(np.logaddexp(math.log1p(-rate) + around, math.log(rate) + across))
