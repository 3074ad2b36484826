"""Replace-one: the bounds for sampled sums, against concrete neighbours and against a peer."""

import itertools
import math

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from tacit.accounting import Composition, renyi
from tacit.accounting.composition import Gaussian, Laplace, Policy, Term
from tacit.accounting.rdp import Rdp
from tacit.accounting.replacement import _absolute_moments
from tacit.ledger import Adjacency

REPLACE = Adjacency.REPLACE_ONE
ORDERS = (1.3, 2.0, 2.5, 3.0, 5.0, 8.0)


def steps(policy, rate, noise, count, adjacency=REPLACE):
    return Composition(adjacency, ((Term(Gaussian(noise), policy, rate), count),))


def pair(rate, noise, a, b, c, order):
    """log of the integral of P^α Q^(1-α) in the plane, P = (1-q) N(c) + q N(a), Q = (1-q) N(c) + q N(b)."""
    reach = order * 2 + 9 * noise + 2
    line = np.arange(-reach, reach, 0.3 * min(noise, 1.0))
    x, y = np.meshgrid(line, line)

    def density(centre):
        return -((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * noise**2) - math.log(2 * math.pi * noise**2)

    stay, first, second = density(c), density(a), density(b)
    p = np.logaddexp(math.log1p(-rate) + stay, math.log(rate) + first)
    q = np.logaddexp(math.log1p(-rate) + stay, math.log(rate) + second)
    terms = order * p + (1 - order) * q
    top = terms.max()
    return top + math.log(np.exp(terms - top).sum() * (line[1] - line[0]) ** 2)


def placements(policy):
    rng = np.random.default_rng(7)
    e = np.array([1.0, 0.0])
    if policy is Policy.POISSON:
        yield e, -e, 0 * e
        yield e, 0 * e, 0 * e
        yield e, np.array([0.0, 1.0]), 0 * e
        return
    yield e, -e, e
    yield e, -e, -e
    yield e, -e, 0 * e
    # The largest triangle in the unit disc, and one at random.
    yield tuple(np.array([math.cos(t), math.sin(t)]) for t in (0, 2 * math.pi / 3, 4 * math.pi / 3))
    yield tuple(v / np.linalg.norm(v) for v in rng.normal(size=(3, 2)))


@pytest.mark.parametrize("policy", [Policy.POISSON, Policy.FIXED_SIZE])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.05, 4.0), (0.3, 0.7), (0.6, 2.0), (0.95, 1.0)])
def test_never_below_concrete_neighbours(policy, rate, noise):
    orders = np.array(ORDERS)
    bound = renyi.curve(Term(Gaussian(noise), policy, rate), REPLACE, orders)
    for a, b, c in placements(policy):
        for order, value in zip((1.3, 2.0, 5.0), bound[[0, 1, 4]], strict=True):
            assert pair(rate, noise, a, b, c, order) <= value * (1 + 1e-9) + 1e-10


def test_leading_order_is_right():
    """For small q and large noise K tends to α(α-1)/2 · q² · 4/z²."""
    for policy in (Policy.POISSON, Policy.FIXED_SIZE):
        value = renyi.curve(Term(Gaussian(30.0), policy, 1e-4), REPLACE, np.array([3.0]))[0]
        assert value == pytest.approx(3 * 1e-8 * 4 / 900, rel=0.02)


@pytest.mark.parametrize("noise", [0.15, 0.5, 1.0, 4.0, 60.0])
def test_moments_of_the_difference(noise):
    ours = _absolute_moments(noise)
    with mp.workdps(120):
        s2 = 1 / mp.mpf(noise) ** 2
        for j in (2, 4, 16, 40, 64):
            truth = mp.fsum(
                (-1) ** (j - i) * mp.binomial(j, i) * mp.exp(mp.mpf(i) * (i - 1) / 2 * s2) for i in range(j + 1)
            )
            assert float(abs(ours[j - 2] - mp.log(truth))) < 1e-11
    assert (ours[1::2][:-1] <= (ours[0::2][:-1] + ours[2::2])[: len(ours[1::2][:-1])] / 2 + 1e-12).all()


def test_the_number_of_the_facts():
    """n = 60,000, b = 600, σ = 4, T = 10,000, δ = 1e-5: some neighbours cost 1.993, the general bound gives 5.14."""
    ours = Rdp().epsilon(steps(Policy.FIXED_SIZE, 0.01, 4.0, 10_000), 1e-5).upper
    assert 1.993 < ours < 2.57


@pytest.mark.parametrize(
    ("rate", "noise", "count"), list(itertools.product((1e-3, 0.01, 0.2), (1.0, 2.0, 8.0, 20.0), (1, 1000)))
)
def test_fixed_size_against_a_peer(rate, noise, count):
    """The peer's noise multiplier is in units of a replacement, two contributions."""
    peer = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        10_000, round(10_000 * rate), dp_accounting.GaussianDpEvent(noise / 2)
    )
    peer.compose(event, count)
    ours = Rdp().epsilon(steps(Policy.FIXED_SIZE, rate, noise, count), 1e-5).upper
    assert ours <= peer.get_epsilon(1e-5) * (1 + 5e-4)


@pytest.mark.parametrize("policy", [Policy.POISSON, Policy.FIXED_SIZE])
@pytest.mark.parametrize("base", [Gaussian(2.0), Laplace(5.0, 1), Laplace(0.5, 4), Gaussian(0.05)])
def test_sampling_is_never_worse_than_everyone_nor_better_than_add_remove(policy, base):
    orders = np.array([1.001, 1.5, 2.0, 7.5, 40.0, 300.0, 1000.0])
    everyone = renyi.curve(Term(base), REPLACE, orders)
    previous = np.zeros_like(orders)
    for rate in (0.001, 0.01, 0.1, 0.5, 0.99):
        term = Term(base, policy, rate)
        value = renyi.curve(term, REPLACE, orders)
        assert (value <= everyone * (1 + 1e-9)).all()
        assert (value >= previous).all()
        previous = value
        if policy is Policy.POISSON and isinstance(base, Gaussian):
            # One of the two records may contribute nothing.
            assert (value >= renyi.curve(term, Adjacency.ADD_REMOVE, orders) * (1 - 1e-9)).all()


@pytest.mark.parametrize("policy", [Policy.POISSON, Policy.FIXED_SIZE])
@pytest.mark.parametrize(("rate", "scale"), [(0.02, 1.0), (0.3, 3.0), (0.7, 0.8)])
def test_laplace_never_below_concrete_neighbours(policy, rate, scale):
    orders = np.array([1.5, 2.0, 3.0, 6.0])
    bound = renyi.curve(Term(Laplace(scale, 1), policy, rate), REPLACE, orders)
    x = np.arange(-1 - 45 * scale, 1 + 45 * scale, 2e-4 * scale)
    for c in (0.0,) if policy is Policy.POISSON else (-1.0, 0.0, 1.0):
        p, q = (
            np.logaddexp(math.log1p(-rate) - abs(x - c) / scale, math.log(rate) - abs(x - at) / scale)
            - math.log(2 * scale)
            for at in (1.0, -1.0)
        )
        for order, value in zip(orders, bound, strict=True):
            truth = math.log(np.exp(order * p + (1 - order) * q).sum() * 2e-4 * scale)
            assert truth <= value * (1 + 1e-6) + 1e-8
