"""From a tensor to the one parameter that it is an embedding of constants or a rearrangement of.

Position embeddings, token types of constants, relative biases, `1 + weight`: the graph between the parameter and the
tensor is a few linear operations. Their transposes are written here for all examples at once. PyTorch's own pass
through the same graph (`parameter_uses.Derived`) is as exact, and a hundred times as slow for small models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution, Dense
from tacit.gradients.factors.sparse import Diagonal, looked_up
from tacit.gradients.torch_internals import saved


def pulled_back(source: Tensor, contribution: Contribution) -> tuple[Tensor, Contribution] | None:
    """Return the leaf behind `source` and its gradients; None where other operations lead there, or several leaves."""
    grads = contribution
    node: Any = source.grad_fn
    while node is not None:
        before = [pair for pair in node.next_functions if pair[0] is not None]
        if len(before) != 1:
            return None
        following = before[0][0]
        leaf = getattr(following, "variable", None)
        if leaf is not None and leaf.dtype != source.dtype:
            return None
        kind = type(node).__name__
        if kind in ("EmbeddingBackward0", "IndexBackward0"):
            found = None if leaf is None else _looked_up(node, grads, leaf, kind == "IndexBackward0")
        else:
            step = _STEPS.get(kind)
            moved = None if step is None or type(grads) is not Dense else step(node, grads.grads)
            found = None if moved is None else Dense(moved)
        if found is None:
            return None
        if leaf is not None:
            return (leaf, found) if found.shape == leaf.shape else None
        grads, node = found, following
    return None


def _looked_up(node: Any, contribution: Contribution, table: Tensor, by_index: bool) -> Contribution | None:
    """Return the gradients of a table of which constant rows were looked up, as `table[index]` or by an embedding."""
    index, batch = saved(node, "indices"), contribution.batch
    if by_index:
        if len(index) != 1 or index[0].dtype is not torch.long or table.ndim != 2:
            return None
        index = index[0].remainder(table.shape[0])  # rows are counted from the last one too
    elif saved(node, "scale_grad_by_freq"):
        return None
    if contribution.shape != (*index.shape, table.shape[-1]):
        return None
    if type(contribution) is Dense:
        which = index.reshape(1, -1).expand(batch, -1).reshape(-1)
        owner = torch.arange(batch, device=index.device).unsqueeze(1).expand(batch, index.numel()).reshape(-1)
    elif type(contribution) is Diagonal and contribution.dim < index.ndim:
        which = index.reshape(-1)
        slots = [1] * index.ndim
        slots[contribution.dim] = -1
        owner = contribution.owner.view(slots).expand(index.shape).reshape(-1)
    else:
        return None
    grads = contribution.grads.reshape(-1, table.shape[-1])
    padding = -1 if by_index else saved(node, "padding_idx")
    if 0 <= padding < table.shape[0]:
        kept = (which != padding).nonzero().flatten()
        which, owner, grads = which[kept], owner[kept], grads[kept]
    return looked_up(which.long(), owner, grads, table.shape, batch).settle()


def _added(node: Any, grads: Tensor) -> Tensor | None:
    """Return the gradient of a sum's one trainable term, of the sum's own shape."""
    first = node.next_functions[0][0] is not None
    return grads if first or saved(node, "alpha") == 1 else None


def _unsqueezed(node: Any, grads: Tensor) -> Tensor | None:
    dim = _signed(saved(node, "dim")) % (grads.ndim - 1) + 1
    return grads.squeeze(dim) if grads.shape[dim] == 1 else None


def _permuted(node: Any, grads: Tensor) -> Tensor | None:
    rank = grads.ndim - 1
    if len(saved(node, "dims")) != rank:
        return None  # a sum or a choice has broadcast it
    dims = [_signed(d) % rank for d in saved(node, "dims")]
    return grads.permute(0, *(1 + dims.index(d) for d in range(rank)))


def _viewed(node: Any, grads: Tensor) -> Tensor | None:
    sizes = saved(node, "self_sym_sizes")
    return grads.reshape(len(grads), *sizes) if math.prod(sizes) == grads[:1].numel() else None


def _chosen(node: Any, grads: Tensor) -> Tensor:
    """Return the gradient of the one trainable choice of `torch.where`, of the output's own shape."""
    condition = saved(node, "condition")
    return grads.masked_fill(~condition if node.next_functions[0][0] is not None else condition, 0)


def _signed(value: int) -> int:
    """Return a negative number that PyTorch shows as an unsigned one of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


_STEPS: dict[str, Callable[[Any, Tensor], Tensor | None]] = {
    "AddBackward0": _added,
    "CloneBackward0": lambda node, grads: grads,
    "UnsqueezeBackward0": _unsqueezed,
    "PermuteBackward0": _permuted,
    "ViewBackward0": _viewed,
    "WhereBackward0": _chosen,
}
"""The gradients that a node sends back, for all examples at once."""
