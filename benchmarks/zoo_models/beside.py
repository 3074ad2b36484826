"""Measure what stands beside Tacit's own result: Opacus on the same batch, and the time of a step."""

from __future__ import annotations

import copy
import statistics
import time

import torch
from torch import Tensor

from zoo_models.cases import Entry
from zoo_models.measure import (
    TOLERANCE,
    Clip,
    Result,
    batches,
    built,
    distance,
    first_sentence,
    flat,
    oracle,
    trainable,
)

TIMED_BATCH, REPEATS = 32, 3


def with_opacus(entry: Entry) -> Result:
    """Take the same quantities from Opacus' hooks on the first batch."""
    from opacus.grad_sample import GradSampleModule
    from opacus.validators import ModuleValidator

    case = built(entry)
    size, batch = batches(case)[0]
    reference = copy.deepcopy(case.model) if entry.honest else None
    refusals = ModuleValidator.validate(case.model, strict=False)
    if refusals:
        return {"outcome": "refused", "reason": first_sentence(refusals[0])}
    try:
        first = case.options.get("batch_dim", 0) == 0
        wrapped = GradSampleModule(case.model, batch_first=first, loss_reduction=case.reduction)
        case.loss(wrapped, batch).backward()
        each: dict[str, Tensor] = {}
        for name, parameter in trainable(case.model).items():
            sample = parameter.grad_sample
            if isinstance(sample, list):
                sample = torch.stack(sample).sum(0)
            if sample is None:
                raise RuntimeError(f"{name} has no per-example gradient")
            if sample.shape != (size, *parameter.shape):
                raise RuntimeError(
                    f"the per-example gradient of {name} has shape {tuple(sample.shape)}, not [{size}, …]"
                )
            each[name] = sample
    except Exception as error:
        return {"outcome": "crash", "reason": f"{type(error).__name__}: {first_sentence(error)}"}
    if reference is None:
        return {"outcome": "accepted", "reason": "a model that mixes examples was not refused"}
    wanted = oracle(case, reference, size, batch)
    norms = torch.stack([flat({n: g[i] for n, g in each.items()}).double().norm() for i in range(size)])
    weights = wanted.clip.weights(norms)
    total = {n: (g.flatten(1).double().T @ weights).reshape(g.shape[1:]) for n, g in each.items()}
    off = (norms - wanted.norms).abs() / wanted.norms.clamp_min(1e-6 * wanted.norms.max())
    worst = max(float(off.max()), distance(total, wanted.total))
    if not worst <= TOLERANCE:
        return {"outcome": "wrong", "reason": f"off by {worst:.1e}", "error": worst}
    return {"outcome": "exact", "error": worst}


def timed(entry: Entry) -> Result:
    """Compare the CPU time of a private and an ordinary forward and backward pass on a batch of 32 examples."""
    from tacit import gradients

    generator = torch.Generator().manual_seed(7)
    plain, private = built(entry), built(entry)
    batch = plain.batch(TIMED_BATCH, generator)
    engine = gradients.attach(private.model, **private.options)
    clip = Clip(1.0)
    spent: dict[str, list[float]] = {"plain": [], "private": []}
    for turn in range(REPEATS + 2):
        start = time.process_time()
        plain.loss(plain.model, batch).backward()
        plain.model.zero_grad()
        middle = time.process_time()
        private.loss(private.model, engine.trace(batch, TIMED_BATCH)).backward()
        engine.clipped_sum(clip)
        end = time.process_time()
        if turn > 1:
            spent["plain"].append(middle - start)
            spent["private"].append(end - middle)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    return {"outcome": "ok", "ratio": medians["private"] / medians["plain"], "seconds": medians}
