"""Problems that are visible before the first step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from tacit.gradients.guard.run_in_parts import INFLUENCE, NotCompared, copied, is_influenced, seeded
from tacit.gradients.problems import ValuesRead, refuse


def module_problems(model: nn.Module) -> list[str]:
    """Modules that are known to mix examples or to keep statistics of them, each with its remedy."""
    problems = []
    scripted: set[nn.Module] = set()
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule) and module not in scripted:
            scripted.update(module.modules())  # those within it come with it
            problems.append(
                f"{where} is scripted or traced (torch.jit), which hides its operations: give the module it was made of"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            if module.track_running_stats and module.training:
                problems.append(
                    f"{where} keeps running statistics of the examples, un-noised: set track_running_stats=False"
                )
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training or not module.track_running_stats:
                problems.append(
                    f"{where} normalises with statistics of the whole batch: replace it by nn.GroupNorm or by "
                    "private batch normalisation with tacit.fix(model), or call .eval() on it to use fixed statistics"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.max_norm is not None:
                problems.append(f"{where} has max_norm, which changes weights by what was looked up: leave it out")
            if module.scale_grad_by_freq and module.weight.requires_grad:
                problems.append(f"{where} has scale_grad_by_freq, which counts over the batch: set it to False")
    return problems


def check(model: nn.Module, *args: Any, batch_dim: Any = 0, rows_per_record: int = 1, **kwargs: Any) -> None:
    """Raise a ValueError that lists everything that stands in the way of per-example gradients.

    The modules are looked at, the model is run once on the given batch (eight examples are enough) with every operation
    followed, and parts of the batch are run by themselves (`independence`), which finds mixing that no operation shows.
    The model's attributes and buffers and the random state are left as they were, unless it cannot be copied.
    """
    from tacit.gradients.engine import Engine

    refuse(module_problems(model))
    try:
        twin = copied(model)
    except Exception:  # whatever a model that cannot be copied raises
        twin = model
    with seeded(0):
        engine = Engine(twin, batch_dim=batch_dim, rows_per_record=rows_per_record)
        try:
            inputs, named = engine._inputs.marked(args, kwargs)
            engine._watch((inputs, named))
            try:
                twin.forward(*inputs, **named)
            except ValuesRead as error:
                refuse([str(error)])
                raise
            finally:
                engine._stop_watching()
            engine._recorder.problems.check()
            with suppress(NotCompared):
                refuse([INFLUENCE] if engine.batch_size > 1 and is_influenced(engine._recorder, inputs, named) else [])
        finally:
            engine.detach()
