"""Strong composition: the figure's numbers, and that no number is below a proved one."""

import math

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.accounting import Composition, Unproved
from tacit.accounting.composition import Gaussian, Laplace, Policy, Term
from tacit.accounting.rdp import Rdp
from tacit.accounting.strong import Strong, gaussian_epsilon, paper_epsilon, textbook_epsilon
from tacit.ledger import Adjacency


def steps(rate, noise, count):
    policy = Policy.POISSON if rate < 1 else Policy.ALWAYS
    return Composition(Adjacency.ADD_REMOVE, ((Term(Gaussian(noise), policy, rate), count),))


@pytest.mark.parametrize(("count", "epsilon", "within"), [(10_000, 9.34, 0.01), (40_000, 24.22, 0.06)])
def test_the_papers_numbers(count, epsilon, within):
    assert Strong().epsilon(steps(0.01, 4.0, count), 1e-5).upper == pytest.approx(epsilon, abs=within)
    assert paper_epsilon(0.01, 4.0, count, 1e-5) < textbook_epsilon(0.01, 4.0, count, 1e-5)


@settings(max_examples=60, deadline=None)
@given(st.floats(-4, 0), st.floats(-0.5, 1.5), st.integers(0, 6), st.floats(-10, -2))
def test_never_below_a_proved_bound(log_rate, log_noise, log_count, log_delta):
    rate, noise, count, delta = 10**log_rate, 10**log_noise, 10**log_count, 10**log_delta
    plan = steps(rate, noise, count)
    ours = Strong().epsilon(plan, delta).upper
    proved = min(textbook_epsilon(rate, noise, count, delta), Rdp().epsilon(plan, delta).upper)
    assert ours >= proved
    assert ours >= paper_epsilon(rate, noise, count, delta)
    back = Strong().delta(plan, ours).upper
    assert back <= delta * (1 + 1e-6) or back <= Rdp().delta(plan, ours).upper


@pytest.mark.parametrize(("noise", "delta"), [(0.3, 1e-5), (1.0, 1e-5), (4.0, 1e-10), (50.0, 1e-3), (50.0, 0.3)])
def test_exact_gaussian(noise, delta):
    epsilon = gaussian_epsilon(noise, delta)
    with mp.workdps(40):
        s, e = 1 / mp.mpf(noise), mp.mpf(epsilon)
        truth = mp.ncdf(s / 2 - e / s) - mp.exp(e) * mp.ncdf(-s / 2 - e / s)
    assert truth <= delta
    assert epsilon == 0 or truth >= delta * (1 - 1e-6)


def test_delta():
    plan = steps(0.01, 4.0, 10_000)
    assert Strong().delta(plan, Strong().epsilon(plan, 1e-5).upper).upper == pytest.approx(1e-5, rel=1e-6)
    assert Strong().delta(plan, 0.0).upper == 1.0
    assert Strong().epsilon(Composition(Adjacency.ADD_REMOVE, ()), 1e-5).upper == 0.0


@pytest.mark.parametrize(
    ("adjacency", "parts"),
    [
        (Adjacency.ADD_REMOVE, ((Term(Gaussian(1.0)), 1), (Term(Gaussian(2.0)), 1))),
        (Adjacency.ADD_REMOVE, ((Term(Laplace(1.0, 1)), 1),)),
        (Adjacency.REPLACE_ONE, ((Term(Gaussian(1.0)), 1),)),
    ],
)
def test_anything_else_is_refused(adjacency, parts):
    with pytest.raises(Unproved, match="one kind of step only"):
        Strong().epsilon(Composition(adjacency, parts), 1e-5)


@pytest.mark.parametrize(("noise", "count"), [(1e-200, 1), (1e-9, 1), (1.0, 10**400)])
def test_infinity_is_not_an_answer(noise, count):
    with pytest.raises(ValueError, match="no finite epsilon"):
        Strong().epsilon(steps(0.5, noise, count), 1e-5)


@pytest.mark.parametrize("delta", [0, 1, math.nan])
def test_bad_delta(delta):
    with pytest.raises(ValueError, match="delta is"):
        Strong().epsilon(steps(0.01, 4.0, 1), delta)
