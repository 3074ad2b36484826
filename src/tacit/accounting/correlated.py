"""The cost of a block of steps with correlated noise on cyclic samples, as a number of Gaussian sums.

**The mechanism.** At step t of a block the sum g_t of the sampled records' clipped vectors gets the noise (C^-1 z)_t, C
lower triangular with ones on its diagonal. Multiplied by C, which is invertible step by step, the releases are
y_t = sum_i C[t, i] g_i + z_t. Given all coins of the other records, and all y before t, what these records add to y_t
is known, whatever rule made their vectors from earlier releases: it is a translation, and drops out. So one record x
changes y_t by sum_i C[t, i] u_i, with u_i its own clipped vector at step i, a function of earlier releases, |u_i| <= S,
and zero where it takes no part. (The argument of Denisov et al. 2022, Theorem 2.1, for adaptive streams.) The coins
of the others are as likely with x as without, and so is x's group under replace-one; joint convexity of the
divergences then allows the worst coins of the others and the worst group of x. Rows of C that were never released
(a lot left half-way) only leave something out.

**Every step of x's group** (`sensitivity`). If x takes part in all steps of its group, or in some, the changes of all y
together have a squared norm of at most S² sum_ij |(C^T C)_ij| over pairs of these steps, for every choice of the
vectors. Gaussian noise with shifts that depend on the past, their squared norms adding up to at most μ² on every
path, is dominated by N(μ, 1) against N(0, 1): make every shift's contribution to the log-likelihood the end of a
Brownian path that runs for its squared norm; after the time μ² it is N(0, μ²). So the block is one Gaussian sum with
the noise multiplier σ / (S · sensitivity). For coefficients c >= 0 the worst group is the first, and the bound is
attained by one vector repeated; for others |c| is used, which is a bound.

**Amplified** (`sampled_shift`). Each of x's k steps has a coin of probability q of its own. Cut the rows from the i-th
on, i a step of x, into blocks of `groups` rows, so that a block ends where x's next turn begins, and let t_m be the
norm of column i of C within its m-th block: the same for every i, since C is Toeplitz, or smaller at the end. Split
z_r, r a row of the block that begins at x's j-th step, into independent parts: one of variance w_(j-l) σ² for each
l <= j, w_m = t_m / (t_0 + t_1 + ...), and one with the rest of the variance. If at x's l-th step everything about this
step were told at once, its later rows as well, each with its own part of the noise, this would be one sampled Gaussian
sum with the squared shift S² sum_m t_m² / (w_m σ²) = S² (t_0 + t_1 + ...)² / σ², coin and vector as they are. What is
really released before x's next step, and so x's next vector, can be computed from these answers. So the block of steps
is k adaptively composed Poisson-sampled Gaussian sums with rate q and noise multiplier σ / (S (t_0 + t_1 + ...)). With
no more bands than groups t_0 is the whole column, and this is the reduction of Choquette-Choo et al. 2023 (arXiv
2306.08153, Theorem 4): DP-SGD with k = steps / bands steps. Under replace-one x's group and coins stay, and each of the
sampled sums is the pair that Poisson sampling has there.

**Sums with independent noise in the same steps** (metrics, statistics) are rows of their own: their (S / σ)² is added
once for each of x's steps.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tacit.ledger import events as ev
from tacit.ledger.correlation import Floats, coefficients

_MARGIN = 1 + 1e-9
"""Covers the rounding of coefficients and norms in float64: recursions of stable series, and sums of squares."""

_SINGLE = 2.0**-22
"""Four times the relative rounding of a weight to single precision, in which noise is added up."""

_MOST_STEPS = 10**7


def cost_of_block(step: ev.Step, steps: int) -> tuple[int, float, float]:
    """Return (rounds, shift, rate): a block of ``steps`` equal steps costs so many sums with unit noise and this shift.

    Both bounds of the module's docstring hold; the one that looks smaller is returned.
    """
    sampling = step.sampling
    assert isinstance(sampling, ev.CyclicPoisson)
    if steps > _MOST_STEPS:
        raise ValueError(f"a block has {steps} steps; correlated noise is accounted for up to {_MOST_STEPS}.")
    rounds = -(-steps // sampling.groups)
    whole, sampled = 0.0, 0.0
    for query in step.queries:
        assert isinstance(query, ev.GaussianSum)
        ratio = query.clip_norm / query.noise_std
        if query.noise != "correlated":
            whole, sampled = math.hypot(whole, ratio * math.sqrt(rounds)), math.hypot(sampled, ratio)
            continue
        strategy, parameters = str(query.strategy), query.parameters or ()
        whole = math.hypot(whole, ratio * sensitivity(strategy, parameters, sampling.groups, steps))
        if strategy == "tree":
            sampled = math.inf
        else:
            sampled = math.hypot(sampled, ratio * sampled_shift(strategy, parameters, sampling.groups, steps))
    amplified = rounds * sampling.rate**2 * math.expm1(sampled**2) if sampled < 20 else math.inf
    if sampling.rate < 1 and amplified < whole**2:
        return rounds, sampled, sampling.rate
    return 1, whole, 1.0


@lru_cache(maxsize=1024)
def sensitivity(strategy: str, parameters: tuple[float, ...], groups: int, steps: int) -> float:
    """Return how far a record moves C·sums if it takes part in every step of its group with vectors of norm 1."""
    if strategy == "tree":
        return _tree(groups, steps) * _MARGIN
    column = np.abs(coefficients(strategy, parameters, steps))
    total = np.zeros(steps)
    width = _width(strategy, parameters, steps)
    for first in range(0, steps, groups):
        end = min(first + width, steps)
        total[first:end] += column[: end - first]
    return float(np.linalg.norm(total)) * _MARGIN * (1 + _rounded(strategy, column))


@lru_cache(maxsize=1024)
def sampled_shift(strategy: str, parameters: tuple[float, ...], groups: int, steps: int) -> float:
    """Return the sum of the norms of a column of C in blocks of ``groups`` rows."""
    column = coefficients(strategy, parameters, steps)
    whole = np.add.reduceat(column * column, np.arange(0, steps, groups))
    more = _rounded(strategy, column) * math.sqrt(len(whole) * float(whole.sum()))
    return float(np.sqrt(whole).sum()) * _MARGIN + more


def _rounded(strategy: str, column: Floats) -> float:
    """How much longer, relatively, the columns of C can be for the weights of C^-1 in single precision.

    Fitted parameters are single-precision numbers; the weights d of the square root are not, and those used are d + r,
    |r_i| <= u |d_i|, with u = 2^-24 and sum |d_i| <= 2. Then c' = 1 / (d + r) has c' - c = -c' * r * c, which is at
    most 2 u |c|_1 |c'| long, and so for sums of columns.
    """
    return _SINGLE * float(column.sum()) if strategy == "square-root" else 0.0


def _width(strategy: str, parameters: tuple[float, ...], steps: int) -> int:
    return min(len(parameters), steps) if strategy == "banded" else steps


def _tree(groups: int, steps: int) -> float:
    """The root of the largest sum, over the groups, of squared numbers of steps in each node that is used.

    A prefix sum uses left children only: a node of 2^level steps whose number on its level is even.
    """
    worst = 0
    for first in range(min(groups, steps)):
        taken = np.zeros(steps, dtype=np.int64)
        taken[first::groups] = 1
        before = np.concatenate([[0], np.cumsum(taken)])
        total = 0
        for level in range(steps.bit_length()):
            starts = np.arange(0, steps - (1 << level) + 1, 2 << level)
            total += int(np.sum((before[starts + (1 << level)] - before[starts]) ** 2))
        worst = max(worst, total)
    return math.sqrt(worst)
