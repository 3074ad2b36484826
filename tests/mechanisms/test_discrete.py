"""The discrete Gaussian sampler: fast decisions equal exact ones, and the distribution is the one asked for.

Statistics fail by chance once in 1e9.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from tacit.mechanisms import discrete
from tacit.mechanisms.bernoulli import Uniform, exp_bounds
from tacit.mechanisms.discrete import draw
from tacit.randomness import Integers, SecureSource, SeededSource

CHANCE = 1e-9
SOURCE = SecureSource()
EXTREMES = [1.0, 1.4142, 1.999, 2.5, 7.0, 2.0**10.49, 2.0**10.51, 2.0**20, 2.0**31 * 1.37, 2.0**44]


class GivenWords(SeededSource):
    """A source whose first words are given."""

    def __init__(self, *words: int) -> None:
        super().__init__(1)
        self._given = list(words)

    def words(self, size: int) -> np.ndarray:  # type: ignore[type-arg]
        given, self._given = self._given[:size], self._given[size:]
        return np.concatenate([np.array(given, dtype=np.uint64), super().words(size - len(given))])


def pmf(sigma: float, reach: int) -> np.ndarray:  # type: ignore[type-arg]
    """The probabilities of -reach, ..., reach, which must be twelve σ."""
    with mpmath.workdps(40):
        weights = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for x in range(-reach, reach + 1)]
        total = mpmath.fsum(weights)  # beyond twelve σ lies less than 1e-31
        return np.array([float(weight / total) for weight in weights])


# -- Bernoulli(exp(-x)) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 32, 64, 200])
def test_exponentials_are_enclosed(bits: int) -> None:
    rng = np.random.default_rng(bits)
    points = [
        Fraction(0),
        Fraction(1),
        Fraction(1, 10**30),
        Fraction(10**6),
        Fraction(40, 3),
        Fraction(2**70 - 1, 2**70),
    ]
    points += [Fraction(int(a), int(b)) for a, b in zip(rng.integers(0, 10**9, 300), rng.integers(1, 10**9, 300))]
    with mpmath.workdps(120):
        for x in points:
            low, high = exp_bounds(x, bits)
            exact = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
            assert low <= exact <= high
            assert high - low <= 2


def test_a_trial_left_open_by_its_bits_is_decided_by_further_ones() -> None:
    x = Fraction(1, 3)
    with mpmath.workdps(60):
        digits = int(mpmath.floor(mpmath.exp(-mpmath.mpf(1) / 3) * 2**160))
    first, second, third = digits >> 128, digits >> 64 & 2**64 - 1, digits & 2**64 - 1
    for last, expected in ((third - 1, True), (third + 1, False)):
        trial = Uniform(first, 32)
        assert trial.below_exp(x, GivenWords(second, last)) is expected
        assert trial.bits == 160
    assert Uniform(2**32 - 1, 32).below_exp(Fraction(0), SOURCE)


@pytest.mark.parametrize("x", [Fraction(1, 7), Fraction(5, 2), Fraction(1)])
def test_trials_succeed_as_often_as_they_should(x: Fraction) -> None:
    trials = 20_000
    wins = sum(Uniform(int(word) >> 62, 2).below_exp(x, SOURCE) for word in SOURCE.words(trials))
    assert stats.binomtest(wins, trials, math.exp(-x)).pvalue > CHANCE


# -- fast and exact ----------------------------------------------------------------------------------------------------


def test_every_entry_of_the_table_is_right() -> None:
    entries = discrete._table()[:-1].astype(np.longdouble)
    exact = np.exp(-(np.arange(entries.size) + 2).astype(np.longdouble) / 2**16) * 2**32
    assert np.all(entries <= exact + 1e-6)
    assert np.all(exact < entries + 1 + 1e-6)
    assert np.all(np.exp(-np.arange(entries.size).astype(np.longdouble) / 2**16) * 2**32 < entries + discrete._OPEN)
    assert math.exp(-discrete._END) * 2**32 < discrete._OPEN
    with mpmath.workdps(50):
        for index in np.random.default_rng(0).integers(0, entries.size, 500):
            assert int(entries[index]) == int(mpmath.floor(mpmath.exp(-mpmath.mpf(int(index) + 2) / 2**16) * 2**32))


def _enclosed(sigma: float) -> bool:
    shape = discrete._Shape(Fraction(sigma) ** 2)
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**64 - 1, 1500, dtype=np.uint64, endpoint=True)
    words[:20], words[20:40] = 0, 2**64 - 1
    v = rng.integers(0, 13, words.size).astype(np.uint8)
    v[:13], v[20:33] = range(13), range(13)
    lows = shape._enclosure(words, v)
    right = []
    for word, whole, low in zip(words.tolist(), v.tolist(), lows.tolist()):
        y = (word >> 64 - shape.k) + (whole << shape.k)
        least, most = exp_bounds(shape.gamma(y, whole), 96)
        right.append(low << 64 <= least and most <= (low + discrete._OPEN) << 64)
    return all(right)


@pytest.mark.parametrize("sigma", EXTREMES)
def test_the_enclosure_holds_the_exponential(sigma: float) -> None:
    assert _enclosed(sigma)


@pytest.mark.parametrize("name", ["factor", "offset", "k"])
def test_a_wrong_constant_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = discrete._Shape.__init__

    def wrong(self: discrete._Shape, variance: Fraction) -> None:
        original(self, variance)
        value = getattr(self, name)
        setattr(self, name, value + 1 if name == "k" else value + (value >> 12))

    monkeypatch.setattr(discrete._Shape, "__init__", wrong)
    assert not _enclosed(1000.0)


@pytest.mark.parametrize("sigma", EXTREMES)
def test_fast_candidates_are_the_exact_ones(sigma: float) -> None:
    """The same random words, decided one by one in exact arithmetic."""
    shape, size = discrete._Shape(Fraction(sigma) ** 2), 3000
    fast = shape.candidates(size, SeededSource(7))
    again = SeededSource(7)
    first, second = again.words(size), again.words(size).view(np.uint32)
    exact = []
    for word, chosen, trial in zip(first.tolist(), second[:size].tolist(), second[size:].tolist()):
        found = shape._exactly(word, chosen, trial, again)
        if found is not None and (found or not word & 1):
            exact.append(-found if word & 1 else found)
    assert fast.tolist() == exact
    assert 0.4 < len(exact) / size < 0.56 or sigma < 4


def test_trials_next_to_the_exponential_are_left_to_exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    exactly = discrete._Shape._exactly

    def spy(self: discrete._Shape, first: int, chosen: int, trial: int, source: SeededSource) -> int | None:
        asked.append((chosen, trial))
        return exactly(self, first, chosen, trial, source)

    monkeypatch.setattr(discrete._Shape, "_exactly", spy)
    shape = discrete._Shape(Fraction(1000) ** 2)
    low = int(shape._enclosure(np.array([2**63], dtype=np.uint64), np.array([0], dtype=np.uint8))[0])
    edge = exp_bounds(Fraction(2), 32)[0]  # the first 32 bits of exp(-2)
    for chosen, trial, seen in [(2**32 - 1, low, 1), (2**32 - 1, low - 1, 0), (edge, 0, 1), (0, 2**32 - 1, 1)]:
        asked.clear()
        shape.candidates(1, GivenWords(2**63, trial << 32 | chosen))
        assert len(asked) == seen


def test_a_magnitude_far_out_is_not_cut_off() -> None:
    """32 and 64 zero bits: v is above 66, and the candidate is as good as never accepted."""
    shape = discrete._Shape(Fraction(4))
    assert shape._exactly(0, 0, 2**31, GivenWords(0, 2**63)) is None
    assert shape._exactly(0, 0, 0, GivenWords(2**63, 0, 0, 0, 0, 0, 0)) == 22 * 2
    with mpmath.workdps(30):
        assert mpmath.floor(33 * mpmath.log(2)) == 22


@pytest.mark.parametrize("sigma", [1.0, 1.5, 2.9, 40.0])
def test_weights_of_candidates_are_those_of_the_discrete_gaussian(sigma: float) -> None:
    """exp(-v) exp(-γ), added up over the signs, is proportional to exp(-y²/2σ²) for every y."""
    shape = discrete._Shape(Fraction(sigma) ** 2)
    with mpmath.workdps(40):
        logs = []
        for y in range(6 << shape.k):
            v, gamma = y >> shape.k, shape.gamma(y, y >> shape.k)
            assert gamma >= 0
            logs.append(-v - mpmath.mpf(gamma.numerator) / gamma.denominator + y**2 / (2 * mpmath.mpf(sigma) ** 2))
        assert max(logs) - min(logs) < mpmath.mpf(10) ** -30


# -- the distribution --------------------------------------------------------------------------------------------------


def _chi_square(values: Integers, sigma: float) -> float:
    """The chance of counts as odd as these, the tails taken together where fewer than ten are expected."""
    reach = math.ceil(sigma * 12)
    chances = pmf(sigma, reach)
    counts = np.bincount(np.clip(values, -reach, reach) + reach, minlength=chances.size)
    keep = chances * values.size >= 10
    low, high = np.flatnonzero(keep)[[0, -1]]

    def pooled(numbers: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.concatenate([[numbers[:low].sum()], numbers[low : high + 1], [numbers[high + 1 :].sum()]])

    expected = pooled(chances)
    expected[-1] += 1 - expected.sum()
    return float(stats.chisquare(pooled(counts), expected * values.size).pvalue)


@pytest.mark.parametrize("sigma", [1.0, 1.3, 1.4142135623730951, 2.0, 2.5, 10.0, 50.0, 300.0])
def test_counts_match_the_exact_probabilities(sigma: float) -> None:
    assert _chi_square(draw(sigma, 400_000, SOURCE), sigma) > CHANCE


def test_the_test_would_notice_a_slightly_different_sigma_and_a_zero_counted_twice() -> None:
    assert _chi_square(draw(10.0, 400_000, SOURCE), 10.2) < CHANCE
    values = draw(1.0, 400_000, SOURCE)
    doubled = np.concatenate([values, np.zeros(int((values == 0).sum()), dtype=np.int64)])
    assert _chi_square(doubled, 1.0) < CHANCE


@pytest.mark.parametrize("sigma", [2.0**20, 2.0**20.49, 2.0**31 * 1.37, 2.0**44])
def test_moments_and_shape_for_huge_sigma(sigma: float) -> None:
    values = draw(sigma, 1_000_000, SOURCE)
    x, n, limit = values / sigma, values.size, stats.norm.isf(CHANCE / 8)
    assert abs(x.sum()) < limit * math.sqrt(n)
    assert abs((x**2 - 1).sum()) < limit * math.sqrt(2 * n)
    assert abs((x**3).sum()) < limit * math.sqrt(15 * n)
    assert abs((x**4 - 3).sum()) < limit * math.sqrt(96 * n)
    assert stats.kstest(x, "norm").pvalue > CHANCE
    for shift in (0, 8):  # the low bits are uniform to within exp(-2π²σ²/2^32)
        assert stats.chisquare(np.bincount(values >> shift & 255, minlength=256)).pvalue > CHANCE


@pytest.mark.parametrize("sigma", [1.0, 3.0, 2.0**20])
def test_tails(sigma: float) -> None:
    n = 4_000_000
    values = np.abs(draw(sigma, n, SOURCE))
    for level in (3.0, 4.0, 5.0):
        bound = math.ceil(level * sigma)
        if sigma < 100:
            reach = math.ceil(12 * sigma)
            chance = 2 * float(pmf(sigma, reach)[reach + bound :].sum())
        else:
            chance = 2 * float(stats.norm.sf((bound - 0.5) / sigma))
        assert stats.binomtest(int((values >= bound).sum()), n, chance).pvalue > CHANCE


def test_values_are_independent_of_each_other_and_of_their_place() -> None:
    values = draw(100.0, 400_000, SOURCE) / 100.0
    other = draw(100.0, 400_000, SOURCE) / 100.0
    limit = stats.norm.isf(CHANCE / 20)
    for a, b in ((values[1:], values[:-1]), (values[2:], values[:-2]), (values, other)):
        assert abs(float(a @ b)) < limit * math.sqrt(a.size)
        assert abs(float((a**2 - 1) @ (b**2 - 1))) < limit * math.sqrt(4 * a.size)
    for part in np.split(values, 4):
        assert abs((part**2 - 1).sum()) < limit * math.sqrt(2 * part.size)
    ends = np.concatenate([draw(100.0, 1, SOURCE) for _ in range(4000)]) / 100.0  # the first of many short draws
    assert abs((ends**2 - 1).sum()) < limit * math.sqrt(2 * ends.size)
    assert abs(ends.sum()) < limit * math.sqrt(ends.size)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1 << 16])
def test_any_number_of_values(size: int) -> None:
    assert draw(5.0, size, SOURCE).shape == (size,)


@pytest.mark.parametrize("sigma", [0.99, 2.0**44.1, math.nan, -3.0])
def test_a_sigma_out_of_range_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match=f"sigma is {sigma!r}"):
        draw(sigma, 1, SOURCE)
