"""Describe the facts that several processes must share before they train one model, as text to compare by hash."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.ledger import GaussianSum
from tacit.randomness import Integers
from tacit.training.dtensor_local import is_shard
from tacit.training.open_run import OpenRun
from tacit.training.snapshot import bit_sum
from tacit.training.team import Parallel

log = logging.getLogger("tacit")
_EXAMPLES = 32


def data_facts(dataset: Any, users: Sequence[int] | Integers | None) -> str:
    """Describe evenly spaced examples and the users, or the records that take part, so that another order shows.

    In another order one person would be record 3 here and record 7 there, and be counted twice. Examples that are not
    the same when they are read twice (random augmentation) cannot be compared.
    """
    places = sorted({len(dataset) * i // _EXAMPLES for i in range(_EXAMPLES)})
    digests = []
    for place in places:
        one, two = (_digest(dataset[place]) for _ in range(2))
        digests.append(one if one == two else "varies")
    if "varies" in digests:
        log.warning("examples vary from reading to reading; that all processes have the same ones is not checked.")
    people = "" if users is None else hashlib.sha256(np.asarray(users, dtype=np.int64).tobytes()).hexdigest()
    return f"{len(dataset)} {digests} {people}"


def model_facts(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Describe parameters and buffers (names, shapes, dtypes), which of them train, and the optimizer."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shapes = [(name, tuple(each.shape), str(each.dtype), each.requires_grad, is_shard(each)) for name, each in tensors]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return f"{shapes} {type(optimizer).__name__} {groups}"


def plan_facts(run: OpenRun, *, parallel: Parallel | None, secure: bool) -> str:
    """Describe the queries, the number of steps, the noise and the budget."""
    first, settings, header = run.next_step(), run.settings, run.ledger.header
    asked = [
        (query.group, query.clip_norm, f"{query.noise_std:.6g}", query.noise, query.lattice)
        for query in first.queries
        if isinstance(query, GaussianSum)
    ]
    sampling = type(first.sampling).__name__, getattr(first.sampling, "rate", None)
    who = None if parallel is None else parallel.noise
    return (
        f"{settings.steps} {settings.microbatch_size} {sampling} {asked} {run.contributions} {run.sampler.records} "
        f"{header.unit} {header.adjacency} {run.budget} {run.accountant} {who} {secure} {run.clipping().groups}"
    )


def state_facts(run: OpenRun) -> str:
    """Where the run is: the next step's number, its lot and clipping, and every parameter and buffer to the bit.

    Of a shard there is one only, in one process: no other process can differ from it.
    """
    tensors = [each for each in (*run.model.parameters(), *run.model.buffers()) if not is_shard(each)]
    sums = [int(bit_sum(each)) for each in tensors]
    return f"{run.step} {run.settings.lot_size(run.step)} {run.clipping().groups} {sums}"


def _digest(example: Any) -> str:
    """A hash of the values of one example."""
    found = hashlib.sha256()
    for part in _parts(example):
        if isinstance(part, Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()


def _parts(example: Any) -> list[Any]:
    if isinstance(example, Mapping):
        return [part for key in sorted(example, key=str) for part in (key, *_parts(example[key]))]
    if isinstance(example, list | tuple):
        return [part for each in example for part in _parts(each)]
    return [example]
