"""Poisson lots cut to a largest size: the chance that the cut ever mattered, which is added to δ.

Let D' be D and one record x more (or D with x replaced), and draw the coins of all other records for all steps: they
are alike for both data sets and depend on nothing released. Call them good if in no step more than ``most`` - 1 of the
others are drawn. Given good coins nothing is cut off in either data set, whatever x's coins are, so both runs are the
Poisson runs, and x's own coins make the sampled pair: P_ω(S) <= e^ε Q_ω(S) + δ for every good ω, at the ε and δ of
Poisson sampling, adaptive steps included. Hence

    P(S) <= Σ_good w(ω) P_ω(S) + w(bad) <= e^ε Q(S) + δ + w(bad),

in both directions, however the excess is dropped. w(bad) is at most Σ over the steps of P[Binomial(n, q) >= most], n
the number of records: no neighbour has more others than that. For a group of k records the same is said of each of k
neighbours in a row, the last of which has n + k - 1 others. (Chua et al., arXiv 2411.04205, and Ganesh et al., arXiv
2508.15089, bound the same thing; a factor 1 + e^ε that comparing each run with its Poisson twin would bring is not
needed.) Examples that pad a lot have weight zero and are no part of the sum.
"""

from __future__ import annotations

import math

from scipy.special import betainc, xlogy

from tacit.ledger.events import TruncatedPoisson


def overflow(sampling: TruncatedPoisson, group: int = 1) -> float:
    """The chance that ``most`` of the records, and of ``group`` - 1 more, or more are drawn in one step, rounded up.

    P[Binomial(n, q) >= m] is the regularised incomplete beta function I_q(m, n - m + 1); Chernoff's bound
    exp(-n KL(m/n, q)) is what it may not exceed.
    """
    n, q, most = sampling.records + group - 1, sampling.rate, sampling.most
    if most > n:
        return 0.0
    if most <= q * n:
        return 1.0
    share = most / n
    power = n * float(xlogy(share, share / q) + (xlogy(1 - share, (1 - share) / (1 - q)) if share < 1 else 0.0))
    chernoff = math.exp(-power * (1 - 1e-9))
    exact = float(betainc(most, n - most + 1, q)) * (1 + 1e-6)
    return max(min(exact, chernoff) if math.isfinite(exact) and exact > 0 else chernoff, 1e-300)


def least_size(records: int, rate: float, steps: int, slack: float) -> int:
    """The smallest largest size at which ``steps`` steps add at most ``slack`` to δ."""
    low, high = 1, records + 1
    while high - low > 0:
        middle = (low + high) // 2
        event = TruncatedPoisson(rate=rate, records=records, most=middle)
        low, high = (low, middle) if steps * overflow(event) <= slack else (middle + 1, high)
    return low
