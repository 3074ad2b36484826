"""Undo what a loop does to its learning-rate schedule in batches that count for nothing."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim.lr_scheduler import LRScheduler


@contextmanager
def schedule_kept(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put the optimizer's settings and the state of its schedulers back at the end.

    A loop calls ``scheduler.step()`` after every batch; the run has never seen its schedulers, and finds those of
    PyTorch by their reference to the optimizer.
    """
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    states = [(scheduler, copy.deepcopy(scheduler.state_dict())) for scheduler in _schedulers(optimizer)]
    try:
        yield
    finally:
        for group, before in zip(optimizer.param_groups, groups, strict=False):
            group.update(before)
        for scheduler, state in states:
            scheduler.load_state_dict(state)


def _schedulers(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """The schedulers that hold the optimizer, in their attributes or in the dictionary of these."""
    referrers = gc.get_referrers(optimizer)
    attributes = [each for each in referrers if isinstance(each, dict) and each.get("optimizer") is optimizer]
    owners = [each for each in gc.get_referrers(*attributes) if isinstance(each, LRScheduler)] if attributes else []
    held = {id(each): each for each in (*referrers, *owners) if isinstance(each, LRScheduler)}
    return [each for each in held.values() if each.optimizer is optimizer]
