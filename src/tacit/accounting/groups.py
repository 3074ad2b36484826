"""Group privacy: what is known of several records together, a family of four or one owner's five records.

Two ways, both proved:

1. *Gaussian sums*, over everyone or Poisson samples, have pairs of their own. Under add/remove, let D' have k records
   more than D. Given which of D's records are drawn, a step's answer is N(c) for D and, for D', the mixture over the
   sets s of the k records, drawn each with probability q, of N(c + v_s), |v_s| <= |s| contributions. For a set S with
   N(c)-mass r Neyman & Pearson give Φ(Φ^-1(r) - |s| μ) <= N(c + v_s)(S) <= Φ(Φ^-1(r) + |s| μ), μ one contribution over
   the noise, and one half-line attains all the upper (or all the lower) bounds at once. So the mixture of N(jμ) with
   binomial weights, against N(0), has the largest hockey-stick divergence of every order, in both directions: it
   dominates, k records that all contribute the same attain it, and steps compose as any dominating pairs do (Zhu, Dong
   & Wang 2022). The mixture is that of Choquette-Choo et al. (arXiv 2310.15526), here for a group. Under replace-one
   the k records have the same coins in both, so the answers are mixtures of N(c + v_s) and of N(c + v'_s) with equal
   weights, and the same half-line attains Φ(Φ^-1(r) + |s| μ) and Φ(Φ^-1(r) - |s| μ) for all s at once: the mixtures
   of N(jμ) and of N(-jμ) dominate, and k records that are replaced by their opposites attain them.
2. *Anything else*: if D_0, ..., D_k differ by one record each, P_0(S) <= e^ε P_1(S) + δ <= e^2ε P_2(S) + (1 + e^ε) δ
   and so on: (ε, δ) for one record is (kε, δ (e^(kε) - 1) / (e^ε - 1)) for k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.accounting.composition import Composition, Gaussian, Interval, Policy
from tacit.accounting.effort import spend
from tacit.accounting.losses import ROUNDING, Array, Cells, GaussianLoss, Pair, base_cells
from tacit.accounting.mixture import log_sum
from tacit.accounting.sides import LEAST_RATE, Side
from tacit.accounting.tail import LEAST_NOISE, MOST_NOISE
from tacit.ledger.events import Adjacency

MOST = 100
"""The largest group for which the mixture is used; beyond it, the rule for anything."""


@dataclass(frozen=True)
class Several:
    """``size`` records, each in the sample with probability ``rate``: Σ_j C(size, j) ... N(j shift) against N(0).

    With ``added`` the two are exchanged. L(x) = log Σ_j w_j e^(j μ x - j² μ² / 2) grows with x, and so does
    G(x) = log Σ_j>=1 of the same, a convex function with slopes between μ and size · μ: Newton's method from the right
    finds where G is log(e^l - w_0), that is L = l, in a few steps.
    """

    base: GaussianLoss
    rate: float
    size: int
    added: bool = False

    @property
    def records(self) -> int:
        return self.size

    @property
    def _log_weights(self) -> list[float]:
        """log w_j for j = 0 .. size."""
        k = self.size
        stay, move = math.log1p(-self.rate), math.log(self.rate)
        return [math.log(math.comb(k, j)) + j * move + (k - j) * stay for j in range(k + 1)]

    @property
    def _sampled(self) -> float:
        """1 - w_0: the chance that some record is in the sample."""
        return -math.expm1(self.size * math.log1p(-self.rate))

    def _where(self, loss: Array) -> Array:
        """x at which L is ``loss``; -inf where it is never as small."""
        spend(100.0 * self.size * len(loss))
        mu, logs = self.base.shift, self._log_weights
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            inner = np.expm1(np.minimum(loss, 700.0)) + self._sampled
            target = np.where(loss > 500, loss, np.log(np.maximum(inner, 0.0)))
            j = np.arange(1, self.size + 1, dtype=np.float64)[:, None]
            heights = np.array(logs[1:])[:, None] - j * j * (mu * mu / 2)
            x = np.min((target - heights) / (j * mu), axis=0)  # at each of these G is at least its own term
            for _ in range(60):
                power = heights + j * mu * x
                top = power.max(axis=0)
                weight = np.exp(power - top)
                total = weight.sum(axis=0)
                move = (top + np.log(total) - target) / ((weight * j).sum(axis=0) / total * mu)
                move = np.where(np.isfinite(x), move, 0.0)
                x = x - move
                if not (np.abs(move) > 1e-9 * (1 + np.abs(x))).any():  # the next one would be its square
                    break
        return np.asarray(np.where(np.isneginf(target), -np.inf, x))

    def _masses(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Between consecutive x: mass under N(0), under the rest of the mixture, and the tails both come from."""
        mixed = mixed_scale = none = none_scale = np.zeros(len(x) - 1)
        for j, log_weight in enumerate(self._log_weights[1:], start=1):
            shift = j * self.base.shift
            p, none, p_scale, none_scale = base_cells(GaussianLoss(shift), shift * x - shift * shift / 2)
            mixed = mixed + math.exp(log_weight) * p
            mixed_scale = mixed_scale + math.exp(log_weight) * p_scale
        return none, mixed, none_scale, mixed_scale

    def cells(self, edges: Array) -> Cells:
        if self.added:
            lower = edges[::-1][1:]
            none, mixed, none_scale, mixed_scale = self._masses(self._where(-edges[::-1]))
            factor = np.exp(lower)
            # 1 - e^lo w_0, from which nothing must be lost near 0.
            left = -np.expm1(lower) + factor * self._sampled
            rise, scale = none * left - factor * mixed, none_scale * np.abs(left) + factor * mixed_scale
            q = (1 - self._sampled) * none + mixed
            return Cells(*(part[::-1].copy() for part in (none, q, rise, 2 * ROUNDING * scale)))
        none, mixed, none_scale, mixed_scale = self._masses(self._where(edges))
        left = -(np.expm1(edges[:-1]) + self._sampled)  # w_0 - e^lo
        rise, scale = mixed + none * left, mixed_scale + none_scale * np.abs(left)
        return Cells((1 - self._sampled) * none + mixed, none, rise, 2 * ROUNDING * scale)


@dataclass(frozen=True)
class SeveralReplaced:
    """``size`` records, each in the sample with probability ``rate``: Σ_j w_j N(j shift) against Σ_j w_j N(-j shift).

    With A(x) = Σ_j w_j e^(jμx - j²μ²/2) the loss L(x) = log A(x) - log A(-x) is odd and grows with x. For l > 0,
    L(x) = l is log N(x) - log A(-x) = log(e^l - 1), N(x) = A(x) - A(-x) = 2 Σ_j w_j e^(-j²μ²/2) sinh(jμx): sums of
    positive terms, in which nothing cancels. Newton's method in log x, kept between bounds: A(-x) <= 1, so x is at most
    where one term of A reaches e^l; and with N(x) <= x N'(most) at least (e^l - 1) A(-most) / N'(most).
    """

    base: GaussianLoss
    rate: float
    size: int

    @property
    def records(self) -> int:
        return 2 * self.size

    @property
    def _log_weights(self) -> list[float]:
        return Several(self.base, self.rate, self.size)._log_weights

    def _where(self, loss: Array) -> Array:
        """x at which L is ``loss``."""
        spend(200.0 * self.size * len(loss))
        size = np.abs(loss)
        mu, logs = self.base.shift, np.array(self._log_weights)
        j = np.arange(self.size + 1, dtype=np.float64)[:, None]
        heights = logs[:, None] - j * j * (mu * mu / 2)
        finite = np.isfinite(size) & (size > 0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            target = size[finite] + np.log(-np.expm1(-size[finite]))
            most = np.min((size[finite] - heights[1:]) / (j[1:] * mu), axis=0)
            slope = log_sum(heights[1:] + np.log(2 * j[1:] * mu) + j[1:] * mu * most, axis=0)
            low = np.minimum(target + log_sum(heights - j * mu * most, axis=0) - slope, np.log(most))
            high = np.log(most)
            t = high
            for _ in range(100):
                x = np.exp(t)
                turn = j[1:] * mu * x
                # log(2 sinh(y)) = y + log(1 - e^-2y), and its derivative is y coth(y) / x.
                sines = heights[1:] + turn + np.log(-np.expm1(-2 * turn))
                back = heights - j * mu * x
                gap = log_sum(sines, axis=0) - log_sum(back, axis=0) - target
                rise = _mean(sines, turn / np.tanh(turn)) + _mean(back, j * mu * x)
                high, low = np.where(gap >= 0, t, high), np.where(gap <= 0, t, low)
                onward = t - gap / rise
                onward = np.where((onward > low) & (onward < high), onward, (low + high) / 2)
                onward = np.where(gap == 0, t, onward)
                done = np.abs(onward - t).max(initial=0.0) < 1e-12
                t = onward
                if done:
                    break
        found = np.where(size > 0, np.inf, 0.0)
        found[finite] = np.exp(t)
        return np.asarray(np.copysign(found, loss))

    def cells(self, edges: Array) -> Cells:
        x, low = self._where(edges), edges[:-1]
        factor, logs = np.exp(low), self._log_weights
        p = q = rise = scale = np.zeros(len(low))
        none = none_scale = p
        for j, log_weight in enumerate(logs[1:], start=1):
            shift, weight = j * self.base.shift, math.exp(log_weight)
            half = shift * shift / 2
            towards, none, towards_scale, none_scale = base_cells(GaussianLoss(shift), shift * x - half)
            away, _, away_scale, _ = (part[::-1] for part in base_cells(GaussianLoss(shift), -shift * x[::-1] - half))
            p, q = p + weight * towards, q + weight * away
            rise = rise + weight * (towards - factor * away)
            scale = scale + weight * (towards_scale + factor * away_scale)
        stay = math.exp(logs[0])
        rise = rise - stay * np.expm1(low) * none
        scale = scale + stay * np.abs(np.expm1(low)) * none_scale
        # The edges are off by rounding; there P = e^l Q, so that only the difference of the sides counts.
        return Cells(p + stay * none, q + stay * none, rise, 2 * ROUNDING * scale)


def _mean(logs: Array, values: Array) -> Array:
    """The mean of ``values`` with weights of these logarithms, column by column."""
    weights = np.exp(logs - logs.max(axis=0))
    return np.asarray((weights * values).sum(axis=0) / weights.sum(axis=0))


def largest_loss(side: Side) -> float:
    """No loss of this direction is larger: records that are added have at most -log w_0 a step."""
    if side.shift or not all(isinstance(pair, Several) and pair.added for pair, _ in side.pairs):
        return math.inf
    bounds = [-count * pair.size * math.log1p(-pair.rate) for pair, count in side.pairs if isinstance(pair, Several)]
    return sum(bounds) * (1 + 1e-12)


def sides(composition: Composition, size: int) -> list[Side] | None:
    """The two directions for a group of ``size`` units, or None where only the rule for anything is proved."""
    replace = composition.adjacency is Adjacency.REPLACE_ONE
    pairs: tuple[list[tuple[Pair, int]], list[tuple[Pair, int]]] = ([], [])
    squared = 0.0
    for term, count in composition.terms:
        if not isinstance(term.base, Gaussian) or not LEAST_NOISE <= term.base.noise_multiplier <= MOST_NOISE:
            return None
        shift, records = 1 / term.base.noise_multiplier, size * term.members
        if term.policy is Policy.ALWAYS:
            squared += count * (composition.shift_factor * records * shift) ** 2
        elif term.policy is Policy.POISSON and records <= MOST and term.rate >= LEAST_RATE:
            for side, added in zip(pairs, (False, True), strict=True):
                base = GaussianLoss(shift)
                replaced, several = SeveralReplaced(base, term.rate, records), Several(base, term.rate, records, added)
                side.append((replaced if replace else several, count))
        else:
            return None
    both = [Side(tuple(side), math.sqrt(squared), 0.0) for side in pairs]
    return both[:1] if both[0] == both[1] else both


def epsilon(single: Callable[[float], float], delta: float, size: int) -> Interval:
    """ε of a group by the rule for anything; ``single`` is an upper bound on ε of one record at a δ.

    An ε₁ with single(δ₁) <= ε₁, δ₁ = δ (e^ε₁ - 1) / (e^(size ε₁) - 1), will do; iterated from below, then raised.
    """
    guess = single(delta / size)
    for _ in range(40):
        if not math.isfinite(guess) or not (part := _share(guess, size) * delta) > 0:
            return Interval(math.inf)
        found = single(part)
        if found <= guess:
            return Interval(size * guess)
        guess = found * (1 + 1e-4)
    return Interval(math.inf)


def delta(single: Callable[[float], float], epsilon: float, size: int) -> Interval:
    """δ of a group by the rule for anything; ``single`` is an upper bound on δ of one record at an ε."""
    share = _share(epsilon / size, size)
    return Interval(min(single(epsilon / size) / share * (1 + 1e-12), 1.0) if share > 0 else 1.0)


def _share(epsilon: float, size: int) -> float:
    """(e^ε - 1) / (e^(size ε) - 1), rounded down."""
    if epsilon * (size - 1) > 700:
        return 0.0
    if epsilon < 1e-12:
        return math.exp(-epsilon * size) / size
    return math.exp(-epsilon * (size - 1)) * math.expm1(-epsilon) / math.expm1(-size * epsilon) * (1 - 1e-12)
