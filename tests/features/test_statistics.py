"""Private means and variances: bounded, charged before they are released, robust."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tacit.accounting import Filter, account
from tacit.features import Statistics
from tacit.ledger import Budget, BudgetExceeded, Everyone, Ledger
from tacit.randomness import SecureSource, SeededSource

CHANNELS = 6


def released(
    rows: torch.Tensor, statistics: Statistics, *, ledger: Ledger | None = None, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    return statistics.release(
        lambda chosen: rows[torch.from_numpy(chosen)],
        channels=rows.shape[1],
        records=len(rows),
        ledger=ledger or Ledger(),
        source=SeededSource(seed),
    )


def normal(count: int = 2000, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, CHANNELS, 3, 3, generator=torch.Generator().manual_seed(seed))


def test_little_noise_gives_mean_and_variance() -> None:
    scale, shift = torch.linspace(0.5, 1.2, CHANNELS), torch.linspace(-0.3, 0.3, CHANNELS)
    rows = normal() * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
    mean, variance = released(rows, Statistics(noise_multiplier=0.01, sampling_rate=1.0, bound=4.0, square_bound=8.0))
    assert torch.allclose(mean, shift, atol=0.03)
    assert torch.allclose(variance, scale**2, atol=0.05)


@pytest.mark.parametrize("bad", [1e30, math.inf, math.nan, 50.0])
def test_one_record_moves_the_sums_by_no_more_than_the_recorded_bounds(bad: float) -> None:
    """The noise is the same in both runs, so that the difference is the record's alone."""
    statistics = Statistics(noise_multiplier=1.0, sampling_rate=1.0, bound=0.7, square_bound=1.3, least=1e-9)
    rows = normal(50)
    with_bad = rows.clone()
    with_bad[0] = bad
    rows[0] = 0.0  # a record of zeros counts as no record
    totals = [_sums(statistics, each) for each in (rows, with_bad)]
    for before, after, bound in zip(*totals, (0.7, 1.3), strict=True):
        moved = (after - before).norm() / math.sqrt(CHANNELS) * 50
        assert moved <= bound * (1 + 1e-5)
        assert moved > 0.99 * bound or not math.isfinite(bad)


def _sums(statistics: Statistics, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = released(rows, statistics)
    return mean.double(), variance.double() + mean.double() ** 2


def test_the_noise_is_the_recorded_one() -> None:
    statistics = Statistics(noise_multiplier=3.0, sampling_rate=1.0, bound=0.5)
    rows = torch.zeros(100, 500, 1, 1)
    mean, variance = released(rows, statistics)
    expected = 3.0 * 0.5 * math.sqrt(500) / 100
    assert abs(mean.std().item() / expected - 1) < 0.15
    assert (variance >= statistics.least).all()  # noise alone would make half of them negative


def test_the_cost_is_that_of_two_gaussian_sums() -> None:
    ledger = Ledger()
    released(normal(100), Statistics(noise_multiplier=8.0, sampling_rate=1.0), ledger=ledger)
    ((step, count),) = ledger.entries
    assert count == 1 and isinstance(step.sampling, Everyone)
    assert step.noise_multiplier == pytest.approx(8.0 / math.sqrt(2))
    assert [query.group for query in step.queries] == ["statistics/mean", "statistics/square"]
    assert 0 < account(ledger, delta=1e-5).epsilon < 1


def test_sampling_makes_it_cheaper() -> None:
    costs = []
    for rate in (1.0, 0.1):
        ledger = Ledger()
        released(normal(100), Statistics(noise_multiplier=4.0, sampling_rate=rate), ledger=ledger)
        costs.append(account(ledger, delta=1e-5).epsilon)
    assert costs[1] < 0.4 * costs[0]


def test_nothing_is_read_when_the_budget_refuses() -> None:
    ledger = Ledger()
    ledger.guard(Filter(Budget(epsilon=0.01, delta=1e-6)))
    looked: list[np.ndarray] = []

    def rows(chosen: np.ndarray) -> torch.Tensor:
        looked.append(chosen)
        return torch.zeros(len(chosen), CHANNELS, 1)

    with pytest.raises(BudgetExceeded):
        Statistics().release(rows, channels=CHANNELS, records=100, ledger=ledger, source=SecureSource())
    assert not looked and not ledger.entries


@pytest.mark.parametrize("field", ["bound", "square_bound", "least", "noise_multiplier"])
def test_nonsense_is_refused(field: str) -> None:
    with pytest.raises(ValueError):
        Statistics(**{field: 0.0})
