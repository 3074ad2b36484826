"""The moments accountant: the paper's numbers and its definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.accounting import Composition, Unproved, renyi
from tacit.accounting.composition import Best, Gaussian, Laplace, Policy, Pure, Term
from tacit.accounting.moments import Moments, alpha, lemma3_bound, lemma_c1_bound
from tacit.ledger import Adjacency
from tacit.ledger import events as ev

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def steps(rate, noise, count, adjacency=ADD):
    policy = Policy.POISSON if rate < 1 else Policy.ALWAYS
    return Composition(adjacency, ((Term(Gaussian(noise), policy, rate), count),))


@pytest.mark.parametrize(("count", "epsilon", "order"), [(10_000, 1.2586, 19), (40_000, 2.5759, 9)])
def test_the_papers_numbers(count, epsilon, order):
    plan = steps(0.01, 4.0, count)
    assert Moments().epsilon(plan, 1e-5).upper == pytest.approx(epsilon, abs=5e-5)
    orders, totals = Moments().curve(plan)
    assert orders[np.argmin((totals + math.log(1e5)) / orders)] == order


@pytest.mark.parametrize(
    ("noise", "rate", "epsilon", "epochs"), [(8.0, 0.01, 0.5, 54), (4.0, 0.01, 2.0, 246), (2.0, 0.01, 8.0, 728)]
)
def test_epochs_that_fit(noise, rate, epsilon, epochs):
    """To the nearest epoch of 100 steps (53.7 for the first)."""
    assert Moments().epsilon(steps(rate, noise, epochs * 100 - 50), 1e-5).upper <= epsilon
    assert Moments().epsilon(steps(rate, noise, epochs * 100 + 50), 1e-5).upper > epsilon


def test_everyone_has_the_closed_form():
    orders, totals = Moments(512).curve(steps(1.0, 3.0, 7))
    assert totals == pytest.approx(7 * orders * (orders + 1) / 18, rel=1e-14)
    _, doubled = Moments(512).curve(steps(1.0, 3.0, 7, REPLACE))
    assert doubled == pytest.approx(4 * totals, rel=1e-14)


def test_high_orders_do_not_overflow():
    for noise in (0.2, 1.0, 50.0):
        values = alpha(0.05, noise, np.arange(1.0, 513.0))
        assert np.isfinite(values).all()
        assert (np.diff(values) > 0).all()


def test_delta_and_epsilon_are_inverse():
    plan = steps(0.01, 4.0, 10_000)
    epsilon = Moments().epsilon(plan, 1e-5).upper
    assert Moments().delta(plan, epsilon).upper == pytest.approx(1e-5, rel=1e-9)
    assert Moments().delta(plan, 0.0).upper == 1.0
    assert 0 < Moments().delta(plan, 1e6).upper < 1e-300


def test_lemma_3_is_the_right_size():
    # Leading order: α(λ) is close to q²λ(λ+1)/(2σ²) (half of what the lemma grants) when q is small.
    value = float(alpha(1e-4, 8.0, np.array([4.0]))[0])
    assert value < lemma3_bound(1e-4, 8.0, 4) < 2.2 * value


@given(st.floats(1e-4, 3.0), st.integers(1, 64))
def test_lemma_c1_is_above_the_tight_bound(epsilon, order):
    tight = float(renyi.pure(epsilon, np.array([order + 1.0]))[0])
    assert tight <= lemma_c1_bound(epsilon, order) * (1 + 1e-12)


def test_other_terms():
    pure = Composition(ADD, ((Term(Pure(0.1)), 20),))
    assert 0 < Moments().epsilon(pure, 1e-5).upper < 2.0
    noise = Composition(ADD, ((Term(Laplace(10.0, 3)), 20),))
    assert Moments().epsilon(noise, 1e-5).upper <= Moments().epsilon(pure, 1e-5).upper
    assert Moments().epsilon(Composition(ADD, ()), 1e-5).upper == 0.0


@pytest.mark.parametrize(
    ("term", "adjacency"),
    [
        (Term(Gaussian(1.0), Policy.FIXED_SIZE, 0.1), REPLACE),
        (Term(Gaussian(1.0), Policy.POISSON, 0.1), REPLACE),
        (Term(Laplace(1.0, 1), Policy.POISSON, 0.1), ADD),
        (
            Term(
                Best(
                    ev.Selection(group="a", trials="poisson", mean=3.0, candidate=((ev.Step(ev.Everyone(), ()), 1),)),
                    Composition(ADD, ()),
                )
            ),
            ADD,
        ),
    ],
)
def test_the_moments_accountant_names_the_step_it_has_no_proof_for(term, adjacency):
    with pytest.raises(Unproved, match=f"{type(term.base).__name__} with {term.policy} sampling"):
        Moments().epsilon(Composition(adjacency, ((term, 1),)), 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, True, "1e-5", None])
def test_bad_delta(delta):
    with pytest.raises(ValueError, match=r"delta is .*; it must be in \(0, 1\)\."):
        Moments().epsilon(steps(0.01, 4.0, 10), delta)


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, math.inf, True, "1", None])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match=r"epsilon is .*; it must be a finite number, at least 0\."):
        Moments().delta(steps(0.01, 4.0, 10), epsilon)


@pytest.mark.parametrize("order", [0, -1, 1.5, True, 10**6, math.nan])
def test_bad_max_order(order):
    with pytest.raises(ValueError, match="max_order is"):
        Moments(order)


@pytest.mark.parametrize(("noise", "count"), [(1e-200, 1), (1e-9, 1), (1.0, 10**400)])
def test_infinity_is_not_an_answer(noise, count):
    with pytest.raises(ValueError, match="no finite epsilon"):
        Moments().epsilon(steps(0.5, noise, count), 1e-5)
    assert Moments().delta(steps(0.5, noise, count), 1.0).upper == 1.0


@settings(max_examples=40, deadline=None)
@given(st.floats(-4, -0.1), st.floats(-0.3, 1.3), st.integers(1, 10**6), st.floats(-10, -2))
def test_monotone_and_composes(log_rate, log_noise, count, log_delta):
    rate, noise, delta = 10**log_rate, 10**log_noise, 10**log_delta
    base = Moments().epsilon(steps(rate, noise, count), delta).upper
    for other, at in (
        (steps(rate * 1.02, noise, count), delta),
        (steps(rate, noise / 1.02, count), delta),
        (steps(rate, noise, count + 1), delta),
        (steps(rate, noise, count), delta / 1.02),
    ):
        assert Moments().epsilon(other, at).upper >= base * (1 - 1e-12)
    term = Term(Gaussian(noise), Policy.POISSON, rate)
    split = Composition(ADD, ((term, count), (term, 3)))
    assert Moments().epsilon(split, delta).upper == pytest.approx(
        Moments().epsilon(steps(rate, noise, count + 3), delta).upper, rel=1e-12
    )
