"""One record counts once: ways in which it could slip in twice, or past the noise, and how each is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.training import PrivateBatchNorm


def test_a_collate_that_repeats_a_record_is_refused(make: Any, train: Callable[..., int]) -> None:
    def twice(examples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([x for x, _ in examples] * 2), torch.stack([y for _, y in examples] * 2)

    _, _, run = make(collate_fn=twice, lot_size=60)
    with pytest.raises(ValueError, match="another number of examples than the batch has records"):
        train(run)


def test_a_wrong_batch_dimension_is_refused(make: Any, train: Callable[..., int]) -> None:
    # Time first: with batch_dim=0 every "example" would be a time step of everybody.
    sequences = torch.randn(30, 5, 2)
    model, _, run = make(nn.LSTM(2, 3, batch_first=True), None, sequences, lot_size=30)
    with pytest.raises(ValueError, match="examples are not in the dimension"):
        train(run, lambda x: model(x.transpose(0, 1))[0].square().mean())


def test_a_batch_the_engine_could_not_follow_must_have_its_size(make: Any, train: Callable[..., int]) -> None:
    sequences = torch.randn(30, 5, 2)
    model, _, run = make(nn.LSTM(2, 3, batch_first=True), None, sequences, lot_size=30)
    with pytest.raises(ValueError, match=r"another number of examples than the batch has records; .*batch_dim"):
        train(run, lambda x: model(torch.from_numpy(x.numpy()).transpose(0, 1))[0].square().mean())


def test_a_metric_is_observed_once_a_batch(make: Any) -> None:
    model, optimizer, run = make(metrics={"one": tacit.Metric(bound=1.0)}, lot_size=60, batch_size=30, steps=1)
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        run.observe(one=torch.ones(len(x)))
        with pytest.raises(RuntimeError, match="'one' was already observed"):
            run.observe(one=torch.ones(len(x)))
        optimizer.step()
    assert run.step == 1


def test_a_stale_gradient_of_a_frozen_parameter_never_reaches_the_weights(
    make: Any, train: Callable[..., int], data: TensorDataset
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    F.cross_entropy(model(data.tensors[0]), data.tensors[1]).backward()  # raw gradients, and nobody clears them
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    _, _, run = make(model, torch.optim.SGD(model.parameters(), lr=1.0), trial=False)
    with pytest.raises(RuntimeError, match=r"shape \(4, 4\) with a gradient that is not private"):
        train(run)
    assert torch.equal(model[0].weight, before)


def test_raw_gradients_left_in_trained_parameters_are_overwritten(
    make: Any, data: TensorDataset, train: Callable[..., int], silence: Any
) -> None:
    steps = []
    for dirty in (False, True):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
        if dirty:
            (1000 * F.cross_entropy(model(data.tensors[0]), data.tensors[1])).backward()
        _, _, run = make(model, lot_size=60, steps=1)
        train(run)
        steps.append(model.weight.detach().clone())
    assert torch.equal(*steps)


@pytest.mark.parametrize("how", ["unfreeze", "new group"])
def test_parameters_that_join_later_are_refused(make: Any, train: Callable[..., int], how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    extra = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, run = make(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    if how == "unfreeze":
        model[0].requires_grad_(True)
    else:
        optimizer.add_param_group({"params": [extra]})
    with pytest.raises(RuntimeError, match=r"not a parameter of the recorded model|not private"):
        train(run, lambda x, y: F.cross_entropy(model(x) + (extra if how == "new group" else 0), y))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert not extra.any()


class Folded(nn.Module):
    """Normalises two pieces of each record as if they were two records."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = PrivateBatchNorm(2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x.reshape(-1, 2)).reshape(-1, 4))


def test_batch_normalisation_of_several_rows_a_record_is_refused(make: Any, train: Callable[..., int]) -> None:
    _, _, run = make(Folded(), lot_size=60)
    with pytest.raises(ValueError, match="does not have one row for each record"):
        train(run)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = PrivateBatchNorm(60, affine=False), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x.t()).t())


def test_batch_normalisation_over_records_is_refused(make: Any, train: Callable[..., int]) -> None:
    _, _, run = make(Turned(), lot_size=60, trial=False)
    with pytest.raises(ValueError, match="one record in each row"):
        train(run)


def test_a_forward_after_the_step_leaves_nothing_for_the_next_batch(make: Any, silence: Any) -> None:
    """A second look at a batch must not put its records into the statistics of the next one."""
    means = []
    for look in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(PrivateBatchNorm(4), nn.Linear(4, 3))
        model, optimizer, run = make(model, lot_size=60, batch_size=30, steps=1)
        for x, y in run.batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if look:
                model(x)
        means.append(model[0].running_mean.clone())
    assert torch.equal(*means)


def test_reading_the_noise_multiplier_in_the_loop_changes_nothing(make: Any, silence: Any) -> None:
    results = []
    for read in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(PrivateBatchNorm(4), nn.Linear(4, 3))
        model, optimizer, run = make(
            model, lot_size=60, batch_size=30, steps=2, clipping=tacit.Adaptive(initial=0.3, quantile=0.9)
        )
        for x, y in run.batches():
            F.cross_entropy(model(x), y).backward()
            if read:
                assert run.noise_multiplier == pytest.approx(1.0)
            optimizer.step()
            if read:
                assert run.noise_multiplier == pytest.approx(1.0)
        results.append((run.clipping_state(), model[0].running_mean.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("strategy", [tacit.Flat(0.5), tacit.Automatic(), tacit.PerLayer(each=0.5)], ids=str)
def test_a_record_moves_the_sum_by_no_more_than_recorded(
    make: Any, data: TensorDataset, silence: Any, strategy: Any
) -> None:
    """The worst records there are: huge, tiny, not finite. The sum with and without each differs by at most S."""
    x, y = data.tensors
    sums = []
    for odd in (None, 1e30, -1e4, float("nan"), float("inf"), 1e-30):
        torch.manual_seed(0)
        rows = x if odd is None else torch.cat([x, torch.full((1, 4), odd)])
        labels = y if odd is None else torch.cat([y, y[:1]])
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        model, optimizer, run = make(
            model, None, TensorDataset(rows, labels), lot_size=len(rows), clipping=strategy, steps=1
        )
        silence.added.clear()
        for batch, target in run.batches():
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
        step = run.ledger.entries[0][0]
        sums.append(([total for total, _, _ in silence.added], [query.clip_norm for query in step.queries]))
    (base, bounds), *others = sums
    whole = sum(bound**2 for bound in bounds) ** 0.5
    for other, _ in others:
        moved = sum(float((a - b).double().square().sum()) for a, b in zip(base, other, strict=True)) ** 0.5
        assert moved <= whole * (1 + 1e-5)
