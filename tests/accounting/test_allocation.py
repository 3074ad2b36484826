"""Random allocation against integrals computed without any code of the accountant."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tacit.accounting import Unproved, compose, guarantee, plan
from tacit.accounting.accountants import find
from tacit.ledger import Adjacency, Allocated, Everyone, GaussianSum, Header, LaplaceSum, Poisson, Shuffled, Step

SUM = GaussianSum(group="sum", clip_norm=1.0, noise_std=1.0)


def epoch(lots, taken=None, noise=1.0, number=0, participations=1):
    sampling = Allocated(lots=lots, epoch=number, records=10 * lots, participations=participations)
    query = GaussianSum(group="sum", clip_norm=1.0, noise_std=noise)
    return Step(sampling, (query,)), lots if taken is None else taken


def nodes(edges, many=24):
    place, weight = np.polynomial.legendre.leggauss(many)
    low, high = edges[:-1, None], edges[1:, None]
    z = ((high - low) / 2 * place + (low + high) / 2).ravel()
    return z, ((high - low) / 2 * weight).ravel() * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def lognormal(k, mu, added):
    """E[(X - k)+], or E[(k - X)+], for X = exp(mu z - mu^2 / 2): Black and Scholes."""
    inside = k > 0
    d = (mu * mu / 2 - np.log(np.where(inside, k, 1.0))) / mu
    if added:
        return np.where(inside, k * ndtr(mu - d) - ndtr(-d), 0.0)
    return np.where(inside, ndtr(d) - k * ndtr(d - mu), 1 - k)


def edges(k, mu, many):
    low, high = -13.0, 13.0 + mu
    out = np.linspace(low, high, many)
    if k > 0:
        kink, away = (math.log(k) + mu * mu / 2) / mu, np.geomspace(1e-9, 13, many)
        out = np.concatenate([out, kink - away, [kink], kink + away])
    return np.unique(np.clip(out, low, high))


def expected(k, mu, terms, added):
    """E[(S - k)+], or E[(k - S)+], for a sum of so many lognormals, by Gauss-Legendre quadrature."""
    if terms == 1:
        return float(lognormal(np.array([k]), mu, added)[0])
    if terms == 2:
        z, weight = nodes(edges(k, mu, 60))
        return float(weight @ lognormal(k - np.exp(mu * z - mu * mu / 2), mu, added))
    z, weight = nodes(edges(k, mu, 25), 6)
    heavy = weight > 1e-30
    rest = [expected(k - math.exp(mu * at - mu * mu / 2), mu, terms - 1, added) for at in z[heavy]]
    return float(weight[heavy] @ rest)


def true_delta(epsilon, noise, lots, taken):
    """The larger of the two directions' hockey-stick divergences."""
    mu, away = 1 / noise, lots - taken
    removed = expected(math.exp(epsilon) * lots - away, mu, taken, False) / lots
    added = expected(math.exp(-epsilon) * lots - away, mu, taken, True) / lots * math.exp(epsilon)
    return max(removed, added)


CASES = [
    (noise, lots, taken, epsilon)
    for noise in (0.3, 0.7, 1.0, 2.0, 5.0)
    for lots, taken in ((2, 2), (5, 2), (40, 2), (3, 1))
    for epsilon in (0.01, 0.1, 0.5, 1.5)
] + [(1.0, 3, 3, 0.5), (1.0, 3, 3, 2.0), (3.0, 3, 3, 0.3)]


@pytest.mark.parametrize(("noise", "lots", "taken", "epsilon"), CASES)
def test_delta_of_one_epoch_is_bracketed_within_one_percent_of_epsilon(noise, lots, taken, epsilon):
    truth = true_delta(epsilon, noise, lots, taken)
    if truth < 1e-14:
        pytest.skip("the oracle has no digits left")
    composition = compose([epoch(lots, taken, noise)], Adjacency.ADD_REMOVE)
    found = find("pld").delta(composition, epsilon)
    assert found.lower <= truth * (1 + 1e-9)
    assert truth <= found.upper * (1 + 1e-12)
    if truth < 0.5:
        bounds = find("pld").epsilon(composition, truth)
        assert epsilon * (1 - 1e-9) <= bounds.upper <= epsilon * 1.01 + 1e-4
        assert bounds.lower <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 30, 2000])
@pytest.mark.parametrize(("lots", "noise"), [(10, 1.0), (300, 0.8), (20, 4.0)])
def test_epochs_broken_off_after_one_lot_are_poisson_sampling(count, lots, noise):
    broken = [epoch(lots, 1, noise, number) for number in range(count)]
    poisson = [(Step(Poisson(rate=1 / lots), (GaussianSum(group="g", clip_norm=1.0, noise_std=noise),)), count)]
    ours, theirs = (guarantee(entries, Header(), delta=1e-6) for entries in (broken, poisson))
    assert theirs.epsilon_lower <= ours.epsilon <= theirs.epsilon * 1.005
    assert ours.epsilon_lower <= theirs.epsilon
    assert ours.epsilon_lower >= 0.97 * theirs.epsilon


def test_ten_epochs_agree_with_a_simulation():
    """δ(ε) = E_P[(1 - e^(ε - L))+] of ten epochs of eight lots, L drawn two hundred thousand times."""
    rng, mu, lots, epochs = np.random.default_rng(5), 1.0, 8, 10
    loss = np.zeros(200_000)
    for _ in range(epochs):
        z = rng.standard_normal((len(loss), lots))
        z[:, 0] += mu
        loss += np.log(np.exp(mu * z - mu * mu / 2).mean(axis=1))
    entries = [epoch(lots, noise=1 / mu, number=number) for number in range(epochs)]
    for epsilon in (0.5, 2.0, 4.0):
        values = np.maximum(-np.expm1(epsilon - loss), 0.0)
        mean, error = values.mean(), values.std() / math.sqrt(len(values))
        found = find("pld").delta(compose(entries, Adjacency.ADD_REMOVE), epsilon)
        assert found.lower - 5 * error <= mean <= found.upper + 5 * error
        assert found.upper <= 1.05 * found.lower


def test_random_allocation_costs_no_more_than_a_known_lot():
    for noise in (0.05, 0.5, 3.0):
        dealt = guarantee([epoch(10, noise=noise)], Header(), delta=1e-5).epsilon
        known = Step(
            Shuffled(lots=10, epoch=0, records=100, assignment="independent"), epoch(10, noise=noise)[0].queries
        )
        assert dealt <= guarantee([(known, 10)], Header(), delta=1e-5).epsilon * (1 + 1e-6)


def test_more_lots_of_an_epoch_never_cost_less():
    costs = [guarantee([epoch(16, taken)], Header(), delta=1e-6).epsilon for taken in (1, 2, 15, 16)]
    assert costs == sorted(costs)


def test_lots_of_different_noise_are_charged_as_the_least():
    loud, quiet = epoch(10, 5, 1.0)[0], epoch(10, 5, 3.0)[0]
    mixed = guarantee([(loud, 5), (quiet, 5)], Header(), delta=1e-5)
    assert mixed.epsilon == guarantee([(loud, 10)], Header(), delta=1e-5).epsilon
    assert mixed.epsilon_lower is None


def test_several_participations_cost_as_many_smaller_allocations():
    thrice = guarantee([epoch(31, participations=3)], Header(), delta=1e-5)
    blocks = [epoch(10, number=0), epoch(10, number=1), epoch(11, number=2)]
    assert thrice.epsilon == guarantee(blocks, Header(), delta=1e-5).epsilon
    assert thrice.epsilon_lower is None
    every = guarantee([epoch(4, participations=4)], Header(), delta=1e-5)
    assert every.epsilon == guarantee([(Step(Everyone(), (SUM,)), 4)], Header(), delta=1e-5).epsilon


def test_two_participations_are_bounded_exactly():
    """Two of three lots: S = (X1 X2 + X1 X3 + X2 X3) / 3 is the ratio; simulated, and below what is charged."""
    rng, mu = np.random.default_rng(1), 1.0
    z = rng.standard_normal((400_000, 3))
    z[:, :2] += mu
    x = np.exp(mu * z - mu * mu / 2)
    loss = np.log((x[:, 0] * x[:, 1] + x[:, 0] * x[:, 2] + x[:, 1] * x[:, 2]) / 3)
    composition = compose([epoch(3, participations=2)], Adjacency.ADD_REMOVE)
    for epsilon in (0.5, 2.0):
        values = np.maximum(-np.expm1(epsilon - loss), 0.0)
        assert (
            values.mean() - 5 * values.std() / math.sqrt(len(values)) <= find("pld").delta(composition, epsilon).upper
        )


def test_a_replacement_costs_a_removal_and_an_addition():
    entries = [epoch(20, number=number) for number in range(3)]
    replaced = guarantee(entries, Header(adjacency="replace-one"), delta=1e-5)
    assert replaced.epsilon == guarantee(entries, Header(), delta=1e-5, group=2).epsilon
    assert replaced.epsilon_lower is None


@pytest.mark.parametrize("accountant", ["rdp", "moments", "strong"])
def test_accountants_without_a_proof_refuse_by_name(accountant):
    with pytest.raises(Unproved, match=accountant):
        guarantee([epoch(10)], Header(), delta=1e-5, accountant=accountant)


def test_other_noise_and_too_many_lots_are_refused():
    laplace = Step(epoch(10)[0].sampling, (LaplaceSum(group="sum", clip_norm=1.0, scale=1.0, dimension=1),))
    with pytest.raises(Unproved, match="a Laplace query on lots of random allocation has no proof"):
        compose([(laplace, 1)], Adjacency.ADD_REMOVE)
    with pytest.raises(Unproved, match="has 11 lots in the ledger but was cut into 10"):
        compose([epoch(10, 11)], Adjacency.ADD_REMOVE)


def test_a_plan_for_random_allocation_fits_its_budget():
    found = plan(records=1000, lot_size=100, epochs=3, epsilon=2.0, delta=1e-5, sampling="allocation")
    assert 1.9 < found.guarantee.epsilon <= 2.0
    poisson = plan(records=1000, lot_size=100, epochs=3, epsilon=2.0, delta=1e-5)
    assert found.noise_multiplier < 1.02 * poisson.noise_multiplier
