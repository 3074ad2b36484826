"""Undo what a loop does to its learning-rate schedule in batches that count for nothing."""

from __future__ import annotations

import copy
import gc

import torch
from torch.optim.lr_scheduler import LRScheduler


class KeptSchedule:
    """The optimizer's settings and the state of its schedulers as they were when this was made.

    A loop calls ``scheduler.step()`` after every batch; the run has never seen its schedulers, and finds those of
    PyTorch by their reference to the optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        self._states = [(scheduler, copy.deepcopy(scheduler.state_dict())) for scheduler in _schedulers(optimizer)]

    def put_back(self) -> None:
        """Undo every change since this was made."""
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=False):
            group.update(copy.deepcopy(before))
        for scheduler, state in self._states:
            scheduler.load_state_dict(copy.deepcopy(state))


def _schedulers(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """The schedulers that hold the optimizer, in their attributes or in the dictionary of these."""
    referrers = gc.get_referrers(optimizer)
    attributes = [each for each in referrers if isinstance(each, dict) and each.get("optimizer") is optimizer]
    owners = [each for each in gc.get_referrers(*attributes) if isinstance(each, LRScheduler)] if attributes else []
    held = {id(each): each for each in (*referrers, *owners) if isinstance(each, LRScheduler)}
    return [each for each in held.values() if each.optimizer is optimizer]
