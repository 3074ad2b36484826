"""Membership attacks: rates with limits, and the likelihood ratio against hand calculation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tacit.audit.lira import attack, halves, likelihood_ratios, log_odds
from tacit.audit.membership import measure
from tacit.randomness import SeededSource


def test_rates_are_counted_at_the_lowest_threshold_that_accuses_few_enough() -> None:
    others, members = np.arange(1000.0), np.arange(500.0, 1500.0)
    found = measure(members, others, attack="a", details="d", delta=1e-5)
    strict, loose = found.rates
    assert (strict.accused, loose.accused) == (0.001, 0.01)
    assert strict.true_positive_rate == pytest.approx(0.501) and loose.true_positive_rate == pytest.approx(0.51)
    assert strict.low < strict.true_positive_rate < strict.high
    assert strict.accused_high > 0.001
    assert found.area == pytest.approx(1 - 0.5**2 / 2 * 1.0, abs=1e-3)
    assert "at FPR 0.1%  finds 50.10%" in str(found)


def test_few_others_cannot_show_a_small_rate() -> None:
    found = measure(np.ones(50) + np.arange(50), np.arange(40.0), attack="a", details="d", delta=1e-5)
    assert found.rates[0].accused == 0.0 and found.rates[0].accused_high > 0.1
    with pytest.raises(ValueError, match="5 members and 40 others"):
        measure(np.ones(5), np.ones(40), attack="a", details="d", delta=1e-5)


def test_a_result_says_that_its_rates_are_not_private() -> None:
    scores = np.linspace(0.0, 1.0, 40)
    found = measure(scores, scores, attack="loss", details="made up", delta=1e-5)
    assert found.facts()["private"] is False and "not private" in str(found)


def test_ties_identify_no_member() -> None:
    found = measure(np.ones(100), np.ones(100), attack="a", details="d", delta=1e-5)
    assert found.epsilon == 0 and found.area == 0.5 and found.rates[1].true_positive_rate == 0


def test_the_bound_is_above_the_truth_no_more_often_than_its_confidence() -> None:
    random, above = np.random.default_rng(1), 0
    for _ in range(100):
        draws = random.random(400), random.random(400)
        above += measure(*draws, attack="a", details="d", delta=0.0, confidence=0.9).epsilon > 0
    assert above <= 18  # 10 expected at most
    far = measure(random.random(400) + 2, random.random(400), attack="a", details="d", delta=0.0)
    assert far.epsilon > 3


def test_log_odds_are_those_of_the_softmax() -> None:
    scores, labels = torch.tensor([[2.0, 0.0, -1.0], [0.0, 30.0, 0.0]]), torch.tensor([0, 1])
    chances = torch.softmax(scores.double(), dim=1)
    own = chances[torch.arange(2), labels]
    assert log_odds(scores, labels)[0] == pytest.approx(float(torch.log(own / (1 - own))[0]))
    assert log_odds(scores, labels)[1] == pytest.approx(30 - np.log(2))


@pytest.mark.parametrize("models", [8, 40])
def test_ratios_are_those_of_two_normals(models: int) -> None:
    random = np.random.default_rng(2)
    inside = halves(models, 30, SeededSource(1))
    assert (inside.sum(axis=0) == models // 2).all()
    shadows = random.standard_normal((models, 30)) + 2.0 * inside
    observed = random.standard_normal(30)
    online = likelihood_ratios(observed, shadows, inside, online=True)
    record = 7
    had, had_not = shadows[inside[:, record], record], shadows[~inside[:, record], record]
    if models >= 32:
        stds = had.std(ddof=1), had_not.std(ddof=1)
    else:
        squares = [
            sum(float(((column - column.mean()) ** 2).sum()) for column in columns)
            for columns in zip(*[(s[m], s[~m]) for s, m in zip(shadows.T, inside.T)], strict=True)
        ]
        stds = tuple(np.sqrt(square / (30 * (models // 2 - 1))) for square in squares)
    expected = norm.logpdf(observed[record], had.mean(), stds[0]) - norm.logpdf(
        observed[record], had_not.mean(), stds[1]
    )
    assert online[record] == pytest.approx(expected)
    offline = likelihood_ratios(observed, shadows, inside, online=False)
    assert offline[record] == pytest.approx((observed[record] - had_not.mean()) / stds[1])


def test_too_few_shadows_are_refused() -> None:
    with pytest.raises(ValueError, match="known to 1 shadow"):
        likelihood_ratios(np.zeros(3), np.zeros((2, 3)), np.array([[True] * 3, [False] * 3]), online=True)
    with pytest.raises(ValueError, match="shadows is 2"):
        halves(2, 10, SeededSource(1))
    with pytest.raises(ValueError, match="shape"):
        likelihood_ratios(np.zeros(4), np.zeros((4, 3)), np.zeros((4, 3), dtype=bool), online=False)


def test_calibration_by_shadows_beats_the_loss_alone() -> None:
    """Records differ in difficulty more than membership moves them: only a record's own shadows show membership."""
    random = np.random.default_rng(3)
    difficulty = 20 * random.standard_normal(2000)
    member = np.arange(2000) < 1000

    def train(mask: np.ndarray) -> np.ndarray:
        return np.asarray(difficulty + 3.0 * mask + random.standard_normal(2000))

    observed = train(member)
    online, offline = attack(observed, member, train, shadows=8, source=SeededSource(4), delta=1e-5)
    alone = measure(observed[member], observed[~member], attack="loss", details="", delta=1e-5)
    assert alone.rates[1].true_positive_rate < 0.06 and alone.area < 0.6
    assert online.rates[1].true_positive_rate > 0.4 and online.epsilon > 1.5
    assert offline.rates[1].true_positive_rate > 0.4
