"""Poisson lots cut to a largest size: the slack against exact binomial sums, and a coupling by hand."""

from fractions import Fraction
from itertools import pairwise
from math import comb

import numpy as np
import pytest

from tacit.accounting import compose, guarantee
from tacit.accounting.truncation import least_size, overflow
from tacit.ledger import Adjacency, GaussianSum, Header, Ledger, Poisson, Step, TruncatedPoisson
from tacit.randomness import SecureSource
from tacit.sampling import TruncatedPoissonSampler

QUERY = GaussianSum(group="sum", clip_norm=1.0, noise_std=1.0)
CASES = [
    (records, rate, most)
    for records in (1, 5, 40, 300)
    for rate in (Fraction(1, 100), Fraction(1, 10), Fraction(1, 2))
    for most in sorted({1, 2, records // 3 + 1, records // 2 + 1, (9 * records) // 10 + 1, records})
]


@pytest.mark.parametrize(("records", "rate", "most"), CASES)
def test_the_slack_is_the_binomial_tail(records, rate, most):
    exact = sum(comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in range(most, records + 1))
    found = overflow(TruncatedPoisson(rate=float(rate), records=records, most=most))
    assert found >= float(exact) * (1 - 1e-9)
    assert found <= max(float(exact) * (1 + 1e-5), 1e-300) or most <= rate * records


def test_slack_falls_with_the_size_and_the_least_size_is_found():
    slacks = [overflow(TruncatedPoisson(rate=0.01, records=60_000, most=most)) for most in range(600, 900, 10)]
    assert all(low > high for low, high in pairwise(slacks))
    size = least_size(60_000, 0.01, 1000, 1e-8)
    assert 1000 * overflow(TruncatedPoisson(rate=0.01, records=60_000, most=size)) <= 1e-8
    assert 1000 * overflow(TruncatedPoisson(rate=0.01, records=60_000, most=size - 1)) > 1e-8


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_cut_lots_cost_poisson_and_the_slack(adjacency):
    event = TruncatedPoisson(rate=0.01, records=60_000, most=750)
    cut = compose([(Step(event, (QUERY,)), 200)], adjacency)
    assert cut.slack == pytest.approx(200 * overflow(event))
    whole = [(Step(Poisson(rate=0.01), (QUERY,)), 200)]
    header = Header(adjacency=adjacency)
    delta = 1e-5
    found = guarantee([(Step(event, (QUERY,)), 200)], header, delta=delta)
    assert found.epsilon == pytest.approx(guarantee(whole, header, delta=delta - cut.slack).epsilon, rel=1e-6)
    assert found.epsilon_lower is None


def test_a_displaced_record_is_covered():
    """Two others and x, one place: exact law of a noisy sum with x at +1 and the others at -1, by integration."""
    rate, noise, epsilon = 0.3, 1.0, 0.5
    grid = np.linspace(-12, 12, 48_001)

    def law(values, most):
        density = np.zeros_like(grid)
        for drawn in range(2 ** len(values)):
            chosen = [value for bit, value in enumerate(values) if drawn >> bit & 1]
            weight = rate ** len(chosen) * (1 - rate) ** (len(values) - len(chosen))
            kept = [chosen] if len(chosen) <= most else [[value] for value in chosen]
            for sums in kept:
                density += weight / len(kept) * np.exp(-((grid - sum(sums)) ** 2) / 2 / noise**2)
        return density / np.sqrt(2 * np.pi) / noise

    one, other = law([-1, -1, 1], 1), law([-1, -1], 1)
    step = Step(TruncatedPoisson(rate=rate, records=2, most=1), (QUERY,))
    claimed = guarantee([(step, 1)], Header(), epsilon=epsilon).delta
    for p, q in ((one, other), (other, one)):
        assert np.maximum(p - np.exp(epsilon) * q, 0).sum() * (grid[1] - grid[0]) <= claimed


def test_the_sampler_keeps_at_most_so_many_and_leaves_smaller_lots_alone():
    sampler = TruncatedPoissonSampler(100, 0.5, most=50, source=SecureSource())
    ledger = Ledger()
    sizes = []
    seen = np.zeros(100)
    for _ in range(400):
        lot = sampler.draw(ledger.record(Step(sampler.event(), (QUERY,))))
        assert (np.diff(lot) > 0).all()
        sizes.append(len(lot))
        seen[lot] += 1
    assert max(sizes) == 50
    assert min(sizes) < 48
    assert abs(seen / 400 - np.mean(sizes) / 100).max() < 0.15


def test_a_group_has_more_others():
    """Of k neighbours in a row the last has n + k - 1 others, each of whom may be drawn."""
    event, k = TruncatedPoisson(rate=0.02, records=1000, most=40), 100
    more = overflow(TruncatedPoisson(rate=0.02, records=1000 + k - 1, most=40))
    assert overflow(event, k) == more > 2 * overflow(event)
    quiet = GaussianSum(group="sum", clip_norm=1.0, noise_std=1e6)
    found = guarantee([(Step(event, (quiet,)), 10)], Header(), epsilon=1e-3, group=k)
    assert k * 10 * more <= found.delta <= 1.01 * k * 10 * more
