"""Theorem D.1 of Abadi et al. 2016, with the paper's numbers, and what it does not say."""

import math

import pytest

from tacit.tuning import TargetSearch, most_settings


def test_the_numbers_of_the_paper():
    """Q = 9,500 of 10,000, ε' = 0.5, δ = 0.05: 100 > 8 ln(40/p) as long as p >= 1/6700, at cost 4."""
    search = TargetSearch(epsilon_prime=0.5, failure=0.05, settings=6700)
    assert search.loss == pytest.approx(8 * math.log(40 * 6700))
    assert search.loss < 100  # one per cent of 10,000
    assert search.validation_epsilon == 4.0
    most = most_settings(loss=100, epsilon_prime=0.5, failure=0.05)
    assert 6700 <= most < 6800
    assert TargetSearch(epsilon_prime=0.5, failure=0.05, settings=most).loss < 100
    assert TargetSearch(epsilon_prime=0.5, failure=0.05, settings=most + 1).loss >= 100


def test_the_calls_are_beyond_reach():
    search = TargetSearch(epsilon_prime=0.5, failure=0.05, settings=6700)
    assert search.calls == pytest.approx((40 * 6700) ** 2 * math.log(40 * 6700))
    assert search.calls > 8e11


def test_a_training_record_costs_more_than_the_remark_says():
    """Choosing among the runs that reach the target: the exact ratio passes e^max(ε, 8ε') and e^(ε+8ε')."""
    epsilon, prime, miss = 4.0, 0.05, 0.05
    a, b = 1e-9, 1e-4
    with_record = {"r": a, "s": b, "short of it": 1 - a - b}
    without = {"r": a * math.exp(-epsilon), "s": b * math.exp(epsilon)}
    without["short of it"] = 1 - sum(without.values())
    assert max(abs(math.log(with_record[k] / without[k])) for k in without) <= epsilon + 1e-12  # M is ε-DP
    share = [chances["r"] / (chances["r"] + chances["s"]) for chances in (with_record, without)]
    ratio = math.log((1 - miss) * share[0] / share[1])  # it may miss the target, with chance δ
    assert ratio > epsilon + 8 * prime > max(epsilon, 8 * prime)
    assert ratio == pytest.approx(2 * epsilon, abs=0.06)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TargetSearch(epsilon_prime=0.6, failure=0.05, settings=5), "epsilon_prime is 0.6"),
        (lambda: TargetSearch(epsilon_prime=0.5, failure=0.0, settings=5), "failure is 0.0"),
        (lambda: TargetSearch(epsilon_prime=0.5, failure=0.1, settings=0), "settings is 0"),
        (lambda: most_settings(loss=-1, epsilon_prime=0.5, failure=0.1), "loss is -1"),
        (lambda: most_settings(loss=1e9, epsilon_prime=0.5, failure=0.1), "ask for less"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()
