"""Privacy losses: pairs of distributions (P, Q) that dominate one run of a mechanism.

For an outcome x the loss is L(x) = log P(x)/Q(x). A pair *dominates* a mechanism when the hockey-stick divergence
H_a(P‖Q) = E_P[(1 - a e^{-L})_+] is at least H_a(M(D)‖M(D')) for every a > 0 and all neighbours D, D'; products of
dominating pairs dominate adaptive compositions (Zhu, Dong & Wang 2022, Theorem 10).

The lattice code needs only masses of cells (lo, hi] of the loss: under P, under Q, and the *rise*
P(cell) - e^lo Q(cell) = E_P[1 - e^(lo - L); cell], which is small and therefore computed apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

Array = NDArray[np.float64]

# Bound on the relative rounding error of the special functions used here, with room to spare.
ROUNDING = 16 * float(np.finfo(np.float64).eps)


class Cells(NamedTuple):
    """Masses of the cells between consecutive edges; ``slack`` bounds the rounding error of ``rise``."""

    p: Array
    q: Array
    rise: Array
    slack: Array


class Pair(Protocol):
    """A pair (P, Q), known through its loss; ``base`` is that of one release on a sample."""

    @property
    def base(self) -> Base: ...

    @property
    def records(self) -> int:
        """How many shifts of the base apart the two are when every record is in the sample."""
        ...

    def cells(self, edges: Array) -> Cells:
        """Masses between consecutive increasing ``edges`` (which may start at -inf and end at inf)."""
        ...


class Base(Protocol):
    """A pair known through the tails of its loss, each accurate relative to itself."""

    def above(self, loss: Array) -> tuple[Array, Array]:
        """P(L > loss) and Q(L > loss)."""
        ...

    def below(self, loss: Array) -> tuple[Array, Array]:
        """P(L <= loss) and Q(L <= loss)."""
        ...


@dataclass(frozen=True)
class GaussianLoss:
    """N(shift, 1) against N(0, 1): a Gaussian sum whose sensitivity is ``shift`` noise deviations.

    L is N(shift²/2, shift²) under P and N(-shift²/2, shift²) under Q.
    """

    shift: float

    def above(self, loss: Array) -> tuple[Array, Array]:
        z = loss / self.shift
        return ndtr(self.shift / 2 - z), ndtr(-self.shift / 2 - z)

    def below(self, loss: Array) -> tuple[Array, Array]:
        z = loss / self.shift
        return ndtr(z - self.shift / 2), ndtr(z + self.shift / 2)


@dataclass(frozen=True)
class LaplaceLoss:
    """Laplace(shift, 1) against Laplace(0, 1) in one dimension; L lies in [-shift, shift], with atoms at both ends."""

    shift: float

    def above(self, loss: Array) -> tuple[Array, Array]:
        inside = np.clip(loss, -self.shift, self.shift)
        p = -np.expm1(np.log(0.5) - (self.shift - inside) / 2)
        q = 0.5 * np.exp(-(self.shift + inside) / 2)
        over, under = loss >= self.shift, loss < -self.shift
        return np.where(over, 0, np.where(under, 1, p)), np.where(over, 0, np.where(under, 1, q))

    def below(self, loss: Array) -> tuple[Array, Array]:
        inside = np.clip(loss, -self.shift, self.shift)
        p = 0.5 * np.exp(-(self.shift - inside) / 2)
        q = -np.expm1(np.log(0.5) - (self.shift + inside) / 2)
        over, under = loss >= self.shift, loss < -self.shift
        return np.where(over, 1, np.where(under, 0, p)), np.where(over, 1, np.where(under, 0, q))


@dataclass(frozen=True)
class ResponseLoss:
    """Randomised response: the pair that dominates every (epsilon, 0)-DP mechanism (Kairouz, Oh & Viswanath 2015)."""

    epsilon: float

    def above(self, loss: Array) -> tuple[Array, Array]:
        yes, no = expit(self.epsilon), expit(-self.epsilon)
        over, under = loss >= self.epsilon, loss < -self.epsilon
        return np.where(over, 0, np.where(under, 1, yes)), np.where(over, 0, np.where(under, 1, no))

    def below(self, loss: Array) -> tuple[Array, Array]:
        yes, no = expit(self.epsilon), expit(-self.epsilon)
        over, under = loss >= self.epsilon, loss < -self.epsilon
        return np.where(over, 1, np.where(under, 0, no)), np.where(over, 1, np.where(under, 0, yes))


def base_cells(base: Base, edges: Array) -> tuple[Array, Array, Array, Array]:
    """P and Q masses of the cells, and the tail masses whose difference they are (for rounding bounds).

    Each cell is a difference of tails on its own side of zero, so that far cells keep their relative accuracy.
    """
    split = int(np.searchsorted(edges, 0.0))
    left, right = edges[: split + 1], edges[max(split, 0) :]
    p, q = np.empty(len(edges) - 1), np.empty(len(edges) - 1)
    p_scale, q_scale = np.empty_like(p), np.empty_like(q)
    if len(left) > 1:
        below_p, below_q = base.below(left)
        p[: len(left) - 1], q[: len(left) - 1] = np.diff(below_p), np.diff(below_q)
        p_scale[: len(left) - 1], q_scale[: len(left) - 1] = below_p[1:], below_q[1:]
    if len(right) > 1:
        above_p, above_q = base.above(right)
        p[split:], q[split:] = -np.diff(above_p), -np.diff(above_q)
        p_scale[split:], q_scale[split:] = above_p[:-1], above_q[:-1]
    return p, q, p_scale, q_scale


@dataclass(frozen=True)
class Plain:
    """The base pair itself: every record takes part."""

    base: Base
    records: ClassVar[int] = 1

    def cells(self, edges: Array) -> Cells:
        p, q, p_scale, q_scale = base_cells(self.base, edges)
        factor = np.exp(edges[:-1])
        return Cells(p, q, p - q * factor, ROUNDING * (p_scale + q_scale * factor))


def _unsampled(loss: Array, rate: float) -> Array:
    """The base loss l0 at which log(1 - rate + rate e^l0) = loss; -inf where there is none."""
    inner = np.expm1(loss) / rate
    return np.log1p(np.maximum(inner, -1.0), where=inner > -1, out=np.full_like(inner, -np.inf))


@dataclass(frozen=True)
class Removed:
    """((1 - rate) Q + rate P, Q): a record that was in the data, and in the sample with probability ``rate``.

    With `Added` it dominates Poisson sampling of a mechanism dominated by (P, Q), under add/remove (Zhu, Dong & Wang
    2022, Theorem 11). L = log(1 - rate + rate e^L0).
    """

    base: Base
    rate: float
    records: ClassVar[int] = 1

    def cells(self, edges: Array) -> Cells:
        inner = _unsampled(edges, self.rate)
        p, q, p_scale, q_scale = base_cells(self.base, inner)
        factor = np.exp(inner[:-1])
        # Below log(1 - rate) there is no loss; a cell that starts there rises from further down.
        start = np.where(np.isneginf(inner[:-1]), np.maximum(1 - self.rate - np.exp(edges[:-1]), 0.0), 0.0)
        rise = self.rate * (p - q * factor) + q * start
        return Cells((1 - self.rate) * q + self.rate * p, q, rise, ROUNDING * self.rate * (p_scale + q_scale * factor))


@dataclass(frozen=True)
class Added:
    """(Q, (1 - rate) Q + rate P): the same record seen from the other side; the loss is below -log(1 - rate)."""

    base: Base
    rate: float
    records: ClassVar[int] = 1

    def cells(self, edges: Array) -> Cells:
        inner = _unsampled(-edges[::-1], self.rate)
        p, q, p_scale, q_scale = base_cells(self.base, inner)
        lower = edges[::-1][1:]
        endless = np.isneginf(lower)  # the cell (-inf, hi] lies infinitely high above its lower end
        factor = np.exp(np.where(endless, 0.0, inner[1:]))
        outer = self.rate * np.exp(lower)
        rise = np.where(endless, q, outer * (q * factor - p))
        slack = ROUNDING * outer * (p_scale + q_scale * factor)
        mixed = (1 - self.rate) * q + self.rate * p
        return Cells(q[::-1].copy(), mixed[::-1].copy(), rise[::-1].copy(), slack[::-1].copy())


@dataclass(frozen=True)
class Mirrored:
    """The symmetric pair whose profile is that of `Removed` for a >= 1 and of `Added` for a < 1.

    Sampling without replacement under replace-one: if (P, Q) dominates the mechanism on a lot, then for a >= 1
    H_a(M(D)‖M(D')) <= H_a((1 - rate) Q + rate P ‖ Q) (Balle, Barthe & Gaboardi 2018, Theorem 10); replace-one is
    symmetric, so the same holds with D and D' exchanged, which is the statement for a < 1. The joined profile is
    convex at a = 1 because Q(P > Q) <= (1 - TV)/2, so it is the profile of a pair: losses above 0 as in `Removed`,
    losses below 0 as in `Added`, and the rest of the mass at 0.

    Poisson sampling under replace-one is dominated too: with A = (1-rate) Q + rate P and B = (1-rate) Q + rate P',
    advanced joint convexity (same paper, Theorem 2) gives H_a(A‖B) = rate H_a'(P‖(1-b) Q + b P') with
    a = 1 + rate (a' - 1), at most rate times the larger of H_a'(P‖Q) and H_a'(P‖P'), and a full replacement
    P to P' is the larger shift. Gaussian sums have a tighter pair, `Replaced`.

    For fixed-size lots no tighter pair is proved. One step's neighbours are (1-rate) N(0) + rate N(t) against
    (1-rate) N(0) + rate N(t - s), s twice a contribution, 0 <= t <= s: t = s attains the profile for a >= 1 and t = 0
    the one for a < 1. The supremum over one t for all steps would be lower, and wrong: the other records' gradients may
    depend on earlier releases, and t with them. Given the losses so far, l, the last step is asked for its profile at
    a e^-l, above 1 or below, and its t may be chosen accordingly (docs/decisions.md has two steps as an example).
    """

    base: Base
    rate: float
    records: ClassVar[int] = 1

    def cells(self, edges: Array) -> Cells:
        zero = int(np.searchsorted(edges, 0.0))
        added, removed = Added(self.base, self.rate), Removed(self.base, self.rate)
        if zero == 0:
            return removed.cells(edges)
        if zero == len(edges):
            return added.cells(edges)
        below = added.cells(np.append(edges[:zero], 0.0))
        # The atom at loss 0 closes the cell that ends there: what is missing to 1.
        ends = added.cells(np.array([-np.inf, 0.0])).p[0] + removed.cells(np.array([0.0, np.inf])).p[0]
        atom = max(1.0 - float(ends), 0.0)
        below.p[-1] += atom
        below.q[-1] += atom
        below.rise[-1] += -np.expm1(edges[zero - 1]) * atom
        above = removed.cells(np.append(0.0, edges[zero:]))
        if edges[zero] > 0:
            # No edge at 0: the cells that meet there are one, the upper part rising from further down.
            above.rise[0] += -np.expm1(edges[zero - 1]) * above.q[0]
            for low, high in zip(below, above, strict=True):
                high[0] += low[-1]
            below = Cells(*(low[:-1] for low in below))
        else:
            above = Cells(*(high[1:] for high in above))
        return Cells(*(np.concatenate(sides) for sides in zip(below, above, strict=True)))


def replaced_at(loss: Array, rate: float | Array, shift: float | Array) -> Array:
    """shift · x at which the loss of `Replaced` is this."""
    size = np.abs(loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_size = size / 2 + np.log(-np.expm1(-size)) - np.log(2) + np.log1p(-rate) - np.log(rate) + shift * shift / 2
        turned = np.where(log_size < 300, np.arcsinh(np.exp(np.minimum(log_size, 300.0))), log_size + np.log(2))
    return np.asarray(loss / 2 + np.copysign(turned, loss))


@dataclass(frozen=True)
class Replaced:
    """((1 - rate) N(0) + rate N(shift), (1 - rate) N(0) + rate N(-shift)), unit variances, ``shift`` of the base.

    It dominates, and is attained by, Poisson samples of a Gaussian sum under replace-one, ``shift`` being one record's
    contribution over the noise. Proof. Given which other records are drawn, which is alike for both data sets, the
    answers are P = (1-rate) R + rate A and Q = (1-rate) R + rate B, where R = N(c), A = N(c + a), B = N(c + b) and
    |a|, |b| <= shift. For a set S put r = R(S). By Neyman & Pearson A(S) <= Φ(Φ^-1(r) + |a|) <= Φ(Φ^-1(r) + shift)
    and B(S) >= Φ(Φ^-1(r) - shift), and in one dimension, with a = shift and b = -shift, the half-line of R-mass r
    attains both at once. So for every order α > 0

        P(S) - α Q(S) <= (1-rate) (1-α) r + rate (Φ(Φ^-1(r) + shift) - α Φ(Φ^-1(r) - shift)),

    the value of a half-line for the pair above; the supremum over S is at most H_α of that pair. Mixing over the other
    records' draws with equal weights keeps the bound (joint convexity), and products of dominating pairs dominate
    adaptive compositions. A record that contributes one way, replaced by its opposite, attains it.

    L = log A(x) - log A(-x), A(x) = 1 - rate + rate e^(shift x - shift²/2), is odd and grows with x; L(x) = l at
    shift x = l/2 + arsinh((1-rate) sinh(l/2) e^(shift²/2) / rate). The pair is symmetric: one side covers both.
    """

    base: GaussianLoss
    rate: float
    records: ClassVar[int] = 2

    def cells(self, edges: Array) -> Cells:
        place, half = replaced_at(edges, self.rate, self.base.shift), self.base.shift**2 / 2
        towards, none, towards_scale, none_scale = base_cells(self.base, place - half)
        away, _, away_scale, _ = (part[::-1] for part in base_cells(self.base, -place[::-1] - half))
        stay = 1 - self.rate
        p, q = stay * none + self.rate * towards, stay * none + self.rate * away
        low = edges[:-1]
        factor = np.exp(low)
        rise = self.rate * (towards - factor * away) - stay * np.expm1(low) * none
        scale = self.rate * (towards_scale + factor * away_scale) + stay * np.abs(np.expm1(low)) * none_scale
        # The edges themselves are off by rounding; there P = e^l Q, so that only the difference of the sides counts.
        return Cells(p, q, rise, 2 * ROUNDING * scale)
