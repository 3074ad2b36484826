"""Private means: bounded, charged before they are released."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tacit.accounting import Filter, account
from tacit.features import Statistics
from tacit.ledger import Budget, BudgetExceeded, Everyone, GaussianSum, Header, Ledger
from tacit.randomness import SecureSource, SeededSource

CHANNELS = 6


def released(rows: torch.Tensor, statistics: Statistics, *, ledger: Ledger | None = None) -> torch.Tensor:
    return statistics.release(
        lambda chosen: rows[torch.from_numpy(chosen)],
        channels=rows.shape[1],
        records=len(rows),
        ledger=ledger or Ledger(Header(secure_randomness=False)),
        source=SeededSource(1),
    )


def normal(count: int = 2000) -> torch.Tensor:
    return torch.randn(count, CHANNELS, 3, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_little_noise_gives_the_mean(rate: float) -> None:
    shift = torch.linspace(-0.3, 0.3, CHANNELS)
    rows = normal() + shift.view(1, -1, 1, 1)
    mean = released(rows, Statistics(noise_multiplier=0.01, sampling_rate=rate, bound=4.0))
    assert torch.allclose(mean, shift, atol=0.05)


@pytest.mark.parametrize("bad", [1e30, math.inf, math.nan, 50.0])
def test_one_record_moves_the_sum_by_no_more_than_the_recorded_bound(bad: float) -> None:
    """The noise is the same in both runs, so that the difference is the record's alone."""
    statistics = Statistics(noise_multiplier=1.0, sampling_rate=1.0, bound=0.7)
    without, with_bad = normal(50), normal(50)
    without[0], with_bad[0] = 0.0, bad  # a record of zeros adds what no record adds
    moved = (released(with_bad, statistics) - released(without, statistics)).norm() / math.sqrt(CHANNELS) * 50
    assert moved <= 0.7 * (1 + 1e-4)
    assert moved > 0.69 or not math.isfinite(bad)


def test_the_noise_is_the_recorded_one() -> None:
    mean = released(torch.zeros(100, 1000, 1, 1), Statistics(noise_multiplier=3.0, sampling_rate=1.0, bound=0.5))
    assert abs(mean.std().item() / (3.0 * 0.5 * math.sqrt(1000) / 100) - 1) < 0.15


def test_the_cost_is_that_of_a_gaussian_sum() -> None:
    ledger = Ledger(Header(secure_randomness=False))
    released(normal(100), Statistics(noise_multiplier=8.0, sampling_rate=1.0, bound=2.0), ledger=ledger)
    ((step, count),) = ledger.entries
    assert count == 1 and isinstance(step.sampling, Everyone)
    assert step.queries == (GaussianSum(group="statistics/mean", clip_norm=2.0, noise_std=16.0),)
    assert 0 < account(ledger, delta=1e-5).epsilon < 1


def test_sampling_makes_it_cheaper() -> None:
    costs = []
    for rate in (1.0, 0.1):
        ledger = Ledger(Header(secure_randomness=False))
        released(normal(100), Statistics(noise_multiplier=4.0, sampling_rate=rate), ledger=ledger)
        costs.append(account(ledger, delta=1e-5).epsilon)
    assert costs[1] < 0.4 * costs[0]


def test_nothing_is_read_when_the_budget_refuses() -> None:
    ledger = Ledger(Header(secure_randomness=False))
    ledger.guard(Filter(Budget(epsilon=0.01, delta=1e-6)))
    looked: list[np.ndarray] = []

    def rows(chosen: np.ndarray) -> torch.Tensor:
        looked.append(chosen)
        return torch.zeros(len(chosen), CHANNELS, 1)

    with pytest.raises(BudgetExceeded):
        Statistics().release(rows, channels=CHANNELS, records=100, ledger=ledger, source=SecureSource())
    assert not looked and not ledger.entries


@pytest.mark.parametrize("field", ["bound", "noise_multiplier", "sampling_rate"])
def test_nonsense_is_refused(field: str) -> None:
    with pytest.raises(ValueError):
        Statistics(**{field: 0.0})
