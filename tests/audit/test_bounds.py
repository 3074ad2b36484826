"""From guesses to ε: against exact enumeration, simulation and mpmath, never too high."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from tacit.accounting import gaussian
from tacit.audit.bounds import (
    at_least,
    at_most,
    best_guess,
    distinguishing_epsilon,
    guessed,
    largest,
    one_run_epsilon,
    p_value,
)
from tacit.audit.curve import gaussian_epsilon
from tacit.ledger import Everyone, GaussianSum, Ledger, Step


def binomial(n: int, p: float, k: int) -> float:
    return float(mpmath.binomial(n, k) * mpmath.mpf(p) ** k * mpmath.mpf(1 - p) ** (n - k))


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (17, 400)])
def test_clopper_pearson_inverts_the_binomial_tail(successes: int, trials: int) -> None:
    upper, lower = at_most(successes, trials, 0.01), at_least(successes, trials, 0.01)
    if successes < trials:
        assert sum(binomial(trials, upper, k) for k in range(successes + 1)) == pytest.approx(0.01, rel=1e-6)
    else:
        assert upper == 1
    if successes:
        assert sum(binomial(trials, lower, k) for k in range(successes, trials + 1)) == pytest.approx(0.01, rel=1e-6)
    else:
        assert lower == 0


@pytest.mark.parametrize("probability", [0.001, 0.2, 0.9])
def test_clopper_pearson_covers(probability: float) -> None:
    trials, level = 60, 0.05
    missed_above = sum(binomial(trials, probability, k) for k in range(61) if at_most(k, trials, level) < probability)
    missed_below = sum(binomial(trials, probability, k) for k in range(61) if at_least(k, trials, level) > probability)
    assert missed_above <= level and missed_below <= level


def test_epsilon_of_a_test_is_that_of_randomised_response() -> None:
    epsilon = 1.3
    right = 1 / (1 + math.exp(-epsilon))
    assert distinguishing_epsilon(1 - right, right, 0.0) == pytest.approx(epsilon)
    assert distinguishing_epsilon(1 - right, right, 0.1) < epsilon
    assert distinguishing_epsilon(0.5, 0.5, 0.0) == 0.0
    assert distinguishing_epsilon(0.0, 0.0, 0.0) == 0.0


def leaky(epsilon: float, delta: float) -> float:
    """The rate of right guesses of randomised response that shows its bit with probability δ: (ε, δ)-DP, and tight."""
    return delta + (1 - delta) / (1 + math.exp(-epsilon))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.001), (2.0, 0.01), (0.1, 0.05)])
def test_the_p_value_bounds_the_worst_independent_mechanism(epsilon: float, delta: float) -> None:
    canaries = 30
    for correct in range(canaries + 1):
        exact = sum(binomial(canaries, leaky(epsilon, delta), k) for k in range(correct, canaries + 1))
        assert p_value(canaries, canaries, correct, epsilon, delta) >= exact - 1e-12


def test_the_p_value_bounds_a_mechanism_that_gives_all_away_at_once() -> None:
    # With probability δ everything is shown, else randomised response: (ε, δ)-DP, and far from independent.
    epsilon, delta, canaries = 1.0, 0.02, 40
    rate = 1 / (1 + math.exp(-epsilon))
    for correct in range(canaries + 1):
        plain = sum(binomial(canaries, rate, k) for k in range(correct, canaries + 1))
        assert p_value(canaries, canaries, correct, epsilon, delta) >= (1 - delta) * plain + delta - 1e-12


def test_the_p_value_bounds_every_mechanism_on_two_bits() -> None:
    """Random mechanisms on two bits, each charged the least δ at which it is (ε, δ)-DP, and their best guesses."""
    chance, epsilon = np.random.default_rng(3), 0.7
    states = list(itertools.product((0, 1), repeat=2))
    for _ in range(300):
        table = {state: chance.dirichlet(np.full(6, 0.4)) for state in states}
        delta = max(
            np.maximum(table[a] - math.exp(epsilon) * table[b], 0).sum()
            for a in states
            for b in states
            if sum(x != y for x, y in zip(a, b)) == 1
        )
        for least in (1, 2):
            success = sum(
                max(
                    sum(table[s][out] / 4 for s in states if sum(x == y for x, y in zip(s, guess)) >= least)
                    for guess in states
                )
                for out in range(6)
            )
            assert success <= p_value(2, 2, least, epsilon, min(float(delta), 1.0)) + 1e-9


def test_p_value_without_delta_is_a_binomial_tail() -> None:
    rate = 1 / (1 + math.exp(-1.0))
    assert p_value(100, 20, 18, 1.0, 0.0) == pytest.approx(sum(binomial(20, rate, k) for k in (18, 19, 20)))
    assert p_value(100, 20, 0, 1.0, 0.1) == 1.0


def test_one_run_epsilon_is_where_the_p_value_crosses_the_level() -> None:
    found = one_run_epsilon(200, 50, 48, 1e-4, 0.05)
    assert p_value(200, 50, 48, found, 1e-4) < 0.05 <= p_value(200, 50, 48, found + 1e-4, 1e-4)
    assert one_run_epsilon(200, 50, 25, 1e-4, 0.05) == 0.0
    # More δ proves less, more right guesses prove more, more canaries (more chances for δ) prove less.
    assert one_run_epsilon(200, 50, 48, 1e-3, 0.05) < found < one_run_epsilon(200, 50, 49, 1e-4, 0.05)
    assert one_run_epsilon(400, 50, 48, 1e-4, 0.05) < found


def test_guesses_are_the_extremes() -> None:
    assert guessed(np.array([0.3, -2.0, 5.0, 0.1, 1.0]), 3).tolist() == [0, -1, 1, 0, 1]
    epsilon, count, right = best_guess(np.arange(40.0), (np.arange(40) >= 20) * 1.0, (10, 40), 0.0, 0.05)
    assert (count, right) == (40, 40) and epsilon > 2


def test_largest_is_from_below() -> None:
    assert largest(lambda value: value < 0.3, 0.0, 1.0) == pytest.approx(0.3, abs=1e-6)
    assert largest(lambda value: value < 0.3, 0.0, 1.0) < 0.3
    assert largest(lambda value: False, 0.0, 1.0) == 0.0


@pytest.mark.parametrize("z", [0.4, 1.0, 3.0])
def test_on_exact_rates_the_curve_gives_back_the_gaussian(z: float) -> None:
    normal = mpmath.ncdf
    false, true = float(1 - normal(0.5 / z)), float(normal(0.5 / z))
    ledger = Ledger()
    query = GaussianSum(group="gradients", clip_norm=1.0, noise_std=1.5 * z)  # the recorded noise is not the true one
    ledger.record(Step(Everyone(), (query,)))
    found = gaussian_epsilon(ledger, false, true, 1e-5)
    assert 0.97 * gaussian.epsilon(1 / z, 1e-5) <= found <= gaussian.epsilon(1 / z, 1e-5)
    assert gaussian_epsilon(ledger, 0.5, 0.5, 1e-5) == 0.0
