"""Cost grows with the work: linearly with the batch and with the depth; what is over is freed."""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacit import gradients


def seconds(depth: int, batch: int, flat: Any) -> float:
    layers = [m for _ in range(depth) for m in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    engine = gradients.attach(model)
    x, y = torch.randn(batch, 256), torch.randint(0, 10, (batch,))
    times = []
    for _ in range(7):
        start = time.process_time()
        F.cross_entropy(model(x), y).backward()
        engine.clipped_sum(flat(1.0))
        times.append(time.process_time() - start)
    return statistics.median(times[2:])


@pytest.mark.slow
def test_cost_is_linear_in_the_batch(flat: Any) -> None:
    assert seconds(4, 2048, flat) < 8 * 1.5 * seconds(4, 256, flat)


@pytest.mark.slow
def test_cost_is_linear_in_the_depth(flat: Any) -> None:
    assert seconds(16, 512, flat) < 8 * 1.5 * seconds(2, 512, flat)


def test_a_loss_that_is_kept_for_the_log_keeps_no_graph(flat: Any) -> None:
    engine = gradients.attach(model := nn.Linear(3, 2))
    each = model(torch.randn(4, 3)).square().sum(1)
    alive, loss = weakref.ref(each), each.mean()
    loss.backward()
    engine.clipped_sum(flat(1.0))
    kept = loss.detach()
    del each, loss
    gc.collect()
    assert alive() is None
    assert float(kept) > 0
    engine.detach()
