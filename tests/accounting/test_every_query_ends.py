"""Lower bounds lie below the truth, upper bounds are monotone, and every query ends: the edges of the accountants."""

from __future__ import annotations

import math
import os
import time
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.integrate import quad
from scipy.special import log_ndtr

from tacit.accounting import Composition, compose, gaussian, guarantee, plan
from tacit.accounting.accountants import find
from tacit.accounting.composition import Gaussian, Policy, Term
from tacit.accounting.pld import Pld
from tacit.ledger import Adjacency, Everyone, GaussianSum, Header, Poisson, Step

ISSUE = (1.47791e-4, 1.10675, 1.039e-15)


def sampled(rate: float, noise: float, steps: int) -> Composition:
    return Composition(Adjacency.ADD_REMOVE, ((Term(Gaussian(noise), Policy.POISSON, rate), steps),))


def upper(rate: float, noise: float, steps: int, delta: float) -> float:
    return Pld().epsilon(sampled(rate, noise, steps), delta).upper


def recorded(noise: float, steps: int, clip_norm: float = 1.0, rate: float = 1.0) -> Composition:
    query = GaussianSum(group="sum", clip_norm=clip_norm, noise_std=noise)
    step = Step(Everyone() if rate == 1 else Poisson(rate=rate), (query,))
    return compose([(step, steps)], Adjacency.ADD_REMOVE)


def gaussian_delta(noise: float, clip_norm: float, steps: int, epsilon: float) -> mp.mpf:
    """δ of unsampled Gaussian sums, in fifty digits, from the numbers in the ledger as they are."""
    with mp.workdps(50):
        shift = mp.sqrt(steps) * mp.mpf(clip_norm) / mp.mpf(noise)
        e = mp.mpf(epsilon)
        return mp.ncdf(shift / 2 - e / shift) - mp.exp(e) * mp.ncdf(-shift / 2 - e / shift)


@pytest.mark.parametrize(
    ("noise", "clip_norm", "steps", "epsilon"),
    [(2.0, 1.0, 10, 5.0), (1.7, 0.3, 7, 0.9), (1 / 3, 1.0, 1, 12.0), (8.1, 1.1, 1000, 30.0), (1e6, 1.0, 3, 1e-7)],
)
def test_a_lower_bound_on_delta_is_below_the_delta_of_the_noise_in_the_ledger(
    noise: float, clip_norm: float, steps: int, epsilon: float
) -> None:
    found = find("pld").delta(recorded(noise, steps, clip_norm), epsilon)
    exact = gaussian_delta(noise, clip_norm, steps, epsilon)
    assert found.lower is not None and found.lower <= exact <= found.upper
    assert found.upper - found.lower <= 1e-7 * found.upper + 1e-300


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 9.0), st.integers(1, 5000), st.floats(-12.0, -2.0))
def test_a_lower_bound_on_epsilon_is_attained_by_the_noise_in_the_ledger(noise: float, steps: int, log: float) -> None:
    delta = 10**log
    found = find("pld").epsilon(recorded(noise, steps), delta)
    assert found.lower is not None and found.lower <= found.upper
    if found.lower > 0:
        assert gaussian_delta(noise, 1.0, steps, found.lower) >= delta
    assert gaussian_delta(noise, 1.0, steps, found.upper) <= delta * (1 + 1e-12)


@pytest.mark.parametrize(("rate", "noise", "delta"), [(0.01, 1.0, 1e-6), (0.3, 0.7, 1e-20), (1e-6, 0.48, 2e-126)])
def test_one_sampled_step_has_the_epsilon_of_its_closed_form(rate: float, noise: float, delta: float) -> None:
    found = Pld().epsilon(sampled(rate, noise, 1), delta)
    assert found.lower is not None and found.upper - found.lower <= 1e-8 * found.upper

    def exact(epsilon: float) -> mp.mpf:
        with mp.workdps(300):
            inner = mp.log((mp.exp(mp.mpf(epsilon)) - 1 + mp.mpf(rate)) / mp.mpf(rate))
            shift = 1 / mp.mpf(noise)
            tail = mp.erfc((shift / 2 + inner / shift) / mp.sqrt(2)) / 2
            return rate * (mp.ncdf(shift / 2 - inner / shift) - mp.exp(inner) * tail)

    assert exact(found.upper) <= delta <= exact(found.lower)


def two_steps(rate: float, noise: float, epsilon: float) -> float:
    """δ of two steps when a record is removed: E[δ of one step at epsilon less the other's loss], by quadrature."""
    shift = 1 / noise

    def one(e: float) -> float:
        if math.exp(e) <= 1 - rate:
            return -math.expm1(e)
        inner = math.log1p(math.expm1(e) / rate)
        high, low = log_ndtr(shift / 2 - inner / shift), log_ndtr(-shift / 2 - inner / shift)
        return rate * float(np.exp(high) * -np.expm1(inner + low - high))

    def integrand(x: float) -> float:
        ratio = math.exp(x * shift - shift * shift / 2)
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (1 - rate + rate * ratio)
        return density * one(epsilon - math.log1p(rate * (ratio - 1)))

    pieces = np.linspace(-10.0, 14.0, 97)
    return sum(quad(integrand, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in pairwise(pieces))


def test_far_out_in_the_tail_two_steps_cost_what_quadrature_says() -> None:
    rate, noise, delta = ISSUE
    found = upper(rate, noise, 2, delta)
    assert two_steps(rate, noise, found) <= delta * (1 + 1e-8)
    assert two_steps(rate, noise, found * (1 - 2e-6)) > delta


def test_epsilon_rises_with_every_step_far_out_in_the_tail() -> None:
    """The lattice was 11 % loose at nine steps, so that ten seemed cheaper."""
    rate, noise, delta = ISSUE
    found = [upper(rate, noise, steps, delta) for steps in (1, 2, 5, 8, 9, 10, 11, 33)]
    assert all(after >= before * (1 - 1e-6) for before, after in pairwise(found))
    assert found[4] == pytest.approx(0.0951782, rel=1e-5)


@settings(max_examples=20 if "TACIT_EXPLORE" in os.environ else 8, deadline=None)
@given(
    log_rate=st.floats(-6.0, -0.2),
    noise=st.floats(0.5, 6.0),
    log_steps=st.floats(0.0, 2.4),
    log_delta=st.floats(-30.0, -4.0),
    grows=st.sampled_from(["steps", "rate", "noise"]),
    by=st.sampled_from([1.0001, 1.01, 1.3]),
)
def test_upper_bounds_never_fall_with_steps_rate_or_less_noise(
    log_rate: float, noise: float, log_steps: float, log_delta: float, grows: str, by: float
) -> None:
    rate, steps, delta = 10**log_rate, int(10**log_steps), 10**log_delta
    before = upper(rate, noise, steps, delta)
    if grows == "steps":
        after = upper(rate, noise, max(steps + 1, int(steps * by)), delta)
    elif grows == "rate":
        after = upper(min(rate * by, 1.0), noise, steps, delta)
    else:
        after = upper(rate, noise / by, steps, delta)
    assert after >= before * (1 - 1e-6)


def test_noise_beyond_floating_point_costs_no_more_than_a_great_deal_of_noise() -> None:
    query = GaussianSum(group="sum", clip_norm=1e-200, noise_std=1e200)
    step = Step(Everyone(), (query,))
    assert step.noise_multiplier == math.inf
    for accountant in ("pld", "rdp", "moments", "strong"):
        assert guarantee([(step, 3)], Header(), delta=1e-5, accountant=accountant).epsilon < 0.4


@pytest.mark.parametrize("rate", [0.1, 0.9, 0.99])
def test_a_huge_epsilon_is_planned_for_in_seconds(rate: float) -> None:
    start = time.process_time()
    found = plan(records=100, lot_size=round(100 * rate), steps=50, epsilon=1e6, delta=1e-5)
    assert 0.99e6 <= found.guarantee.epsilon <= 1e6
    assert time.process_time() - start < 10


@pytest.mark.parametrize("rate", [0.05, 0.9])
@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-3, 0.02])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_next_to_no_noise_costs_no_more_than_without_sampling(rate: float, noise: float, adjacency: Adjacency) -> None:
    for steps in (1, 2, 100):
        composition = Composition(adjacency, ((Term(Gaussian(noise), Policy.POISSON, rate), steps),))
        found = Pld().epsilon(composition, 1e-5)
        whole = gaussian.epsilon(composition.shift_factor * math.sqrt(steps) / noise, 1e-5)
        assert 0 <= (found.lower or 0.0) <= found.upper <= whole * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [
        (0.1719, 0.1231, 10**12, 4.5e-8),
        (1e-6, 0.48, 1, 2e-126),
        (1e-6, 0.48, 2, 2e-126),
        (1.47791e-4, 1.10675, 10**4, 1.039e-15),
        (1.57e-6, 1.76, 11_200, 5.92e-20),
        (0.3, 0.05, 10**6, 1e-12),
    ],
)
def test_a_query_takes_seconds_and_warns_of_nothing(rate: float, noise: float, steps: int, delta: float) -> None:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Pld().epsilon(sampled(rate, noise, steps), delta)
    assert math.isfinite(found.upper)
    assert time.process_time() - start < 10
