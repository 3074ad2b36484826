"""Values found by a noisy threshold: what is charged covers what neighbours can see."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from tacit.accounting import Unproved, account, compose
from tacit.ledger import (
    Adjacency,
    Budget,
    BudgetExceeded,
    Everyone,
    GaussianSum,
    Header,
    Ledger,
    Poisson,
    Selection,
    Step,
    ThresholdedCounts,
    from_json,
    to_json,
)
from tacit.mechanisms import CountsQuery
from tacit.randomness import SeededSource


def release(counts: dict[str, int], seed: int, *, std: float = 10.0, slack: float = 1e-6) -> dict[str, float]:
    query = CountsQuery(group="values", noise_std=std, slack=slack)
    receipt = Ledger().record(Step(Everyone(), (query.event(),)))
    return query.release(receipt, counts, SeededSource(seed))


def test_common_values_pass_and_come_in_their_own_order() -> None:
    found = release({"b": 1000, "a": 900, "rare": 1}, seed=1)
    assert list(found) == ["a", "b"]
    assert abs(found["a"] - 900) < 70


def test_a_single_record_passes_as_often_as_the_slack_says() -> None:
    slack, runs = 0.2, 4000
    passed = sum("own" in release({"own": 1}, seed=seed, std=3.0, slack=slack) for seed in range(runs))
    assert abs(passed - slack * runs) < 6 * math.sqrt(runs * slack * (1 - slack))  # beyond it once in 10^9


def test_the_event_holds_the_slack_the_threshold_gives() -> None:
    event = CountsQuery(group="values", noise_std=7.0, slack=1e-7).event()
    exact = NormalDist().cdf(-(event.threshold - 1) / event.noise_std)
    assert exact <= event.slack <= 1.001e-7
    assert from_json(to_json(event)) == event


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_delta_covers_both_kinds_of_neighbours(accountant: str, epsilon: float) -> None:
    """A record with a common value moves a Gaussian; one with a value of its own shows with probability s.

    Exact hockey sticks: for the value of its own, sup_S P[M(D') in S] - e^ε P[M(D) in S] is s, and
    1 - e^ε (1 - s) the other way round.
    """
    event = ThresholdedCounts(group="values", noise_std=8.0, threshold=30.0)
    ledger = Ledger()
    ledger.record(Step(Everyone(), (event,)))
    delta = account(ledger, epsilon=epsilon, accountant=accountant).delta
    normal, s = NormalDist(), NormalDist().cdf(-(30.0 - 1) / 8.0)
    mu = 1 / 8.0
    common = normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)
    assert delta >= max(s, 1 - math.exp(epsilon) * (1 - s), common)
    if accountant == "pld":
        assert delta <= (s + common) * 1.01 + 1e-12


def test_epsilon_is_taken_at_what_the_slack_leaves_of_delta() -> None:
    event = ThresholdedCounts(group="values", noise_std=8.0, threshold=1 + 8.0 * 4.5)
    ledger, plain = Ledger(), Ledger()
    ledger.record(Step(Everyone(), (event,)))
    plain.record(Step(Everyone(), (GaussianSum(group="values", clip_norm=1.0, noise_std=8.0),)))
    left = 1e-5 - event.slack
    assert account(ledger, delta=1e-5).epsilon == pytest.approx(account(plain, delta=left).epsilon, rel=1e-6)
    assert account(ledger, delta=1e-5).epsilon_lower is None
    with pytest.raises(ValueError, match="not finite"):
        account(ledger, delta=event.slack / 2)


def test_slack_adds_up_and_doubles_under_replacement() -> None:
    event = ThresholdedCounts(group="values", noise_std=8.0, threshold=40.0)
    entries = [(Step(Everyone(), (event,)), 3)]
    assert compose(entries, Adjacency.ADD_REMOVE).slack == pytest.approx(3 * event.slack)
    assert compose(entries, Adjacency.REPLACE_ONE).slack == pytest.approx(6 * event.slack)


def test_no_proof_on_a_sample_or_within_a_selection() -> None:
    event = ThresholdedCounts(group="values", noise_std=8.0, threshold=40.0)
    with pytest.raises(Unproved, match="Everyone"):
        compose([(Step(Poisson(rate=0.1), (event,)), 1)], Adjacency.ADD_REMOVE)
    inner = ((Step(Everyone(), (event,)), 1),)
    chosen = Selection(group="best", trials="poisson", candidate=inner, mean=3.0)
    with pytest.raises(Unproved, match="discover"):
        compose([(Step(Everyone(), (chosen,)), 1)], Adjacency.ADD_REMOVE)


def test_a_budget_refuses_slack_beyond_its_delta() -> None:
    from tacit.accounting import Filter

    ledger = Ledger(Header())
    ledger.guard(Filter(Budget(epsilon=5.0, delta=1e-6)))
    with pytest.raises(BudgetExceeded):
        ledger.record(Step(Everyone(), (ThresholdedCounts(group="v", noise_std=8.0, threshold=20.0),)))


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="count below 1"):
        release({"nobody": 0}, seed=1)


def test_no_accountant_sees_a_composition_with_slack_unprepared() -> None:
    from tacit.accounting.moments import Moments
    from tacit.accounting.pld import Pld
    from tacit.accounting.rdp import Rdp
    from tacit.accounting.strong import Strong

    event = ThresholdedCounts(group="values", noise_std=8.0, threshold=40.0)
    composition = compose([(Step(Everyone(), (event,)), 1)], Adjacency.ADD_REMOVE)
    for method in (Pld(), Rdp(), Moments(), Strong()):
        with pytest.raises(Unproved, match="threshold"):
            method.epsilon(composition, 1e-3)


def test_an_adaptive_budget_has_no_proof_for_slack() -> None:
    """Slack spent where the loss is low, and divergence where it is high, would overrun δ."""
    from tacit.accounting import Filter
    from tacit.ledger import AdaptiveBudget

    ledger = Ledger(Header())
    ledger.guard(Filter(AdaptiveBudget(epsilon=5.0, delta=1e-3)))
    with pytest.raises(Unproved, match="threshold"):
        ledger.record(Step(Everyone(), (ThresholdedCounts(group="v", noise_std=8.0, threshold=60.0),)))


def test_a_trial_of_a_selection_cannot_discover_values() -> None:
    from tacit.tuning.cover import Cover

    base = ((Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=4.0),)), 1),)
    ledger = Ledger(Header())
    ledger.guard(Cover(base, Adjacency.ADD_REMOVE))
    with pytest.raises(Unproved, match="threshold"):
        ledger.record(Step(Everyone(), (ThresholdedCounts(group="v", noise_std=50.0, threshold=60.0),)))
