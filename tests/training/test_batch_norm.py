"""PrivateBatchNorm: replaces batch normalisation in one call, mixes nobody, and pays for its statistics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients import record
from tacit.training import PrivateBatchNorm


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_one_call_replaces_all_and_keeps_names_and_values() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, eps=1e-3, momentum=0.2), nn.Sequential(nn.BatchNorm1d(5))
    )
    with torch.no_grad():
        model[1].weight.fill_(2.0)
        model[1].running_mean.fill_(0.5)
    before = {k: v.clone() for k, v in model.state_dict().items() if "num_batches" not in k}
    assert tacit.private_batch_norm(model) == 2
    after = model.state_dict()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert isinstance(model[1], PrivateBatchNorm) and (model[1].eps, model[1].momentum) == (1e-3, 0.2)


def test_modes_freezing_types_and_sharing_are_kept() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.BatchNorm1d(3).double().eval()
            self.again = self.first
            self.plain = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
            self.frozen = nn.BatchNorm1d(3).requires_grad_(False)

    model = Shared()
    assert tacit.private_batch_norm(model) == 3
    assert model.first is model.again
    assert model.first.weight.dtype == torch.float64 and not model.first.training
    assert model.plain.weight is None and model.plain.training
    assert not model.frozen.weight.requires_grad


def test_eval_mode_equals_ordinary_batch_normalisation() -> None:
    ordinary = nn.BatchNorm2d(3)
    ordinary(torch.randn(20, 3, 4, 4) * 2 + 1)
    ordinary.eval()
    holder = nn.Sequential(ordinary)
    x = torch.randn(5, 3, 4, 4)
    wanted = holder(x)
    tacit.private_batch_norm(holder)
    torch.testing.assert_close(holder.eval()(x), wanted)
    torch.testing.assert_close(holder.train()(x), wanted)


def test_no_example_sees_another() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), PrivateBatchNorm(2), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(6, 1, 3, 3), torch.arange(6) % 3
    with record(model) as tape:
        F.cross_entropy(model(x), y).backward()
    together = tape.norms()
    alone = []
    for i in range(6):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        alone.append(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())))
    torch.testing.assert_close(together, torch.tensor(alone), rtol=1e-4, atol=1e-6)


def test_statistics_find_those_of_the_data_without_noise(make: Any, train: Any, silence: Any) -> None:
    x = torch.randn(60, 4) * torch.tensor([0.5, 1.0, 2.0, 3.0]) + torch.tensor([0.0, 1.0, -2.0, 3.0])
    model = nn.Sequential(PrivateBatchNorm(4, bound=50.0), nn.Linear(4, 3))
    _, _, run = make(model, None, TensorDataset(x, torch.arange(60) % 3), lot_size=60, steps=150)
    train(run)
    torch.testing.assert_close(model[0].running_mean, x.mean(0), atol=0.02, rtol=0.02)
    torch.testing.assert_close(model[0].running_var, x.var(0, unbiased=False), atol=0.05, rtol=0.05)


def test_statistics_are_charged_with_the_noise_that_is_added(make: Any, train: Any, noise: Any) -> None:
    model = network()
    tacit.private_batch_norm(model, bound=0.5, noise_multiplier=7.0)
    _, _, run = make(model, steps=1, noise_multiplier=2.0)
    train(run)
    queries = {query.group: query for query in run.ledger.entries[0][0].queries}
    statistics = queries["statistics/1"]
    assert statistics.clip_norm == pytest.approx(0.5 * math.sqrt(12))
    assert statistics.noise_std == pytest.approx(7.0 * statistics.clip_norm)
    total, std, _ = noise.added[-1]
    assert total.shape == (2, 6) and std == statistics.noise_std
    assert run.noise_multiplier == pytest.approx(2.0)


def test_one_record_moves_the_statistics_by_the_bound_at_most(make: Any, train: Any, silence: Any) -> None:
    totals = []
    for odd in (None, 1e6, float("nan"), -1e20):
        torch.manual_seed(0)
        x = torch.randn(30, 4)
        if odd is not None:
            x = torch.cat([x, torch.full((1, 4), odd)])
        model = nn.Sequential(PrivateBatchNorm(4, bound=0.3), nn.Linear(4, 3))
        _, _, run = make(model, None, TensorDataset(x, torch.arange(len(x)) % 3), lot_size=len(x), steps=1)
        silence.added.clear()
        train(run)
        totals.append(next(total for total, _, _ in silence.added if total.shape == (2, 4)))
    bound = 0.3 * math.sqrt(8)
    for other in totals[1:]:
        assert float((other - totals[0]).norm()) <= bound * (1 + 1e-9)
    assert float((totals[1] - totals[0]).norm()) > 0.99 * bound


def test_it_trains(make: Any, train: Any, data: TensorDataset) -> None:
    model = network()
    tacit.private_batch_norm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    _, _, run = make(model, optimizer, lot_size=40, steps=60, noise_multiplier=0.5, clipping=tacit.Flat(1.0))
    train(run)
    x, y = data.tensors
    accuracy = float((model.eval()(x).argmax(1) == y).float().mean())
    assert accuracy > 0.8
    assert torch.isfinite(model[1].running_var).all() and (model[1].running_var > 0).all()


def test_ordinary_batch_normalisation_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="statistics of the whole batch"):
        make(network())


def test_nothing_is_kept_outside_a_run() -> None:
    layer = PrivateBatchNorm(3)
    layer(torch.randn(5, 3))
    assert len(layer.collect(5)) == 0
    with pytest.raises(ValueError, match="dimension 1 must have 3 channels"):
        layer(torch.randn(5, 4))
    with pytest.raises(ValueError, match="bound is 0"):
        PrivateBatchNorm(3, bound=0)


def test_a_loop_of_a_closed_run_that_ends_late_takes_nothing_from_the_next_run(make: Any, silence: Any) -> None:
    """An interrupted loop is kept by its traceback, and may be dropped in the middle of the next run's lot."""
    found = []
    for late in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(PrivateBatchNorm(4), nn.Linear(4, 3))
        _, _, first = make(model, lot_size=60)
        old = first.batches()
        next(old)
        first.close()
        _, optimizer, second = make(model, lot_size=60, steps=1)
        for x, y in second.batches():
            F.cross_entropy(model(x), y).backward()
            if late:
                old.close()
            optimizer.step()
        found.append(model[0].running_mean.clone())
    assert torch.equal(*found) and bool(found[0].any())
