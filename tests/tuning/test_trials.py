"""The number of runs has exactly the distribution that the theorems are about."""

import itertools
import math
from decimal import localcontext

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as theirs
from scipy import stats

from tacit.randomness import SecureSource, SeededSource
from tacit.tuning import PoissonTrials, TruncatedNegativeBinomial
from tacit.tuning.trials import _EXACT

NEGATIVE = [(1.0, 0.1), (0.0, 0.1), (0.5, 0.3), (-0.5, 0.2), (3.0, 0.5), (1e-9, 0.1), (-0.999, 0.01)]
KINDS = [*(TruncatedNegativeBinomial(eta=e, gamma=g) for e, g in NEGATIVE), PoissonTrials(mean=0.05)]
KINDS += [PoissonTrials(mean=10.0), PoissonTrials(mean=800.0)]
FAILURE = 1e-9


def defined(trials, k):
    """P[K = k] as in Papernot & Steinke, Definitions 1 and 5, through gamma functions."""
    with mp.workdps(60):
        if isinstance(trials, PoissonTrials):
            return mp.exp(-mp.mpf(trials.mean)) * mp.mpf(trials.mean) ** k / mp.factorial(k)
        eta, gamma = mp.mpf(trials.eta), mp.mpf(trials.gamma)
        if k == 0:
            return mp.mpf(0)
        if eta == 0:
            return (1 - gamma) ** k / (k * mp.log(1 / gamma))
        return (1 - gamma) ** k / (gamma**-eta - 1) * mp.rf(eta, k) / mp.factorial(k)


def chances(trials, count):
    """What the draw inverts, from k = 0 on."""
    first = [] if isinstance(trials, PoissonTrials) else [0]
    with localcontext(_EXACT):
        return [*first, *itertools.islice(trials._chances(), count - len(first))]


@pytest.mark.parametrize("trials", KINDS, ids=str)
def test_the_chances_are_those_of_the_definition(trials):
    for k, chance in enumerate(chances(trials, 60)):
        with mp.workdps(60):
            assert abs(mp.mpf(str(chance)) - defined(trials, k)) <= mp.mpf(10) ** -45 * defined(trials, k)


@pytest.mark.parametrize("trials", KINDS, ids=str)
def test_they_add_up_to_one_with_the_stated_mean(trials):
    values = [mp.mpf(str(chance)) for chance in chances(trials, 8_000)]
    assert abs(mp.fsum(values) - 1) < mp.mpf(10) ** -12
    assert float(mp.fsum(k * value for k, value in enumerate(values))) == pytest.approx(trials.mean, rel=1e-9)


@pytest.mark.parametrize("trials", KINDS[:-1], ids=str)
@pytest.mark.parametrize("source", [SeededSource(11), SecureSource()], ids=lambda source: type(source).__name__)
def test_draws_follow_them(trials, source):
    """Chi-square with bins of at least 20 expected; it fails by chance once in 10^9."""
    draws = 1000
    drawn = np.array([trials.draw(source) for _ in range(draws)])
    expected, observed, mass = [], [], 0.0
    low = 0
    for k in range(2000):
        mass += float(defined(trials, k))
        rest = 1 - sum(expected) / draws - mass
        if rest * draws < 20:
            break
        if mass * draws >= 20:
            expected.append(mass * draws)
            observed.append(int(((drawn >= low) & (drawn <= k)).sum()))
            low, mass = k + 1, 0.0
    expected.append(draws - sum(expected))
    observed.append(int((drawn >= low).sum()))
    assert sum(observed) == draws
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert statistic <= stats.chi2.isf(FAILURE, max(len(expected) - 1, 1))


def test_the_draw_is_the_inversion_of_256_bits():
    """A source that gives a chosen fraction gives the k at which the distribution function passes it."""

    class Fixed:
        def __init__(self, fraction):
            self.value = int(fraction * 2**256)

        def bytes(self, size):
            return self.value.to_bytes(size, "big")

    geometric = TruncatedNegativeBinomial(eta=1.0, gamma=0.5)
    with mp.workdps(100):
        for k in (1, 2, 5, 60, 150):  # beyond what 53 bits could tell apart
            edge = 1 - mp.mpf(2) ** -k
            assert geometric.draw(Fixed(edge - mp.mpf(2) ** -250)) == k
            assert geometric.draw(Fixed(edge + mp.mpf(2) ** -250)) == k + 1
    assert PoissonTrials(mean=3.0).draw(Fixed(0)) == 0


@pytest.mark.parametrize("eta", [-0.5, 0.0, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("mean", [1.01, 2.0, 10.0, 300.0])
def test_the_distribution_of_mean_has_that_mean_and_the_reference_gamma(eta, mean):
    found = TruncatedNegativeBinomial.of_mean(mean, eta=eta)
    assert found.mean == pytest.approx(mean, rel=1e-6)
    if eta >= 0:
        assert found.gamma == pytest.approx(theirs._gamma_truncated_negative_binomial(eta, mean), rel=1e-6)


@pytest.mark.parametrize("trials", KINDS, ids=str)
@pytest.mark.parametrize("candidates", [1, 2, 10])
def test_chance_tried(trials, candidates):
    miss = mp.fsum(
        mp.mpf(str(chance)) * mp.mpf(1 - mp.mpf(1) / candidates) ** k for k, chance in enumerate(chances(trials, 3000))
    )
    assert trials.chance_tried(candidates) == pytest.approx(float(1 - miss), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedNegativeBinomial(eta=-1.0, gamma=0.1), "eta is -1.0"),
        (lambda: TruncatedNegativeBinomial(eta=1e-15, gamma=0.1), "use 0"),
        (lambda: TruncatedNegativeBinomial(eta=0.0, gamma=1.0), "gamma is 1.0"),
        (lambda: TruncatedNegativeBinomial(eta=0.0, gamma=1e-9), "at least 1e-7"),
        (lambda: TruncatedNegativeBinomial.of_mean(1.0), "above 1"),
        (lambda: TruncatedNegativeBinomial.of_mean(math.nan), "above 1"),
        (lambda: TruncatedNegativeBinomial.of_mean(1e9), "no gamma"),
        (lambda: PoissonTrials(mean=0.0), "mean number of trials"),
        (lambda: PoissonTrials(mean=1e9), "a million"),
        (lambda: PoissonTrials(mean=3.0).chance_tried(0), "candidates is 0"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()
