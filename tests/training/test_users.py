"""User-level runs and microbatches: what one record of that kind can do, and what is charged for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients.precision import MARGIN
from tacit.mechanisms import Microbatches


def same_direction(users: int, each: int) -> TensorDataset:
    """Everybody pulls the same way, so that clipped gradients add up without cancelling."""
    return TensorDataset(torch.full((users * each, 4), 100.0), torch.zeros(users * each, dtype=torch.long))


@pytest.mark.parametrize("each", [1, 3, 10])
def test_a_user_moves_the_sum_by_most_times_the_clip_norm_at_most(
    make: Any, train: Any, silence: Any, each: int
) -> None:
    sums, recorded = [], None
    for users in (5, 6):
        torch.manual_seed(0)
        dataset = same_direction(users, each)
        silence.added.clear()
        _, _, run = make(
            nn.Linear(4, 3),
            None,
            dataset,
            lot_size=users,
            steps=1,
            clipping=tacit.Flat(0.5),
            users=[i // each for i in range(len(dataset))],
            examples_per_user=3,
            batch_size=4,
        )
        train(run)
        sums.append(torch.cat([total.flatten() for total, _, _ in silence.added]))
        recorded = run.ledger.entries[0][0].queries[0].clip_norm
    moved = float((sums[1] - sums[0]).norm())
    assert recorded == pytest.approx(1.5 * (1 + MARGIN))
    assert moved == pytest.approx(0.5 * min(each, 3), rel=1e-4)
    assert moved <= recorded


def test_the_unit_is_in_everything(make: Any, train: Any) -> None:
    _, _, run = make(users=np.arange(60) // 5, examples_per_user=2, lot_size=4, noise_multiplier=2.0, accountant="rdp")
    train(run)
    step = run.ledger.entries[0][0]
    assert (run.ledger.header.unit, step.sampling.unit, step.sampling.records) == ("user", "user", 12)
    assert step.noise_multiplier == pytest.approx(2.0)
    assert step.queries[0].noise_std == pytest.approx(2.0 * 2 * 1.0 * (1 + MARGIN))
    assert "user-level" in str(run.guarantee(1e-5))
    assert "one user" in run.statement(1e-5) and "number of records, 12" in run.statement(1e-5)


def test_users_are_drawn_whole_and_bring_at_most_so_many(make: Any, train: Any, lots: Any) -> None:
    owners = np.repeat(np.arange(10), [1, 2, 3, 4, 5, 6, 7, 8, 12, 12])
    _, _, run = make(users=owners, examples_per_user=4, lot_size=5, steps=10)
    drawn = lots(run)
    train(run)
    assert run.contributions == 4
    for lot in drawn:
        for user, chosen in zip(lot.users, lot.examples, strict=True):
            assert len(chosen) == min(4, (owners == user).sum())
            assert (owners[chosen] == user).all() and len(set(chosen.tolist())) == len(chosen)


def test_metrics_and_adaptive_clipping_count_a_user_as_often(make: Any) -> None:
    _, _, run = make(
        users=np.arange(60) // 5,
        examples_per_user=2,
        lot_size=6,
        clipping=tacit.Adaptive(count_noise_std=20.0),
        metrics={"loss": tacit.Metric(bound=3.0)},
    )
    next(run.lot())
    queries = {query.group: query.clip_norm for query in run.ledger.entries[0][0].queries}
    assert queries == {"gradients": 2.0 * (1 + MARGIN), "unclipped count": 1.0, "metrics/loss": 6.0}


def test_the_divisor_is_the_expected_number_of_users(make: Any, silence: Any) -> None:
    model, optimizer, run = make(
        users=np.arange(60) // 5, examples_per_user=5, lot_size=6, steps=3, batch_size=100, trial=False
    )
    for x, y in run.batches():
        silence.added.clear()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        torch.testing.assert_close(model.weight.grad, silence.added[0][0] / 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"users": [0] * 60, "lot_size": 1}, "examples_per_user is missing"),
        ({"examples_per_user": 2}, "users is missing"),
        ({"users": [0] * 59, "examples_per_user": 2}, "users has 59 entries; the data set has 60"),
        ({"users": [0] * 30 + [1] * 30, "examples_per_user": 0, "lot_size": 1}, "examples_per_user is 0"),
        ({"users": [0] * 60, "examples_per_user": 2, "lot_size": 2}, "from 1 to the number of records, 1"),
    ],
)
def test_errors(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_an_example_ledger_is_not_for_users(make: Any) -> None:
    ledger = tacit.Ledger()
    with pytest.raises(ValueError, match="the ledger's unit is example; this run needs user"):
        make(ledger=ledger, users=np.arange(60) // 5, examples_per_user=2, lot_size=4)


def test_microbatches_are_charged_twice_the_clip_norm(make: Any, train: Any) -> None:
    """Under add/remove of an example one clipped average becomes another, so the sum can move by 2 S."""
    _, _, run = make(clipping=Microbatches(tacit.Flat(0.5)), noise_multiplier=1.5)
    train(run)
    query = run.ledger.entries[0][0].queries[0]
    assert query.clip_norm == 1.0 + MARGIN
    assert query.noise_std == pytest.approx(1.5 * (1 + MARGIN))
    assert run.noise_multiplier == pytest.approx(1.5)
