"""Problems that are visible before the first step."""

from __future__ import annotations

from torch import nn


def check_modules(model: nn.Module) -> None:
    """Refuse modules that are known to mix examples, all of them at once, each with its remedy."""
    problems = []
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(
            module, nn.modules.instancenorm._InstanceNorm
        ):
            if module.training or not module.track_running_stats:
                problems.append(
                    f"{where} normalises with statistics of the whole batch: replace it by nn.GroupNorm, "
                    "or call .eval() on it to use fixed statistics"
                )
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm):
            if module.track_running_stats and module.training:
                problems.append(
                    f"{where} keeps running statistics of the examples, un-noised: set track_running_stats=False"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.max_norm is not None:
                problems.append(f"{where} has max_norm, which changes weights by what was looked up: leave it out")
            if module.scale_grad_by_freq and module.weight.requires_grad:
                problems.append(f"{where} has scale_grad_by_freq, which counts over the batch: set it to False")
    if problems:
        listed = "\n".join(f"  - {p}" for p in problems)
        raise ValueError(f"this model has no per-example gradients:\n{listed}")
