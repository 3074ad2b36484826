"""Parts of `transformers` models that look at values, computed without doing so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F


def expanded_mask(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of four ranges of positions that calls `function` once, on ranges that broadcast.

    `transformers` does so for masks of its own, and uses `torch.vmap` for those that a model adds. Both give the same
    for a function of single positions, as `torch.vmap` requires it to be.
    """

    def expanded(batch: Tensor, heads: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        mask = function(
            batch[:, None, None, None], heads[:, None, None], queries[:, None], keys
        )  # [batch, heads, queries, keys], or fewer where it is the same
        return mask.expand(len(batch), len(heads), len(queries), len(keys))

    return expanded


def classification_forward(
    original: Callable[..., Any], model: Any, *args: Any, labels: Any = None, **kwargs: Any
) -> Any:
    """Return the outputs of DeBERTa's classifier; labels below zero are left out of its loss without looking for them.

    The original gathers the rows whose label counts, and so asks how many there are.
    """
    classes = model.num_labels
    plain = labels is not None and model.config.problem_type is None and classes > 1
    if not plain or not (labels.dim() == 1 or labels.size(-1) == 1):
        return original(model, *args, labels=labels, **kwargs)
    outputs = original(model, *args, **kwargs)
    if isinstance(outputs, tuple):
        return original(model, *args, labels=labels, **kwargs)
    wanted = labels.long().view(-1)
    outputs.loss = F.cross_entropy(outputs.logits.view(-1, classes).float(), wanted.masked_fill(wanted < 0, -100))
    return outputs
