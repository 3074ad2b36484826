"""The margin for rounding in a run: in the ledger, in the order of a lot, and over its batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients import attach
from tacit.gradients.precision import LARGEST_BATCH, LARGEST_LOT, MARGIN
from tacit.ledger import GaussianSum
from tacit.randomness import SecureSource, SeededSource
from tacit.training.distributed_noise import _joined
from tacit.training.run_settings import physical_batch_size
from tacit.training.shards import ShardedSums
from tacit.training.statement import _arithmetic
from tacit.training.sums import GradientSums


@pytest.mark.parametrize(
    ("clipping", "bounds"),
    [
        (tacit.Flat(2.0), [2.0]),
        (tacit.PerLayer(each=0.5), [0.5, 0.5]),
        (tacit.Automatic(), [1.0]),
        (tacit.Joint({"0.*": 1.0, "1.*": 3.0}, 0.25), [0.25]),
        (tacit.Adaptive(initial=0.5, count_noise_std=5.0), [0.5]),
    ],
)
def test_the_margin_is_in_the_ledger_and_the_noise_follows(make: Any, clipping: Any, bounds: list[float]) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    _, _, run = make(model, clipping=clipping, noise_multiplier=1.5, steps=1)
    step = run.next_step()
    found = [q.clip_norm for q in step.queries if isinstance(q, GaussianSum) and q.group.startswith("gradients")]
    assert found == pytest.approx([bound * (1 + MARGIN) for bound in bounds], rel=1e-12)
    assert step.noise_multiplier == pytest.approx(1.5)
    said = _arithmetic([(step, 1)])
    assert "margin for rounding" in said and "assumed and not checked" in said


def test_discrete_noise_charges_the_margin_once_and_then_the_rounding(make: Any) -> None:
    """Float sums move by S (1 + margin); rounding them to the lattice adds h sqrt(d) to that."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    for clipping, most in ((tacit.Flat(2.0), 2.0), (tacit.Adaptive(initial=2.0, count_noise_std=40.0), 2.0)):
        _, _, run = make(model, clipping=clipping, noise_multiplier=1.5, noise="discrete", steps=1)
        (query,) = [q for q in run.next_step().queries if isinstance(q, GaussianSum) and q.group == "gradients"]
        assert query.lattice is not None
        assert query.clip_norm == pytest.approx(most * (1 + MARGIN) + query.lattice * math.sqrt(43), rel=1e-12)
        run.close()


def test_users_and_microbatches_pay_the_margin_once(make: Any) -> None:
    """A user with three examples moves the sum three times by S (1 + margin); a microbatch is one record."""
    users = {"users": [i // 4 for i in range(60)], "examples_per_user": 3}
    for several, times in ((users, 3), ({"microbatch_size": 4}, 1)):
        model = nn.Linear(4, 3)
        _, _, run = make(model, clipping=tacit.Flat(0.5), noise_multiplier=1.5, steps=1, lot_size=5, **several)
        (query,) = run.next_step().queries
        assert query.clip_norm == pytest.approx(times * 0.5 * (1 + MARGIN), rel=1e-12)
        run.close()


@pytest.mark.parametrize("expected", [LARGEST_LOT // 2, LARGEST_LOT // 2 + 1])
@pytest.mark.parametrize("batches", [1, 3])
def test_the_type_of_a_release_follows_from_the_expected_lot_not_from_this_one(expected: int, batches: int) -> None:
    model = nn.Linear(2, 2, bias=False)
    engine, sums = attach(model), GradientSums(dict(model.named_parameters()))
    clipping = tacit.Flat(1.0).bind(engine.shapes)
    seen: list[torch.dtype] = []
    clipping.release_ = lambda receipt, sums, source: seen.extend(t.dtype for t in sums.values())  # type: ignore[method-assign]
    for _ in range(batches):
        model(torch.ones(3, 2)).sum().backward()
        sums.add(engine, clipping)
    sums.release(None, clipping, SecureSource(), lot_size=expected)  # type: ignore[arg-type]
    assert seen == [torch.float32 if expected <= LARGEST_LOT // 2 else torch.float64]
    wanted = torch.ones(2, 2) * 3 * batches * 0.5 / expected
    assert torch.allclose(model.weight.grad, wanted, rtol=1e-3)


def test_the_parts_of_several_processes_are_added_in_float64() -> None:
    def add_up_(mine: torch.Tensor) -> None:
        for other in (1.0, 1.0):
            mine += torch.full_like(mine, other)

    joined = _joined(torch.tensor([2.0**24]), add_up_)
    assert joined.dtype == torch.float32 and float(joined) == 2.0**24 + 2  # in float32 both ones would be lost


@pytest.mark.parametrize("expected", [LARGEST_LOT // 2, LARGEST_LOT // 2 + 1])
def test_sums_of_shards_are_put_together_and_added_in_float64(expected: int) -> None:
    """Another process brings 2^24 in the first batch; beside that the ones of this process would be lost in float32."""
    model = nn.Linear(1, 1, bias=False)
    engine, brought = attach(model), [2.0**24, 0.0, 2.0**24, 0.0]
    sums = ShardedSums(
        dict(model.named_parameters()), lambda several: [each + brought.pop(0) for each in several], SecureSource()
    )
    clipping = tacit.Flat(1e9).bind(engine.shapes)
    seen: list[torch.Tensor] = []
    clipping.release_ = lambda *args, **_: seen.extend(each.clone() for each in args[1].values())  # type: ignore[method-assign]
    for _ in range(2):  # lots; nothing of the first is in the second
        sums.clear()
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
            sums.add(engine, clipping)
        sums.release(None, clipping, SecureSource(), lot_size=expected)  # type: ignore[arg-type]
    assert [float(each) for each in seen] == [2.0**24 + 2] * 2
    assert seen[0].dtype == (torch.float32 if expected <= LARGEST_LOT // 2 else torch.float64)
    assert float(model.weight.grad) == pytest.approx(2.0**24 / expected, rel=1e-6)


def test_the_order_of_a_lot_is_random_and_loses_no_record() -> None:
    x = torch.arange(300.0).unsqueeze(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    run = tacit.make_private(
        model, optimizer, TensorDataset(x, x), lot_size=300, steps=2, noise_multiplier=1.0, clipping=tacit.Flat(1.0)
    )
    orders = []
    for rows, _ in run.batches():
        if not run.in_trial:
            orders.append(rows.flatten().tolist())
        model(rows).sum().backward()
        optimizer.step()
    assert orders[0] != orders[1]
    assert all(order != sorted(order) == x.flatten().tolist() for order in orders)


def test_a_lot_in_many_batches_is_summed_in_float64(make: Any, silence: Any) -> None:
    """One batch of 2^24 and many ones, each too small to be seen beside it in float32."""
    x = torch.ones(201, 1)
    x[0] = 2.0**24
    model = nn.Linear(1, 1, bias=False)
    dataset = TensorDataset(x, torch.zeros(201))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = tacit.make_private(
        model, optimizer, dataset, lot_size=201, batch_size=1, steps=1, noise_multiplier=1.0, clipping=tacit.Flat(1e9)
    )
    for a, _ in run.batches():
        model(a).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(silence.added[0][0]) == 2.0**24 + 200


def test_batches_are_no_larger_than_the_margin_is_proved_for() -> None:
    assert physical_batch_size(None, 10**6, 1, None) == physical_batch_size(10**5, 10**6, 1, None) == LARGEST_BATCH
    assert physical_batch_size(10**5, 10**6, 4, None) == 4 * LARGEST_BATCH
    assert physical_batch_size(64, 600, 1, None) == 64 and physical_batch_size(None, 600, 1, None) == 1200


def test_a_clip_norm_too_small_for_the_proof_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="clipped to 1e-10"):
        make(nn.Linear(4, 3), clipping=tacit.Flat(1e-10), noise_multiplier=1.0, steps=1)


def test_complex_parameters_in_shards_are_refused_before_any_sum() -> None:
    with pytest.raises(ValueError, match="is complex and sharded"):
        ShardedSums({"w": torch.zeros(3, dtype=torch.complex64)}, lambda totals: totals, SeededSource(0))
