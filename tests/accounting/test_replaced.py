"""Replace-one with Poisson samples: the pair that dominates, against oracles that share no code with it."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from tacit.accounting import Composition
from tacit.accounting.composition import Gaussian, Policy, Term
from tacit.accounting.pld import Pld
from tacit.ledger import Adjacency


def replaced(rate, noise, count, policy=Policy.POISSON):
    return Composition(Adjacency.REPLACE_ONE, ((Term(Gaussian(noise), policy, rate), count),))


def one_step(rate, noise, epsilon):
    """δ(ε) of (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1), in fifty digits: the best half-line by bisection."""
    with mp.workdps(50):
        q, shift, e = mp.mpf(rate), 1 / mp.mpf(noise), mp.exp(mp.mpf(epsilon))

        def excess(x):
            up, down = mp.exp(shift * x - shift**2 / 2), mp.exp(-shift * x - shift**2 / 2)
            return (1 - q + q * up) - e * (1 - q + q * down)

        low, high = mp.mpf(0), mp.mpf(1)
        while excess(high) < 0:
            high *= 2
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)

        def tail(x):
            return mp.erfc(x / mp.sqrt(2)) / 2

        return (1 - q) * (1 - e) * tail(high) + q * (tail(high - shift) - e * tail(high + shift))


@pytest.mark.parametrize(
    ("rate", "noise", "delta"),
    list(itertools.product((1e-4, 0.01, 0.2, 0.7), (0.5, 0.9, 2.0, 6.0), (1e-4, 1e-7, 1e-12))),
)
def test_one_step_costs_what_fifty_digits_say(rate, noise, delta):
    found = Pld().epsilon(replaced(rate, noise, 1), delta)
    assert one_step(rate, noise, found.upper) <= delta * (1 + 1e-9)
    if found.upper > 0:
        assert one_step(rate, noise, found.upper * (1 - 1e-5)) > delta
    assert found.lower is not None and found.lower <= found.upper
    if found.lower > 0:
        assert one_step(rate, noise, found.lower) >= delta * (1 - 1e-9)


def contour(rate, noise, count, epsilon, off=1.0):
    """δ(ε) by the inverse Laplace transform along Re s = t, ``off`` times the saddle point; M(s) by a sum over x."""
    x = np.linspace(-14.0, 60.0 / noise + 14.0, 8001)
    up = np.logaddexp(math.log1p(-rate), math.log(rate) + x / noise - 0.5 / noise**2)
    down = np.logaddexp(math.log1p(-rate), math.log(rate) - x / noise - 0.5 / noise**2)
    normal = -x * x / 2 + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))

    def log_mgf(s):
        power = (s[:, None] + 1) * up - s[:, None] * down + normal
        top = power.real.max()
        return top + np.log(np.exp(power - top).sum(axis=1))

    tilts = np.geomspace(0.3, 25.0, 120)
    heights = count * log_mgf(tilts + 0j).real - tilts * epsilon - np.log(tilts * (tilts + 1))
    tilt = float(tilts[np.argmin(heights)]) * off
    height = count * log_mgf(np.array([tilt + 0j]))[0].real
    total, step, at = 0.0, 0.02 * tilt, 0
    while True:
        y = (at + np.arange(64)) * step
        s = tilt + 1j * y
        values = np.exp(count * log_mgf(s) - height - 1j * y * epsilon) / (s * (s + 1))
        if not at:
            values[0] /= 2
        total += float(values.real.sum()) * step
        at += 64
        if np.abs(values).max() < 1e-13 / tilt**2 or at > 20_000:
            return total / math.pi * math.exp(height - tilt * epsilon)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(
    ("rate", "noise", "count"),
    [(0.01, 4.0, 10_000), (0.01, 1.0, 1000), (0.02, 2.0, 500), (0.1, 5.0, 200)],
)
def test_many_steps_cost_what_the_contour_integral_says(rate, noise, count, epsilon):
    exact = contour(rate, noise, count, epsilon)
    assert contour(rate, noise, count, epsilon, 1.1) == pytest.approx(exact, rel=1e-7)
    found = Pld().delta(replaced(rate, noise, count), epsilon)
    assert found.lower <= exact * (1 + 1e-7) and exact <= found.upper * (1 + 1e-7)
    assert found.upper <= exact * (1 + 1e-5)


def test_the_figures_of_the_issue():
    """2.2019 and 3.9384 by way of the larger shift."""
    assert Pld().epsilon(replaced(0.01, 4.0, 10_000), 1e-5).upper == pytest.approx(1.9932, abs=2e-4)
    assert Pld().epsilon(replaced(0.01, 1.0, 1000), 1e-5).upper == pytest.approx(2.8434, abs=2e-4)


def test_no_pair_of_contributions_in_the_plane_costs_more():
    """Random contributions a, b of at most unit length, in two dimensions, at many orders: none above the pair."""
    rng = np.random.default_rng(5)
    line = np.linspace(-9.0, 9.0, 361)
    x, y = np.meshgrid(line, line)
    area = (line[1] - line[0]) ** 2

    def density(centre):
        return np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / 2) / (2 * math.pi) * area

    def divergence(rate, a, b, order):
        p = (1 - rate) * density((0, 0)) + rate * density(a)
        q = (1 - rate) * density((0, 0)) + rate * density(b)
        return float(np.maximum(p - order * q, 0).sum())

    for _ in range(30):
        rate, shift = float(rng.uniform(0.02, 0.95)), float(rng.uniform(0.2, 2.0))
        a, b = (v / np.linalg.norm(v) * shift * math.sqrt(rng.uniform()) for v in rng.normal(size=(2, 2)))
        for order in (0.3, 0.8, 1.0, 1.1, 1.7, 4.0):
            worst = divergence(rate, (shift, 0), (-shift, 0), order)
            assert divergence(rate, a, b, order) <= worst + 1e-6


def test_fixed_size_lots_cost_more_than_any_one_pair_used_at_every_step():
    """Others' gradients may depend on the first release: two steps then cost more than the supremum over one t.

    Pairs ((1-q) N(0) + q N(t), (1-q) N(0) + q N(t - s)). Where the first loss is below ε the second step is asked
    for its divergence at an order above 1, best at t = s, else at one below 1, best at t = 0.
    """
    rate, apart, epsilon = 0.3, 1.5, 0.4
    edges = np.linspace(-7.0, 7.0, 2001)

    def masses(centre):
        return np.diff(norm.cdf(edges, centre))

    def pair(t):
        stay = (1 - rate) * masses(0.0)
        return stay + rate * masses(t), stay + rate * masses(t - apart)

    def second(t, orders):
        p, q = pair(t)
        order = np.argsort(q / p)
        ratio, p_sum, q_sum = (q / p)[order], np.cumsum(p[order]), np.cumsum(q[order])
        at = np.searchsorted(ratio, 1 / orders) - 1
        return np.where(at >= 0, p_sum[at] - orders * q_sum[at], 0.0)

    def total(t, best):
        p, q = pair(t)
        orders = math.exp(epsilon) * q / p
        rest = np.max([second(u, orders) for u in ((0.0, apart) if best else (t,))], axis=0)
        return float(p @ rest)

    constant = max(total(t, best=False) for t in np.linspace(0.0, apart, 31))
    adaptive = max(total(t, best=True) for t in np.linspace(0.0, apart, 31))
    claimed = Pld().delta(replaced(rate, 2 / apart, 2, Policy.FIXED_SIZE), epsilon).upper
    assert constant * 1.005 < adaptive <= claimed * (1 + 1e-3)


def test_monte_carlo_of_three_steps_is_within_the_bounds():
    """Draws of the losses themselves, with a confidence interval of five deviations."""
    rng = np.random.default_rng(11)
    for rate, noise, epsilon in [(0.2, 1.0, 0.8), (0.05, 0.7, 0.5), (0.6, 2.0, 1.0)]:
        size = 400_000
        x = rng.normal(size=(3, size)) + (rng.random((3, size)) < rate) / noise
        up = 1 - rate + rate * np.exp(x / noise - 0.5 / noise**2)
        down = 1 - rate + rate * np.exp(-x / noise - 0.5 / noise**2)
        values = np.maximum(-np.expm1(epsilon - np.log(up / down).sum(axis=0)), 0.0)
        mean, spread = values.mean(), 5 * values.std() / math.sqrt(size)
        found = Pld().delta(replaced(rate, noise, 3), epsilon)
        assert found.lower <= mean + spread and mean - spread <= found.upper


def test_half_lines_attain_both_bounds_at_once():
    """The step of the proof that makes one pair the worst for every order: Neyman & Pearson at the same set."""
    for mass, shift in itertools.product((1e-6, 0.1, 0.5, 0.99), (0.1, 1.0, 3.0)):
        edge = -ndtri(mass)
        assert ndtr(shift - edge) == pytest.approx(ndtr(ndtri(mass) + shift), rel=1e-12)
        assert ndtr(-shift - edge) == pytest.approx(ndtr(ndtri(mass) - shift), rel=1e-12)
