"""Time a step with correlated noise beside a step of DP-SGD, in one process, turn by turn.

    python benchmarks/correlated_noise.py

Prints the ratio of the medians of CPU time for each strategy, for a convolutional network and a multilayer perceptron.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, SparseInverse, TreeAggregation

_RECORDS, _LOT, _STEPS, _PLANNED = 10_000, 250, 24, 1_000


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def seconds(model: nn.Module, data: TensorDataset, **settings: Any) -> Iterator[float]:
    """Train, and yield the CPU seconds of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(
        model,
        optimizer,
        data,
        lot_size=_LOT,
        steps=_PLANNED,
        clipping=1.0,
        noise_multiplier=1.0,
        trial=False,
        **settings,
    )
    for base in [run.sampler] * ("sampling" in settings):  # as if most steps were over: all lags are in use
        base.position = _PLANNED - _STEPS
    begin = time.process_time()
    for x, y in run.batches():
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.lot_finished:
            yield time.process_time() - begin
            begin = time.process_time()


def main() -> None:
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(_RECORDS, 1, 28, 28), torch.randint(0, 10, (_RECORDS,)))
    strategies = [
        SparseInverse(),
        SparseInverse(groups=8),
        SparseInverse(growth=2),
        BandedToeplitz(bands=8),
        BufferedToeplitz(buffers=4),
        BandedInverse(bands=4),
        BandedInverse(bands=8),
        TreeAggregation(),
    ]
    for make in (convolutional, perceptron):
        size = sum(p.numel() for p in make().parameters())
        for strategy in strategies:
            plain = seconds(make(), data)
            ours = seconds(make(), data, noise=strategy, sampling="cyclic")
            pairs = []
            for _ in range(_STEPS):  # turn by turn: each run goes on while the other waits
                pairs.append((next(plain), next(ours)))
            theirs, mine = (statistics.median(times[4:]) for times in zip(*pairs, strict=True))
            print(f"{make.__name__} ({size} parameters)  {strategy}  {mine / theirs:.3f}", flush=True)


if __name__ == "__main__":
    main()
