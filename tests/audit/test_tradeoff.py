"""One run against a whole curve: the recursion against a linear program, and against mechanisms that have the curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from tacit.audit.tradeoff import TradeOff, refuted


def gaussian_curve(mu: float, points: int = 25, reach: float = 8.0) -> TradeOff:
    epsilons = [reach * (place / points) ** 1.5 for place in range(points + 1)]
    deltas = [float(norm.cdf(-e / mu + mu / 2) - math.exp(e) * norm.cdf(-e / mu - mu / 2)) for e in epsilons]
    return TradeOff.of(epsilons, deltas)


CURVES = [
    TradeOff(points=((0.7, 0.0),)),
    TradeOff(points=((1.2, 0.01), (0.3, 0.2))),
    gaussian_curve(0.9),
]


def most_likely_tail(curve: TradeOff, canaries: int, guesses: int, correct: int, *, below: int) -> float:
    """The largest P[W >= correct] over all laws of W that obey the theorem's inequality for c up to ``below``."""
    rows, limits = [], []
    for c in range(1, below + 1):
        right = np.array([i / canaries if i >= c else 0.0 for i in range(guesses + 1)])
        wrong = np.array([(guesses - i) / canaries if i >= c - 1 else 0.0 for i in range(guesses + 1)])
        for epsilon, delta in curve.points:
            rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
            limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    tail = -np.array([float(i >= correct) for i in range(guesses + 1)])
    ones = np.ones((1, guesses + 1))
    return -linprog(tail, A_ub=np.array(rows), b_ub=limits, A_eq=ones, b_eq=[1.0], bounds=(0, 1)).fun


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(6, 6, 5), (12, 8, 8), (20, 10, 8), (30, 30, 24)])
def test_the_recursion_finds_what_a_linear_program_finds(
    curve: TradeOff, canaries: int, guesses: int, correct: int
) -> None:
    numbers = {"canaries": canaries, "guesses": guesses, "correct": correct}
    relaxed = most_likely_tail(curve, canaries, guesses, correct, below=correct)
    assert not refuted(curve, **numbers, level=relaxed * 0.999)
    assert refuted(curve, **numbers, level=relaxed * 1.001) or relaxed > 0.999
    every = most_likely_tail(curve, canaries, guesses, correct, below=guesses)
    assert every <= relaxed + 1e-6  # the recursion leaves inequalities out: it refutes less, never more


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_randomised_response_is_never_refuted_by_what_it_does(epsilon: float) -> None:
    curve, rate = TradeOff(points=((epsilon, 0.0),)), 1 / (1 + math.exp(-epsilon))
    for correct in range(30, 61, 3):
        happens = float(binom.sf(correct - 1, 60, rate))
        assert not refuted(curve, canaries=60, guesses=60, correct=correct, level=happens * 0.999)


def test_b_and_a_are_inverse_and_b_is_the_trade_off_of_gaussians() -> None:
    curve = gaussian_curve(1.0, points=400)
    for probability in (0.001, 0.05, 0.3, 0.8):
        assert curve.least(curve.most(probability)) == pytest.approx(probability, rel=1e-6)
        exact = float(norm.cdf(norm.ppf(probability) + 1.0))
        assert exact <= curve.most(probability) <= exact + 1e-3


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_gaussian_noise_is_refuted_no_more_often_than_the_level(mu: float) -> None:
    random, curve, wrong = np.random.default_rng(4), gaussian_curve(mu), 0
    for _ in range(60):
        coins = random.integers(0, 2, 400)
        order = np.argsort(random.standard_normal(400) + mu * coins)
        right = int(coins[order[-20:]].sum() + (1 - coins[order[:20]]).sum())
        wrong += refuted(curve, canaries=400, guesses=40, correct=right, level=0.05)
        quieter = gaussian_curve(mu / 4)
    assert wrong <= 3
    assert refuted(quieter, canaries=400, guesses=40, correct=40, level=0.05)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="5 of 4 guesses"):
        refuted(CURVES[0], canaries=10, guesses=4, correct=5, level=0.1)
