"""Noisy gradient descent with the settings of the rule, for a model of rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from tacit.ledger import Budget, Ledger
from tacit.mechanisms import Flat
from tacit.tables.encoding import UNKNOWN
from tacit.tables.records import Records
from tacit.tables.rule import Settings
from tacit.training import make_private

Progress = Callable[[int, int], None]
"""Told the steps taken and the steps planned."""


def descend(
    network: nn.Module,
    dataset: Records | TensorDataset,
    *,
    chosen: Settings,
    noise_multiplier: float,
    budget: Budget,
    ledger: Ledger,
    unknown: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Train ``network`` and leave the average of the last iterates in it.

    ``dataset`` has features and targets. Targets of whole numbers are classes, others are numbers to come close to.
    ``unknown``: some targets may be `UNKNOWN`. Such a record contributes a gradient of zero and counts like any other
    for the lot size, which stays public. Returns the steps taken; each is in the ledger. The average is
    post-processing.
    """
    parameters = list(network.parameters())
    optimizer = torch.optim.SGD(parameters, lr=chosen.learning_rate, momentum=chosen.momentum)
    run = make_private(
        network,
        optimizer,
        dataset,
        lot_size=chosen.lot_size,
        steps=chosen.steps,
        clipping=Flat(chosen.clip_norm),
        noise_multiplier=noise_multiplier,
        budget=budget,
        ledger=ledger,
        collate_fn=dataset.collate if isinstance(dataset, Records) else None,
        seed=seed,
    )
    totals, averaged = [torch.zeros_like(parameter) for parameter in parameters], 0
    begin = math.floor(chosen.steps * (1 - chosen.tail))
    try:
        for rows, wanted in run.batches():
            if wanted.is_floating_point():
                loss = F.mse_loss(network(rows)[:, 0], wanted)
            elif unknown:
                # A mean would divide by how many records of the batch are known, which is private.
                loss = F.cross_entropy(network(rows), wanted, ignore_index=UNKNOWN, reduction="sum")
            else:
                loss = F.cross_entropy(network(rows), wanted)
            torch.autograd.backward(loss)
            before = run.step
            optimizer.step()
            optimizer.zero_grad()
            if run.step == before:
                continue
            if run.step > begin:
                averaged += 1
                for total, parameter in zip(totals, parameters, strict=True):
                    total += parameter.detach()
            if progress is not None:
                progress(run.step, chosen.steps)
        steps = run.step
    finally:
        run.close()
    with torch.no_grad():
        for total, parameter in zip(totals, parameters, strict=True):
            if averaged:
                parameter.copy_(total / averaged)
    return steps
