"""The best of K runs by privacy profiles: never below what small mechanisms, added up exactly, really cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from tacit.accounting import guarantee
from tacit.accounting.selected import stretch
from tacit.accounting.selection import mean_trials
from tacit.ledger import Adjacency, Everyone, GaussianSum, Header, Poisson, Selection, Step

RUN = Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=2.0),))
LAWS = [(1.0, 0.1), (0.0, 0.1), (0.5, 0.3), (-0.5, 0.2), (3.0, 0.5), (0.0, 0.01)]


def negative_binomial(eta: float, gamma: float, candidate: tuple[tuple[Step, int], ...] = ((RUN, 1),)) -> Selection:
    return Selection(group="s", trials="truncated-negative-binomial", eta=eta, gamma=gamma, candidate=candidate)


def poisson(mean: float, candidate: tuple[tuple[Step, int], ...] = ((RUN, 1),)) -> Selection:
    return Selection(group="s", trials="poisson", mean=mean, candidate=candidate)


SELECTIONS = [*(negative_binomial(*law) for law in LAWS), *(poisson(mean) for mean in (0.5, 3.0, 20.0))]


def chances(chosen: Selection) -> np.ndarray:
    """P[K = k] for k = 0, 1, ..., by the recursions of the definitions; what is left out is below 1e-16."""
    most = 200 if chosen.gamma is None else math.ceil(40 / chosen.gamma)
    found = np.zeros(most)
    if chosen.trials == "poisson":
        assert chosen.mean is not None
        found[0] = math.exp(-chosen.mean)
        for k in range(1, 200):
            found[k] = found[k - 1] * chosen.mean / k
        return found
    assert chosen.eta is not None and chosen.gamma is not None
    found[1] = 1.0
    for k in range(1, most - 1):
        found[k + 1] = found[k] * (1 - chosen.gamma) * (k + chosen.eta) / (k + 1)
    return found / found.sum()


def best(law: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Return the chances of "no run" and of each outcome as the best, outcomes listed from worst to best."""
    below = np.concatenate([[0.0], np.cumsum(run)])
    powers = np.array([np.polynomial.polynomial.polyval(min(x, 1.0), law) for x in below])
    return np.concatenate([[law[0]], np.diff(powers)])


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def profile(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    """Laws of one run on neighbours: random ones, and ones sorted so that what tells most is best or worst."""
    random, found = np.random.default_rng(5), []
    for size in (2, 3, 6, 20):
        for spread in (0.1, 0.5, 1.5):
            p = random.dirichlet(np.ones(size))
            q = p * np.exp(spread * random.standard_normal(size))
            q /= q.sum()
            order = np.argsort(p / q)
            found += [(p, q), (p[order], q[order]), (p[order[::-1]], q[order[::-1]])]
    rare = np.array([1 - 1e-3, 1e-3]), np.array([1 - 1e-5, 1e-5])
    return [*found, rare]


@pytest.mark.parametrize("chosen", SELECTIONS, ids=lambda each: f"{each.trials} {each.eta} {each.gamma} {each.mean}")
def test_the_bound_holds_for_mechanisms_added_up_exactly(chosen: Selection) -> None:
    law, cases, broken = chances(chosen), 0, 0
    lines = [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    for p, q in pairs():
        whole, other = best(law, p), best(law, q)
        c = stretch(chosen, lines, [profile(p, q, a) for a in lines])
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
            true = profile(whole, other, epsilon)
            left = epsilon - c
            own = profile(p, q, left)
            assert true <= mean_trials(chosen) * own * (1 + 1e-9) + 1e-12, (p, q, epsilon)
            broken += true > mean_trials(chosen) * profile(p, q, epsilon) * (1 + 1e-9) + 1e-12
            cases += 1
    assert cases >= 60
    assert broken or mean_trials(chosen) < 2  # without c it would not hold


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("chosen", SELECTIONS[:5] + SELECTIONS[6:], ids=lambda each: f"{each.trials} {each.eta}")
def test_a_selection_among_gaussian_releases_costs_no_less_than_its_density_says(
    chosen: Selection, adjacency: Adjacency
) -> None:
    """Scored by the release itself, on neighbours that are a shift apart, the density of the best is known."""
    shift = 0.5 if adjacency is Adjacency.ADD_REMOVE else 1.0
    axis = np.linspace(-12, 12, 8_001)
    law = chances(chosen)
    slope = law[1:] * np.arange(1, len(law))

    def density(mean: float) -> np.ndarray:
        below = norm.cdf(axis - mean)
        return np.polynomial.polynomial.polyval(below, slope) * norm.pdf(axis - mean)

    p, q, cell = density(0.0), density(shift), axis[1] - axis[0]
    for epsilon in (0.5, 1.5):
        true = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)) * cell
        step = Step(Everyone(), (chosen,))
        claimed = guarantee([(step, 1)], Header(adjacency=adjacency), epsilon=epsilon)
        assert claimed.accountant == "pld"
        assert claimed.delta >= true * (1 - 1e-6)


def test_it_is_never_above_the_renyi_bound_and_well_below_for_what_people_run() -> None:
    run = Step(Poisson(rate=0.01), (GaussianSum(group="gradients", clip_norm=1.0, noise_std=1.514),))
    for chosen, gain in [(negative_binomial(1.0, 0.1, ((run, 1000),)), 0.75), (poisson(10.0, ((run, 1000),)), 0.95)]:
        step = Step(Everyone(), (chosen,))
        profiles = guarantee([(step, 1)], Header(), delta=1e-5).epsilon
        renyi = guarantee([(step, 1)], Header(), delta=1e-5, accountant="rdp").epsilon
        assert profiles < gain * renyi


def test_epsilon_and_delta_agree() -> None:
    step = Step(Everyone(), (negative_binomial(0.0, 0.1),))
    found = guarantee([(step, 1)], Header(), delta=1e-5)
    again = guarantee([(step, 1)], Header(), epsilon=found.epsilon * (1 + 1e-6))
    assert 0.99e-5 < again.delta <= 1e-5
    assert found.epsilon_lower is None
    curve = found.curve([0.0, 0.1, 0.5, 1.0, 3.0])
    assert curve == sorted(curve, reverse=True)


def test_beside_other_steps_the_renyi_accountant_answers_and_the_guarantee_says_so() -> None:
    step = Step(Everyone(), (negative_binomial(0.0, 0.1),))
    found = guarantee([(step, 1), (RUN, 1)], Header(), delta=1e-5)
    assert found.accountant == "rdp"
    twice = guarantee([(step, 2)], Header(), delta=1e-5)
    assert twice.accountant == "rdp"


def test_runs_of_terms_that_cannot_be_compared_are_charged_by_the_renyi_accountant() -> None:
    rare = Step(Poisson(rate=0.01), (GaussianSum(group="gradients", clip_norm=1.0, noise_std=1.0),))
    score = Step(Everyone(), (GaussianSum(group="score", clip_norm=1.0, noise_std=10.0),))
    for second, answers in ((score, "rdp"), (replace(rare, sampling=Poisson(rate=0.005)), "pld")):
        step = Step(Everyone(), (negative_binomial(0.0, 0.1, ((rare, 10), (second, 1))),))
        assert guarantee([(step, 1)], Header(), delta=1e-5).accountant == answers
