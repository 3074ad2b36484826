"""Examples picked out of the batch one at a time (to be augmented, say), and put back beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import Call, pairs, tidy
from tacit.gradients.layout import Layout, Mixed, Only, Tag


def whole(layout: Layout) -> bool:
    """Return whether a place is one example's, whatever the others are."""
    return layout.inner == 1 and layout.owner is None and not layout.by_data


def picked(x: Tensor, layout: Layout, key: Any, batch: int) -> Only | None:
    """The example of `x[key]` where the key begins with one example, as i or i : i + 1, and goes on with cuts."""
    parts = key if isinstance(key, tuple) else (key,)
    rows = layout.dim == 0 and whole(layout) and x.shape[0] == batch
    cuts = all(isinstance(p, slice) or p is None or p is Ellipsis or type(p) is int for p in parts)
    if not rows or not parts or not cuts:
        return None
    if type(parts[0]) is int:
        return Only(parts[0] % batch)
    row = range(batch)[parts[0]] if isinstance(parts[0], slice) else ()
    return Only(row[0]) if len(row) == 1 and batch > 1 else None


def of_singles(call: Call, singles: Sequence[Only]) -> Tag:
    """Return what an operation makes of tensors that each belong to one example."""
    if len(singles) == len(call.tagged):
        same = len({single.example for single in singles}) == 1
        if call.name in ("stack", "cat") and (not same or call.batch == 1):
            joined = _joined(call, singles)
            if joined is not None:
                return joined
        elif same:
            return singles[0]
    elif call.name == "setitem" and len(singles) == 1 and isinstance(call.args[2], Tensor):
        target = next((tag for t, tag in call.tagged if t is call.args[0]), None)
        if isinstance(target, Layout) and picked(call.args[0], target, call.args[1], call.batch) == singles[0]:
            return target
    if call.name == "add":
        return Mixed("losses of single examples are added up one by one; put them together: torch.stack(losses).mean()")
    return pairs(call)


def _joined(call: Call, singles: Sequence[Only]) -> Layout | None:
    parts = call.args[0] if call.args else call.kwargs["tensors"]
    if len(parts) != len(singles):
        return None
    dim = call.dim(1, call.out.ndim)
    each = [1 if call.name == "stack" else part.shape[dim] for part in parts]
    owner = torch.tensor([s.example for s, n in zip(singles, each) for _ in range(n)], device=call.out.device)
    return tidy(Layout(dim, 1, owner), call.batch)
