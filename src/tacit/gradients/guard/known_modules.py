"""Modules that are known to mix examples or to keep statistics of them."""

from __future__ import annotations

import torch
from torch import nn


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
        if isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)):
            if module.track_running_stats and module.training:
                problems.append(
                    f"{where} keeps running statistics of the examples, un-noised: set track_running_stats=False"
                )
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)):
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
