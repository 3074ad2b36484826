"""The Rényi accountant, against peers, against the truth, and against itself."""

import itertools
import math
import random

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer_pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis.rdp import compute_rdp

from tacit.accounting import Composition, Unproved, compose, renyi
from tacit.accounting.composition import Gaussian, Laplace, Policy, Pure, Term
from tacit.accounting.moments import Moments
from tacit.accounting.rdp import DEFAULT_ORDERS, Rdp
from tacit.ledger import Adjacency
from tacit.ledger import events as ev

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
ORDERS = np.array([1.001, 1.1, 1.5, 2.0, 2.5, 4.0, 16.0, 33.0])


def steps(rate, noise, count, adjacency=ADD):
    policy = Policy.POISSON if rate < 1 else Policy.ALWAYS
    return Composition(adjacency, ((Term(Gaussian(noise), policy, rate), count),))


def one(term, adjacency=ADD, count=1):
    return Composition(adjacency, ((term, count),))


@pytest.mark.parametrize(("count", "epsilon"), [(10_000, 1.0355), (40_000, 2.2097)])
def test_known_numbers(count, epsilon):
    ours = Rdp().epsilon(steps(0.01, 4.0, count), 1e-5).upper
    assert ours == pytest.approx(epsilon, abs=2e-4)
    assert ours < Moments(512).epsilon(steps(0.01, 4.0, count), 1e-5).upper


def test_single_gaussian_is_alpha_over_two_sigma_squared():
    _, values = Rdp(tuple(ORDERS)).curve(steps(1.0, 3.0, 5))
    assert values == pytest.approx(5 * ORDERS / 18, rel=1e-14)
    _, values = Rdp(tuple(ORDERS)).curve(steps(1.0, 3.0, 5, REPLACE))
    assert values == pytest.approx(4 * 5 * ORDERS / 18, rel=1e-14)


GRID = list(itertools.product((1e-4, 0.01, 0.3, 1.0), (0.5, 1.0, 4.0, 20.0), (1, 1000)))


@pytest.mark.parametrize(("rate", "noise", "count"), GRID)
def test_never_looser_than_the_peers(rate, noise, count):
    orders = [1.1, 1.5, 2, 2.5, 3, 4.5, 8, 16, 32, 64, 256]
    _, ours = Rdp(tuple(float(order) for order in orders)).curve(steps(rate, noise, count))
    opacus = np.array(compute_rdp(q=rate, noise_multiplier=noise, steps=count, orders=orders))
    # The peers lose digits to cancellation where the divergence is small; ours is checked to 1e-10 elsewhere.
    assert ours == pytest.approx(opacus, rel=1e-5, abs=1e-10 * count)
    peer = RdpAccountant()
    event = dp_accounting.GaussianDpEvent(noise)
    event = dp_accounting.PoissonSampledDpEvent(rate, event) if rate < 1 else event
    peer.compose(event, count)
    for delta in (1e-10, 1e-5, 1e-3):
        assert Rdp().epsilon(steps(rate, noise, count), delta).upper <= peer.get_epsilon(delta) * (1 + 5e-4) + 1e-12


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta"),
    [
        (0.01, 4.0, 10_000, 1e-5),
        (0.1, 1.0, 10, 1e-5),
        (1.0, 2.0, 1, 1e-6),
        (1.0, 5.0, 30, 1e-8),
        (0.01, 0.6, 100, 1e-5),
        (0.5, 3.0, 20, 1e-3),
        (0.02, 0.5, 1, 1e-5),
        (0.3, 20.0, 1, 0.1),
    ],
)
def test_not_below_the_truth(rate, noise, count, delta):
    low, high = (
        peer_pld.from_gaussian_mechanism(
            noise,
            pessimistic_estimate=up,
            value_discretization_interval=1e-4 if count > 1 else 1e-3,
            sampling_prob=rate,
        )
        .self_compose(count)
        .get_epsilon_for_delta(delta)
        for up in (False, True)
    )
    plan = steps(rate, noise, count)
    ours = Rdp().epsilon(plan, delta).upper
    assert low <= ours <= 1.3 * high + 0.1
    assert Rdp().delta(plan, ours).upper <= delta * (1 + 1e-2)
    if low > 0:
        assert Rdp().delta(plan, low).upper >= delta


def test_zero_epsilon_only_when_proved():
    """ε = 0 means total variation at most δ; here that is known exactly: erf(μ / (2√2))."""
    for noise, delta in itertools.product((0.5, 1.0, 10.0, 100.0, 1e4), (1e-6, 1e-3, 0.02, 0.1, 0.5, 0.9)):
        if Rdp().epsilon(steps(1.0, noise, 1), delta).upper == 0:
            assert math.erf(1 / noise / 2 / math.sqrt(2)) <= delta
    assert Rdp().epsilon(steps(1.0, 1e4, 1), 0.02).upper == 0
    assert Rdp().epsilon(steps(1.0, 0.1, 10**6), 1e-5).upper > 1e7


@pytest.mark.parametrize("scale", [0.1, 1.0, 7.0, 1e3])
def test_laplace(scale):
    values = renyi.laplace(scale, ORDERS)
    with mp.workdps(50):
        for order, value in zip(ORDERS, values, strict=True):
            a, s = mp.mpf(float(order)), 1 / mp.mpf(scale)
            truth = mp.log((a * mp.exp((a - 1) * s) + (a - 1) * mp.exp(-a * s)) / (2 * a - 1))
            assert float(abs(value / truth - 1)) < 1e-12
    peer = RdpAccountant(orders=[1.5, 2, 8])
    peer.compose(dp_accounting.LaplaceDpEvent(scale))
    assert renyi.laplace(scale, np.array([1.5, 2, 8])) / [0.5, 1, 7] == pytest.approx(peer._rdp, rel=1e-6)


@given(st.lists(st.floats(1e-3, 5), min_size=2, max_size=5), st.floats(1.01, 50))
def test_laplace_vector_is_covered_by_its_l1_norm(shifts, order):
    orders = np.array([order])
    parts = sum(float(renyi.laplace(1 / shift, orders)[0]) for shift in shifts)
    assert parts <= float(renyi.laplace(1 / sum(shifts), orders)[0]) * (1 + 1e-12)


@pytest.mark.parametrize(("rate", "scale"), list(itertools.product((0.01, 0.3, 0.9), (0.3, 1.0, 5.0))))
def test_sampled_laplace(rate, scale):
    orders = np.array([1.3, 2.0, 2.5, 3.0, 7.0])
    bound = renyi.sampled_laplace(rate, scale, orders)
    shift = 1 / scale
    with mp.workdps(25):

        def ratio(x):
            return 1 + rate * mp.expm1(abs(x) - abs(x - shift))

        for order, value in zip(orders, bound, strict=True):
            for power in (order, 1 - order):
                truth = mp.log(
                    mp.quad(lambda x, p=power: mp.exp(-abs(x)) / 2 * ratio(x) ** mp.mpf(p), [-60, -9, 0, shift, 60])
                )
                assert truth <= value * (1 + 1e-12)
                if power == order and order == int(order):
                    assert value == pytest.approx(float(truth), rel=1e-8)


@given(st.floats(1e-6, 20), st.floats(1.001, 200))
def test_pure_is_randomised_response(epsilon, order):
    value = float(renyi.pure(epsilon, np.array([order]))[0])
    with mp.workdps(60):
        e, a = mp.exp(mp.mpf(epsilon)), mp.mpf(order)
        high, low = e / (1 + e), 1 / (1 + e)
        truth = mp.log(high**a * low ** (1 - a) + low**a * high ** (1 - a))
        assert float(abs(value / truth - 1)) < 1e-10
    # Never worse than zCDP (Bun & Steinke 2016) nor than ε itself.
    assert value <= (order - 1) * min(epsilon, order * epsilon**2 / 2) * (1 + 1e-12)


def random_plan(seed):
    rng = random.Random(seed)
    terms = [
        Term(Gaussian(rng.uniform(0.7, 5)), Policy.POISSON, rng.uniform(0.001, 0.5)),
        Term(Gaussian(rng.uniform(2, 50))),
        Term(Laplace(rng.uniform(1, 50), rng.randint(1, 3))),
        Term(Pure(rng.uniform(0.01, 1))),
        Term(Laplace(rng.uniform(1, 50), 1), Policy.POISSON, rng.uniform(0.001, 0.5)),
    ]
    return [(term, rng.randint(1, 20)) for term in terms]


@pytest.mark.parametrize("seed", range(5))
def test_parts_make_the_whole_in_any_order(seed):
    parts = random_plan(seed)
    whole = Composition(ADD, tuple(parts))
    _, total = Rdp().curve(whole)
    assert total == pytest.approx(sum(Rdp().curve(Composition(ADD, (part,)))[1] for part in parts), rel=1e-12)
    doubled = Composition(ADD, tuple((term, 2 * count) for term, count in parts))
    assert Rdp().epsilon(Composition(ADD, tuple(parts + parts)), 1e-6).upper == pytest.approx(
        Rdp().epsilon(doubled, 1e-6).upper, rel=1e-12
    )
    shuffled = Composition(ADD, tuple(reversed(parts)))
    assert Rdp().epsilon(shuffled, 1e-6).upper == pytest.approx(Rdp().epsilon(whole, 1e-6).upper, rel=1e-12)


def test_from_a_ledger():
    query = ev.GaussianSum(group="a", clip_norm=2.0, noise_std=8.0)
    plan = compose([(ev.Step(ev.Poisson(rate=0.01), (query,)), 10_000)], ADD)
    found, known = Rdp().epsilon(plan, 1e-5).upper, Rdp().epsilon(steps(0.01, 4.0, 10_000), 1e-5).upper
    assert known <= found <= known * (1 + 1e-8)  # multipliers are rounded down to ten figures


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-5, -0.05), st.floats(-0.5, 1.5), st.integers(1, 10**7), st.floats(-12, -1.5), st.sampled_from(Adjacency)
)
def test_monotone(log_rate, log_noise, count, log_delta, adjacency):
    rate, noise, delta = 10**log_rate, 10**log_noise, 10**log_delta
    base = Rdp().epsilon(steps(rate, noise, count, adjacency), delta).upper
    # The search over orders is not exhaustive, so two answers can differ by its resolution.
    least = base * (1 - 2e-3)
    for other, at in (
        (steps(min(1.0, rate * 1.02), noise, count, adjacency), delta),
        (steps(rate, noise / 1.02, count, adjacency), delta),
        (steps(rate, noise, math.ceil(count * 1.02), adjacency), delta),
        (steps(rate, noise, count, adjacency), delta / 1.1),
    ):
        assert Rdp().epsilon(other, at).upper >= least


@settings(max_examples=20, deadline=None)
@given(st.floats(-5, 0), st.floats(-0.5, 1.5), st.integers(1, 10**6), st.floats(-12, -1.5))
def test_choosing_the_order_is_as_good_as_a_fine_grid(log_rate, log_noise, count, log_delta):
    plan, delta = steps(10**log_rate, 10**log_noise, count), 10**log_delta
    grid = tuple(1 + float(x) for x in np.geomspace(1e-3, 60, 400)) + tuple(float(x) for x in range(62, 512))
    assert Rdp().epsilon(plan, delta).upper <= Rdp(grid).epsilon(plan, delta).upper * (1 + 1e-3)


def test_refusals():
    with pytest.raises(Unproved, match="Pure with poisson sampling under add/remove"):
        Rdp().epsilon(one(Term(Pure(1.0), Policy.POISSON, 0.1)), 1e-5)
    with pytest.raises(Unproved, match="Gaussian with fixed-size sampling under add/remove"):
        Rdp().epsilon(one(Term(Gaussian(1.0), Policy.FIXED_SIZE, 0.1)), 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, True, "1e-5", None])
def test_bad_delta(delta):
    with pytest.raises(ValueError, match=r"delta is .*; it must be in \(0, 1\)\."):
        Rdp().epsilon(steps(0.01, 4.0, 10), delta)


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, math.inf, True, "1", None])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match=r"epsilon is .*; it must be a finite number, at least 0\."):
        Rdp().delta(steps(0.01, 4.0, 10), epsilon)


@pytest.mark.parametrize("orders", [(), (1.0,), (1 + 1e-8,), (0.5, 2.0), (math.nan,), (math.inf,), (True,), ("2",)])
def test_bad_orders(orders):
    with pytest.raises(ValueError, match=r"order"):
        Rdp(orders)


@pytest.mark.parametrize(("noise", "count"), [(1e-200, 1), (1e-9, 1), (1.0, 10**400)])
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_infinity_is_not_an_answer(noise, count, adjacency, rate):
    with pytest.raises(ValueError, match="no finite epsilon"):
        Rdp().epsilon(steps(rate, noise, count, adjacency), 1e-5)
    assert Rdp().delta(steps(rate, noise, count, adjacency), 1.0).upper == 1.0


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("noise", [1e5, 1e9, 1e200])
def test_a_great_deal_of_noise(noise, adjacency):
    bases = [
        Term(Gaussian(noise)),
        Term(Gaussian(noise), Policy.POISSON, 0.1),
        Term(Laplace(noise, 2), Policy.POISSON, 0.1),
    ]
    if adjacency is REPLACE:
        bases += [Term(base, Policy.FIXED_SIZE, 0.1) for base in (Gaussian(noise), Laplace(noise, 1))]
    for term in bases:
        _, values = Rdp().curve(one(term, adjacency))
        assert (values > 0).all()
        assert values[DEFAULT_ORDERS.index(18.0)] < 1e-7
        assert 0 <= Rdp().epsilon(one(term, adjacency), 1e-5).upper < 0.01


def test_underflow_is_not_zero_delta():
    assert 0 < Rdp().delta(steps(1.0, 1.0, 1), 1e4).upper < 1e-300
    assert Rdp().delta(Composition(ADD, ()), 0.0).upper == 0.0


def test_reading_changes_nothing():
    plan = steps(0.01, 4.0, 10)
    orders, values = Rdp().curve(plan)
    before = values.copy()
    values += 1
    orders += 1
    assert Rdp().curve(plan)[1] == pytest.approx(before)
    with pytest.raises(AttributeError):
        Rdp().orders = (2.0,)
