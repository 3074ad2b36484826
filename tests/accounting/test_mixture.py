"""The integral under the moments and Rényi accountants, against 40-digit arithmetic."""

import itertools

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.accounting.mixture import log_moments

TOLERANCE = 1e-10


def by_quadrature(rate, noise, order):
    """log E[(1 - q + q r)^p] as written in the definition; 40 digits leave room for the cancellation."""
    with mp.workdps(45):
        q, z, p = mp.mpf(rate), mp.mpf(noise), mp.mpf(order)
        low, high = max(min(p - 2, 0) / z, -60) - 13, max(p, 2) / z + 13
        step = min(mp.mpf("0.4"), z * mp.pi**2 / 40, mp.sqrt(z * z / (1 + abs(min(p, 0)))) / 3)
        total = mp.mpf(0)
        for k in range(int((high - low) / step) + 1):
            t = low + k * step
            u = q * mp.expm1(t / z - 1 / (2 * z * z))
            total += mp.exp(-t * t / 2) * ((1 + u) ** p - 1 - p * u)
        return mp.log1p(total * step / mp.sqrt(2 * mp.pi))


def by_adaptive_quadrature(rate, noise, order):
    """The same by Gauss-Legendre on panels: another rule, the plain integrand."""
    with mp.workdps(40):
        q, z, p = mp.mpf(rate), mp.mpf(noise), mp.mpf(order)
        low, high = max(min(p - 2, 0) / z, -60) - 13, max(p, 2) / z + 13
        panels = int((high - low) / mp.mpf("1.5")) + 1
        edges = [low + (high - low) * k / panels for k in range(panels + 1)]

        def integrand(t):
            return mp.npdf(t) * (1 + q * mp.expm1(t / z - 1 / (2 * z * z))) ** p

        return mp.log(mp.quad(integrand, edges, method="gauss-legendre", maxdegree=4))


def by_sum(rate, noise, order):
    with mp.workdps(60):
        q, z = mp.mpf(rate), mp.mpf(noise)
        return mp.log(
            mp.fsum(
                mp.binomial(order, k) * q**k * (1 - q) ** (order - k) * mp.exp(mp.mpf(k) * (k - 1) / (2 * z * z))
                for k in range(order + 1)
            )
        )


def check(rate, noise, order, truth):
    ours = mp.mpf(float(log_moments(rate, noise, np.array([order], dtype=float))[0]))
    error = float((ours - truth) / truth)
    assert -1e-16 <= error <= TOLERANCE, (rate, noise, order, error)


RATES = (1e-6, 1e-3, 0.01, 0.2, 0.7, 0.999)


@pytest.mark.parametrize(("rate", "noise"), list(itertools.product(RATES, (0.3, 0.7, 1.0, 4.0, 50.0))))
def test_fractional_and_negative_orders(rate, noise):
    for order in (1.01, 1.5, 2.3, 7.7, -1, -8, -32):
        if abs(order) / noise < 60:
            check(rate, noise, order, by_quadrature(rate, noise, order))


@pytest.mark.parametrize(("rate", "noise", "order"), [(0.01, 4, 20.5), (0.3, 0.8, 3.7), (0.9, 1, -5), (0.01, 4, -19)])
def test_against_another_rule(rate, noise, order):
    check(rate, noise, order, by_adaptive_quadrature(rate, noise, order))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise"), list(itertools.product(RATES, (0.3, 0.5, 1.0, 2.0, 8.0, 50.0))))
def test_the_wide_grid(rate, noise):
    for order in (1.001, 1.1, 1.9, 3.3, 12.5, 33.3, 63.9, -0.5, -3, -20, -64, -200):
        if abs(order) / noise < 250:
            check(rate, noise, order, by_quadrature(rate, noise, order))


@pytest.mark.parametrize(("rate", "noise"), list(itertools.product(RATES, (0.3, 1.0, 6.0, 50.0))))
def test_whole_orders(rate, noise):
    for order in (2, 3, 16, 17, 65, 512):
        check(rate, noise, order, by_sum(rate, noise, order))


def test_high_fractional_orders_are_upper_bounds():
    for rate, noise, order in itertools.product((0.01, 0.5), (2.0, 10.0), (64.5, 100.25)):
        truth = by_quadrature(rate, noise, order)
        ours = float(log_moments(rate, noise, np.array([order]))[0])
        assert truth <= ours <= truth * 1.001


def test_everyone_has_a_closed_form():
    orders = np.array([-3.0, 1.5, 2.0, 512.0])
    assert log_moments(1.0, 2.0, orders) == pytest.approx(orders * (orders - 1) / 8, rel=1e-15)
    assert log_moments(1 - 1e-12, 2.0, orders) == pytest.approx(orders * (orders - 1) / 8, rel=1e-9)


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.02, 0.1])
def test_next_to_no_noise_stays_finite_and_above(noise):
    orders = np.array([-512.0, -1.0, 1.5, 2.0, 40.5, 512.0])
    values = log_moments(0.1, noise, orders)
    assert np.isfinite(values).all()
    for order, value in zip(orders, values, strict=True):
        if order == int(order) and order > 0:
            assert value >= float(by_sum(0.1, noise, int(order))) * (1 - 1e-15)


@settings(max_examples=60, deadline=None)
@given(st.floats(-6, -0.01), st.floats(-0.5, 1.7), st.floats(0.01, 100), st.sampled_from(["rate", "noise", "order"]))
def test_monotone(log_rate, log_noise, above, which):
    rate, noise, order = 10**log_rate, 10**log_noise, 1 + above
    base = float(log_moments(rate, noise, np.array([order]))[0])
    if which == "rate":
        more = log_moments(min(1.0, rate * 1.01), noise, np.array([order]))
    elif which == "noise":
        more = log_moments(rate, noise / 1.01, np.array([order]))
    else:
        more = log_moments(rate, noise, np.array([1 + above * 1.01]))
    assert float(more[0]) >= base


@settings(max_examples=60, deadline=None)
@given(st.floats(-6, -0.01), st.floats(-0.5, 1.7), st.floats(0.001, 64))
def test_one_direction_is_enough(log_rate, log_noise, above):
    """Mironov, Talwar & Zhang 2019, Theorem 5."""
    mixture, other = log_moments(10**log_rate, 10**log_noise, np.array([1 + above, -above]))
    assert mixture >= other * (1 - 1e-9)
