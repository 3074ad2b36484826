"""Noisy gradient descent with the settings of the rule, for a model of rows of numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.ledger import Budget, Ledger
from tacit.mechanisms import Flat
from tacit.recipes.interrupts import interrupts
from tacit.tables.encoding import UNKNOWN
from tacit.tables.records import Records
from tacit.tables.rule import Settings
from tacit.tables.split import Progress
from tacit.training import make_private

_SAVE_EVERY = 10.0
"""Seconds between two checkpoints."""


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
    checkpoint: Path | None = None,
) -> int:
    """Train ``network`` and leave the average of the last iterates in it.

    ``dataset`` has features and targets, and may have weights, which each record's loss is multiplied by before its
    gradient is clipped. Targets of whole numbers are classes, others are numbers to come close to.
    ``unknown``: some targets may be `UNKNOWN`. Such a record contributes a gradient of zero and counts like any other
    for the lot size, which stays public. Returns the steps taken; each is in the ledger. The average is
    post-processing.

    ``checkpoint`` is a directory to save to, and to go on from if it is there. Ctrl-C finishes the step in hand and
    saves before it interrupts. Steps that were charged after the last checkpoint stay charged.
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
    tail, saved = _Tail(parameters, math.floor(chosen.steps * (1 - chosen.tail))), time.monotonic()
    try:
        if checkpoint is not None and (checkpoint.exists() or checkpoint.with_name("checkpoint.old").exists()):
            run.load(checkpoint, tail=tail)
        with interrupts() as asked:
            for rows, wanted, *weights in run.batches():
                torch.autograd.backward(_loss(network(rows), wanted, weights, unknown=unknown))
                before = run.step
                optimizer.step()
                optimizer.zero_grad()
                if run.step == before:
                    continue
                tail.add(run.step)
                if progress is not None:
                    progress("training", run.step, chosen.steps)
                if checkpoint is not None and (asked or time.monotonic() - saved >= _SAVE_EVERY):
                    run.save(checkpoint, tail=tail)
                    saved = time.monotonic()
                if asked:
                    raise KeyboardInterrupt
        if checkpoint is not None:
            run.save(checkpoint, tail=tail)
        steps = run.step
    finally:
        run.close()
    tail.put_in()
    return steps


def _loss(outputs: Tensor, wanted: Tensor, weights: Sequence[Tensor], *, unknown: bool) -> Tensor:
    if weights:
        if wanted.is_floating_point():
            each = F.mse_loss(outputs[:, 0], wanted, reduction="none")
        else:
            each = F.cross_entropy(outputs, wanted, ignore_index=UNKNOWN, reduction="none")
        return (each * weights[0]).mean()
    if wanted.is_floating_point():
        return F.mse_loss(outputs[:, 0], wanted)
    if unknown:
        # A mean would divide by how many records of the batch are known, which is private.
        return F.cross_entropy(outputs, wanted, ignore_index=UNKNOWN, reduction="sum")
    return F.cross_entropy(outputs, wanted)


class _Tail:
    """The average of the iterates after step ``begin``."""

    def __init__(self, parameters: Iterable[Tensor], begin: int) -> None:
        self._parameters, self._begin, self._count = list(parameters), begin, 0
        self._totals = [torch.zeros_like(parameter) for parameter in self._parameters]

    def add(self, step: int) -> None:
        """Count the parameters as they are after ``step``."""
        if step > self._begin:
            self._count += 1
            for total, parameter in zip(self._totals, self._parameters, strict=True):
                total += parameter.detach()

    def put_in(self) -> None:
        """Set the parameters to the average; if there is none, they stay."""
        with torch.no_grad():
            for total, parameter in zip(self._totals, self._parameters, strict=True):
                if self._count:
                    parameter.copy_(total / self._count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "totals": {str(place): total for place, total in enumerate(self._totals)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count = int(state["count"])
        for place, total in enumerate(self._totals):
            total.copy_(state["totals"][str(place)])
