"""Fourier inversion: every bound that it leans on, one by one, and the intervals it gives.

The truth comes from mpmath to thirty digits, from the lattice, which shares nothing with it but the definition of the
loss, and from closed forms.
"""

import math
import os

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import oracle
from tacit.accounting import discretised, gaussian, inversion
from tacit.accounting.characteristic import SampledGaussians
from tacit.accounting.effort import OutOfReach
from tacit.accounting.losses import Added, GaussianLoss, Removed
from tacit.accounting.sides import Side
from tacit.accounting.window import Saddle, Window

EXPLORE = "TACIT_EXPLORE" in os.environ
PLACES = 60 if EXPLORE else 12


def terms(*each, shift=0.0, added=False):
    rates, noises, counts = np.array(each, dtype=float).T
    return SampledGaussians(rates, noises, counts, shift, added)


def loss(x, rate, noise):
    return mp.log(1 - rate + rate * mp.exp(x / noise - 1 / (2 * noise * noise)))


def moment(rate, noise, s, added, cut=None):
    """E[e^(s·loss)] of one step, with the cut if there is one, by mpmath's own quadrature."""
    rate, noise = mp.mpf(rate), mp.mpf(noise)
    power = -s if added else s + 1
    mode = float(mp.re(power) / noise)
    ends = sorted({-14.0, -6.0, -2.0, 0.0, 2.0, 6.0, mode / 2, mode - 3.0, mode, mode + 3.0, mode + 14.0, 14.0})

    def integrand(x):
        kept = 1 if cut is None else mp.ncdf((mp.mpf(float(cut.place[0])) - x) / mp.mpf(float(cut.width[0])))
        return mp.npdf(x) * mp.exp(power * loss(x, rate, noise)) * kept

    if cut is not None:
        ends = sorted(
            {*[e for e in ends if e < cut.place[0]], float(cut.place[0]), float(cut.place[0]) + 1.0, mode + 14}
        )
    return mp.quad(integrand, ends)


POINTS = [(0.01, 4.0, 30.0), (0.3, 1.0, 2.0), (0.9, 2.0, 0.5), (1e-4, 0.7, 5.0), (0.6, 0.5, 1.0)]


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("rate", "noise", "tilt"), POINTS)
def test_the_quadrature_is_as_exact_as_it_says(rate, noise, tilt, added):
    law = terms((rate, noise, 1), added=added).tilted(tilt, reach=40.0)
    with mp.workdps(30):
        whole = moment(rate, noise, mp.mpf(tilt), added)
        assert abs(float(law.log_mass[0] - mp.log(whole))) <= law.doubt[0] < 1e-12
        log_value, log_bound, _ = law.characteristic(10.0, 4)
        for j, y in enumerate((10.0, 20.0, 30.0, 40.0)):
            exact = moment(rate, noise, mp.mpc(tilt, y), added) / whole * mp.expj(-y * float(law.mean[0]))
            found = complex(np.exp(log_value[j]))
            assert abs(found - complex(exact)) <= np.exp(log_bound[j]) - abs(found) + 1e-16
            assert np.exp(log_bound[j]) - abs(found) < 1e-11


@pytest.mark.parametrize(("rate", "noise", "tilt", "mass"), [(1e-4, 1.0, 80.0, 1e-9), (1e-3, 2.0, 60.0, 1e-6)])
def test_the_cut_is_as_exact_as_it_says(rate, noise, tilt, mass):
    losses = terms((rate, noise, 1)).without_tail(mass, tilt)
    assert losses.cut is not None
    with mp.workdps(30):
        law = losses.tilted(tilt, reach=5.0)
        whole = moment(rate, noise, mp.mpf(tilt), False, losses.cut)
        assert abs(float(law.log_mass[0] - mp.log(whole))) <= law.doubt[0] < 1e-11
        log_value, log_bound, _ = law.characteristic(5.0, 1)
        exact = moment(rate, noise, mp.mpc(tilt, 5.0), False, losses.cut) / whole * mp.expj(-5.0 * float(law.mean[0]))
        found = complex(np.exp(log_value[0]))
        assert abs(found - complex(exact)) <= np.exp(log_bound[0]) - abs(found) + 1e-16
        lost = 1 - moment(rate, noise, mp.mpf(0), False, losses.cut)
        assert lost <= losses.infinite <= 1.01 * mass


@settings(max_examples=30 if EXPLORE else 12, deadline=None)
@given(st.floats(-5, -0.01), st.floats(-0.4, 1.3), st.floats(-1, 2.5), st.booleans(), st.floats(-2, 3), st.booleans())
def test_the_bound_on_high_frequencies_holds_at_all_of_them(log_rate, log_noise, log_tilt, added, log_first, cut):
    """Beyond any frequency: the characteristic function itself, at many places up to a hundred times that."""
    rate, noise = 10**log_rate, 10**log_noise
    losses = terms((rate, noise, 1), added=added)
    if cut:
        losses = losses.without_tail(1e-8, 10**log_tilt)
    law = losses.tilted(10**log_tilt)
    deviation = math.sqrt(law.variance)
    first = 10**log_first / deviation
    bound = law.log_decay(first)
    places = first * np.concatenate([[1.0], np.geomspace(1.0, 100.0, PLACES) * (1 + 1e-3 * np.arange(PLACES))])
    for y in places:
        try:
            fine = losses.tilted(10**log_tilt, reach=y)
        except OutOfReach:
            break
        log_value, *_ = fine.characteristic(y, 1)
        assert log_value[0].real <= bound + 1e-9


@pytest.mark.parametrize(
    ("rate", "noise", "count", "epsilon", "added", "reach"),
    [
        (0.01, 4.0, 10_000, 0.95, False, 12),
        (0.01, 4.0, 10_000, 0.93, True, 12),
        (1e-4, 1.0, 100, 0.0021728879, True, 12),
        pytest.param(1e-3, 1.0, 10_000, 0.6965, False, 60, marks=pytest.mark.slow),
        (0.3, 2.0, 50, 4.0, False, 12),
        (0.3, 2.0, 50, 40.0, False, 12),
    ],
)
def test_delta_to_many_digits(rate, noise, count, epsilon, added, reach):
    """Poisson's formula again, in mpmath, with another tilt, a longer period and more frequencies."""
    losses = terms((rate, noise, count), added=added)
    found = inversion.delta(losses, epsilon)
    saddle = inversion._saddle(losses, lambda saddle: epsilon - saddle.at, 1.0, 0)
    with mp.workdps(30):
        q, z, x, t = mp.mpf(rate), mp.mpf(noise), mp.mpf(epsilon), mp.mpf(saddle.tilt) * 0.93
        h = mp.mpf(1) / 12
        nodes = [h * i for i in range(-170, 170 + (0 if added else int(12 * t / z)))]
        logs = [loss(v, q, z) for v in nodes]
        weights = [h * mp.npdf(v) for v in nodes]
        period = reach * math.sqrt(saddle.variance)
        total, j = mp.mpf(0), 0
        while True:
            s = mp.mpc(t, 2 * mp.pi * j / period)
            u = -s if added else s + 1
            size = mp.fsum(w * mp.exp(u * v) for w, v in zip(weights, logs)) ** count * mp.exp(-s * x) / (s * (s + 1))
            total += size.real * (1 if j == 0 else 2)
            if abs(size) < abs(total) * mp.mpf(10) ** -13:
                break
            j += 1
        exact = float(total / period)
    assert found.lower <= exact <= found.upper
    assert found.upper <= exact * (1 + 1e-4)


@settings(max_examples=40 if EXPLORE else 15, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-4, -0.02), st.floats(-0.2, 1.2), st.integers(1, 5000)), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.floats(-12, -1),
    st.booleans(),
)
def test_the_lattice_agrees(each, shift, log_delta, added):
    """Two computations that share nothing but the loss; each interval holds the truth, so they meet."""
    each = [(10**rate, 10**noise, count) for rate, noise, count in each]
    kind = Added if added else Removed
    side = Side(tuple((kind(GaussianLoss(1 / noise), rate), count) for rate, noise, count in each), shift, 0.0)
    try:
        found = inversion.epsilon(terms(*each, shift=shift, added=added), 10**log_delta)
    except OutOfReach:
        return
    other, _ = discretised.bounds(side, 2e-4, 10**log_delta, None, floor=0.0, coarse=0.0, fine=False)
    assert found.lower <= found.upper
    assert max(found.lower, other.lower) <= min(found.upper, other.upper) * (1 + 1e-12)
    # Where the tilted law has two humps inversion is several percent off, and the accountant goes on from there.
    assert found.upper - found.lower <= 0.1 * found.upper + 1e-7


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("shift", [0.3, 2.0])
def test_hardly_any_sampling_is_the_gaussian_mechanism(shift, delta):
    losses = terms((1e-9, 1.0, 1), shift=shift)
    found = inversion.epsilon(losses, delta)
    exact = gaussian.epsilon(shift, delta)
    assert found.upper >= exact * (1 - 1e-9)
    assert found.upper == pytest.approx(exact, rel=2e-5)
    assert found.lower == pytest.approx(exact, rel=2e-5)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta"),
    [(1e-3, 20.0, 10**5, 1e-5), (1e-4, 0.7, 10**5, 1e-8), (1e-3, 1.0, 10**4, 1e-8)],
)
def test_rare_sampling_is_close_too(rate, noise, count, delta):
    """Where the tail is cut off, and where the tilted loss has two humps."""
    found = inversion.epsilon(terms((rate, noise, count)), delta)
    exact = oracle.epsilon(rate, noise, count, delta, found.upper, ("remove",))
    assert found.lower * (1 - 1e-6) <= exact <= found.upper * (1 + 1e-6)
    assert found.upper - found.lower <= 2e-5 * found.upper


def test_a_poor_tilt_gives_poor_bounds_that_hold():
    """The choices of tilt and period are about accuracy alone."""
    losses = terms((0.01, 4.0, 10_000))
    exact = oracle.log_delta(0.01, 4.0, 10_000, 0.9)
    for tilt in (2.0, 8.0, 20.0, 45.0):
        for excess in (0.3, 1e-2, 1e-7):
            window = Window(losses, Saddle(tilt, losses.tilted(tilt)), excess)
            assert window.log_bound(0.9, -1) <= exact + 1e-7
            assert window.log_bound(0.9, +1) >= exact - 1e-7


def test_inversion_declines_a_computation_that_takes_too_long():
    with pytest.raises(OutOfReach):
        inversion.epsilon(terms((1e-5, 0.5, 3)), 1e-9)


def test_no_loss_is_larger_than_the_largest():
    losses = terms((0.1, 1.0, 7), added=True)
    assert inversion.delta(losses, -7 * math.log(0.9) * 1.001).upper == 0.0
    assert inversion.epsilon(terms((0.1, 4.0, 700), added=True), 1e-9).upper <= -700 * math.log(0.9)
