"""Selecting the best of several runs: the theorems' formulas, and exact small cases."""

import math

import mpmath as mp
import numpy as np
import pytest

from tacit.accounting import Composition, Unproved, compose, selection
from tacit.accounting.composition import Best, Gaussian, Policy, Pure, Term
from tacit.accounting.rdp import Rdp
from tacit.ledger import Adjacency
from tacit.ledger import events as ev

ADD = Adjacency.ADD_REMOVE
STEP = ev.Step(ev.Everyone(), (ev.GaussianSum(group="g", clip_norm=1.0, noise_std=4.0),))


def negative_binomial(eta, gamma, candidate=((STEP, 1),)):
    return ev.Selection(
        group="s", trials="truncated-negative-binomial", eta=eta, gamma=gamma, candidate=tuple(candidate)
    )


def poisson(mean):
    return ev.Selection(group="s", trials="poisson", mean=mean, candidate=((STEP, 1),))


def best(chosen, candidate):
    return Composition(ADD, ((Term(Best(chosen, candidate)), 1),))


def chances(chosen, most=4000):
    """P[K = k] for k = 0 .. most, from the definition."""
    if chosen.trials == "poisson":
        return [mp.exp(-chosen.mean) * mp.mpf(chosen.mean) ** k / mp.factorial(k) for k in range(80)]
    eta, gamma = mp.mpf(chosen.eta), mp.mpf(chosen.gamma)
    if eta == 0:
        weights = [mp.mpf(0)] + [(1 - gamma) ** k / k for k in range(1, most)]
    else:
        weights, term = [mp.mpf(0)], mp.mpf(1)
        for k in range(1, most):
            term *= (k - 1 + eta) / k * (1 - gamma) if k > 1 else eta * (1 - gamma)
            weights.append(term if eta > 0 else -term)
    total = mp.fsum(weights)
    return [weight / total for weight in weights]


NEGATIVE = [(1.0, 0.1), (0.0, 0.1), (0.5, 0.3), (-0.5, 0.2), (3.0, 0.5), (1e-9, 0.1)]


@pytest.mark.parametrize(("eta", "gamma"), NEGATIVE)
def test_mean(eta, gamma):
    mean = mp.fsum(k * p for k, p in enumerate(chances(negative_binomial(eta, gamma))))
    assert selection.mean_trials(negative_binomial(eta, gamma)) == pytest.approx(float(mean), rel=1e-6)
    assert selection.mean_trials(negative_binomial(1.0, gamma)) == pytest.approx(1 / gamma)


@pytest.mark.parametrize(
    "chosen", [*(negative_binomial(*pair) for pair in NEGATIVE), *(poisson(mean) for mean in (0.05, 1.0, 10.0))]
)
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_exact_selection_from_randomised_response(chosen, epsilon):
    """Each run answers 1 or 0 by randomised response; the best of K is 1 if any is. No K: a third outcome."""
    weights = chances(chosen, 600)
    high = mp.exp(epsilon) / (1 + mp.exp(epsilon))

    def outcome(chance_of_one):
        zero = mp.fsum(w * (1 - chance_of_one) ** k for k, w in enumerate(weights) if k > 0)
        return [weights[0], zero, mp.fsum(weights[1:]) - zero]

    candidate = Composition(ADD, ((Term(Pure(epsilon)), 1),))
    orders, bound = Rdp().curve(best(chosen, candidate))
    for p, q in ((outcome(high), outcome(1 - high)), (outcome(1 - high), outcome(high))):
        for order, value in zip(orders, bound, strict=True):
            if 1.01 < order < 200:
                a = mp.mpf(float(order))
                truth = mp.log(mp.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True) if x > 0)) / (a - 1)
                assert truth <= value + 1e-12


@pytest.mark.parametrize(("eta", "gamma"), NEGATIVE)
def test_theorem_2(eta, gamma):
    """The formula evaluated apart, for a Gaussian candidate where D_β = β/(2σ²), with β free."""
    sigma, runs = 8.0, negative_binomial(eta, gamma)
    candidate = Composition(ADD, ((Term(Gaussian(sigma)), 1),))
    orders = (1.5, 3.0, 20.0)
    _, ours = Rdp(orders).curve(best(runs, candidate))
    with mp.workdps(30):
        rho = 1 / (2 * mp.mpf(sigma) ** 2)
        mean = mp.fsum(k * p for k, p in enumerate(chances(runs)))
        # (1 - 1/β) ρβ + log(1/γ)/β is least at β = sqrt(log(1/γ)/ρ).
        beta = mp.sqrt(mp.log(1 / mp.mpf(gamma)) / rho)
        extra = (1 + mp.mpf(eta)) * (rho * (beta - 1) + mp.log(1 / mp.mpf(gamma)) / beta)
        for order, value in zip(orders, ours, strict=True):
            truth = rho * order + extra + mp.log(mean) / (order - 1)
            assert truth * (1 - mp.mpf(10) ** -6) <= value <= truth * mp.mpf("1.05")


def test_theorem_6():
    sigma, mean = 8.0, 10.0
    orders = (2.0, 5.0, 50.0)
    _, ours = Rdp(orders).curve(best(poisson(mean), Composition(ADD, ((Term(Gaussian(sigma)), 1),))))
    for order, value in zip(orders, ours, strict=True):
        epsilon = math.log1p(1 / (order - 1))
        slip = Rdp().delta(Composition(ADD, ((Term(Gaussian(sigma)), 1),)), epsilon).upper
        stated = order / (2 * sigma**2) + mean * slip + math.log(mean) / (order - 1)
        assert stated * (1 - 1e-9) <= value <= stated * 1.1 + 1e-9


def test_a_ledger_with_a_selection():
    chosen = negative_binomial(1.0, 0.1, candidate=((STEP, 3),))
    plan = compose([(ev.Step(ev.Everyone(), (chosen,)), 1)], ADD)
    single = compose([(STEP, 3)], ADD)
    naive = compose([(STEP, 30)], ADD)
    cost = Rdp().epsilon(plan, 1e-5).upper
    assert Rdp().epsilon(single, 1e-5).upper < cost < Rdp().epsilon(naive, 1e-5).upper * 1.5
    assert np.isfinite(cost)


def test_selection_inside_a_selection_and_on_a_sample():
    inner = best(negative_binomial(0.0, 0.2), Composition(ADD, ((Term(Gaussian(20.0)), 1),)))
    outer = best(negative_binomial(1.0, 0.5), inner)
    assert Rdp().epsilon(inner, 1e-5).upper < Rdp().epsilon(outer, 1e-5).upper
    term = Term(Best(negative_binomial(0.0, 0.2), inner), Policy.POISSON, 0.1)
    with pytest.raises(Unproved, match="selection with poisson sampling"):
        Rdp().epsilon(Composition(ADD, ((term, 1),)), 1e-5)
