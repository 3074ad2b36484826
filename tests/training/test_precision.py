"""The margin for rounding in a run: in the ledger, in the order of a lot, and over its batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients.precision import LARGEST_BATCH, MARGIN
from tacit.ledger import GaussianSum
from tacit.randomness import SecureSource
from tacit.training.private import _batch_size
from tacit.training.run import shuffled


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
    assert "margin for what rounding" in run.statement(1e-5)


def test_the_order_of_a_lot_is_random_and_loses_nobody() -> None:
    records = np.arange(100, 400)
    one, two = shuffled(records, SecureSource()), shuffled(records, SecureSource())
    assert not np.array_equal(one, two) and not np.array_equal(one, records)
    assert np.array_equal(np.sort(one), records)


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
    assert _batch_size(None, 10**6, 1) == _batch_size(10**5, 10**6, 1) == LARGEST_BATCH
    assert _batch_size(10**5, 10**6, 4) == 4 * LARGEST_BATCH
    assert _batch_size(64, 600, 1) == 64 and _batch_size(None, 600, 1) == 1200
