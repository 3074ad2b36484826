"""The theorems against the exact output of the best of K runs, on small mechanisms where all can be added up.

A run gives one of a few outcomes in order of merit. With f(x) = Σ_k P[K = k] x^k, added up term by term, the best of K
is at most outcome i with chance f(F_i), where F is the distribution function of one run.
"""

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as theirs

from tacit.accounting import compose, selection
from tacit.accounting.rdp import DEFAULT_ORDERS, Rdp
from tacit.ledger import Adjacency, Everyone, GaussianSum, Poisson, Step
from tacit.tuning import PoissonTrials, TruncatedNegativeBinomial

ORDERS = np.array([1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 40.0])
GRID = np.concatenate([ORDERS, np.geomspace(1.01, 500, 60)])
KINDS = [
    *(TruncatedNegativeBinomial(eta=e, gamma=g) for e, g in [(1.0, 0.1), (0.0, 0.05), (-0.5, 0.02), (2.0, 0.3)]),
    *(PoissonTrials(mean=mean) for mean in (0.3, 1.0, 5.0, 20.0)),
]
STEP = Step(Everyone(), ())


def pmf(trials, most=1500):
    """P[K = k], k = 0 .. most, in floating point from logarithms."""
    k = np.arange(1, most)
    if isinstance(trials, PoissonTrials):
        logs = (
            -trials.mean + np.arange(most) * math.log(trials.mean) - np.array([math.lgamma(i + 1) for i in range(most)])
        )
        return np.exp(logs)
    weights = k * math.log1p(-trials.gamma)
    if trials.eta == 0:
        weights = weights - np.log(k)
    else:
        rising = np.cumsum(np.log(np.abs((np.arange(most - 1) + trials.eta) / (np.arange(most - 1) + 1))))
        weights = weights + rising
    chances = np.exp(weights - weights.max())
    return np.concatenate([[0.0], chances / chances.sum()])


def best(chances, run):
    """The exact distribution of the best of K; the last outcome is that nothing was run."""
    powers = np.arange(len(chances))
    reach = np.array([float(np.sum(chances * F**powers)) for F in np.concatenate([[0.0], np.cumsum(run)])])
    return np.concatenate([np.diff(reach), reach[:1]])


def divergence(p, q, order):
    keep = p > 0
    terms = order * np.log(p[keep]) + (1 - order) * np.log(q[keep])
    top = terms.max()
    return (top + math.log(np.exp(terms - top).sum())) / (order - 1)


def both_ways(p, q, orders):
    return np.array([max(divergence(p, q, order), divergence(q, p, order)) for order in orders])


def neighbours(generator, outcomes):
    """Two distributions on a few outcomes: often nearly equal, sometimes with a rare outcome that tells them apart."""
    p = generator.dirichlet(np.full(outcomes, generator.choice([0.3, 1.0, 5.0]))) + 1e-6
    q = p * np.exp(generator.choice([0.02, 0.2, 1.0, 3.0]) * generator.standard_normal(outcomes))
    return p / p.sum(), q / q.sum()


def bound(trials, p, q):
    """The theorem at `ORDERS`, from the exact divergences of one run."""
    event = trials.event(((STEP, 1),))
    return selection.curve(event, GRID, both_ways(p, q, GRID), ORDERS, both_ways(p, q, ORDERS))


@pytest.mark.parametrize("trials", KINDS, ids=str)
def test_no_small_mechanism_costs_more(trials):
    generator, chances = np.random.default_rng(1), pmf(trials)
    closest = math.inf
    for _ in range(100):
        p, q = neighbours(generator, int(generator.integers(2, 6)))
        truth, stated = both_ways(best(chances, p), best(chances, q), ORDERS), bound(trials, p, q)
        assert np.all(truth <= stated * (1 + 1e-9) + 1e-9)
        closest = min(closest, float(np.min(stated - truth)))
    assert closest < 0.6  # the bounds are not idle: some mechanism comes near


@pytest.mark.parametrize("trials", KINDS[-2:], ids=str)
def test_the_price_of_many_runs_is_needed(trials):
    """Without log E[K] / (α-1) the same search finds a mechanism that costs more: the test above can fail."""
    generator, chances, broken = np.random.default_rng(1), pmf(trials), False
    for _ in range(50):
        p, q = neighbours(generator, int(generator.integers(2, 6)))
        truth = both_ways(best(chances, p), best(chances, q), ORDERS)
        broken |= bool(np.any(truth > bound(trials, p, q) - math.log(trials.mean) / (ORDERS - 1) + 1e-9))
    assert broken


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_second_run_is_needed(eta):
    """Without the (1+η) part of Theorem 2 the bound fails: an outcome chosen only where no better one turned up."""
    trials, epsilon, orders = TruncatedNegativeBinomial(eta=eta, gamma=1e-3), 1.0, np.array([100.0])
    p = np.array([0.945, 0.005, 0.05])
    q = np.array([0.0, 0.005 * math.exp(-epsilon), 0.05 * math.exp(epsilon)])
    q[0] = 1 - q.sum()
    chances = pmf(trials, 40_000)
    truth = both_ways(best(chances, p), best(chances, q), orders)[0]
    assert np.abs(np.log(p / q)).max() == pytest.approx(epsilon)
    assert truth > both_ways(p, q, orders)[0] + math.log(trials.mean) / 99
    event = trials.event(((STEP, 1),))
    assert truth <= selection.curve(event, GRID, both_ways(p, q, GRID), orders, both_ways(p, q, orders))[0]


def test_a_fixed_number_of_runs_is_no_substitute():
    """Why K is random: of a pure ε-DP run the best of exactly 10 costs 10 ε; of K with mean 10, (2+η) ε at most."""
    epsilon, p = 0.1, np.array([0.01, 0.99])
    q = np.array([0.01 * math.exp(-epsilon), 1 - 0.01 * math.exp(-epsilon)])
    fixed = np.zeros(11)
    fixed[10] = 1.0

    def worst(chances):
        first, second = best(chances, p)[:-1], best(chances, q)[:-1]
        return float(np.abs(np.log(first / second)).max())

    assert worst(fixed) == pytest.approx(10 * epsilon)
    assert worst(pmf(TruncatedNegativeBinomial.of_mean(10, eta=0.0))) <= 2 * epsilon


@pytest.mark.parametrize(("eta", "mean"), [(0.0, 10.0), (1.0, 10.0), (0.5, 40.0), (math.inf, 10.0), (math.inf, 60.0)])
def test_dp_accounting_says_the_same(eta, mean):
    """Google's implementation of Theorems 2 and 6, at the same orders."""
    query = GaussianSum(group="gradients", clip_norm=1.0, noise_std=2.0)
    base = ((Step(Poisson(rate=0.01), (query,)), 500),)
    trials = PoissonTrials(mean=mean) if eta == math.inf else TruncatedNegativeBinomial.of_mean(mean, eta=eta)
    orders, run = Rdp(DEFAULT_ORDERS).curve(compose(base, Adjacency.ADD_REMOVE))
    entries = [(Step(Everyone(), (trials.event(base),)), 1)]
    _, ours = Rdp(DEFAULT_ORDERS).curve(compose(entries, Adjacency.ADD_REMOVE))
    other = np.array(theirs._compute_rdp_repeat_and_select(orders, run, mean, eta))
    if eta == math.inf:  # theirs leaves out that nothing may be run, which only matters for small means
        assert np.all(ours >= other - 1e-9)
    else:  # and here it takes a bound at one order for one at every lower order, which is right
        ours = np.minimum.accumulate(ours[::-1])[::-1]
    useful = (orders > 2) & (orders < 50)
    assert ours[useful] == pytest.approx(other[useful], rel=0.02)
