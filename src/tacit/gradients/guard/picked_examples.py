"""Examples picked out of the batch one at a time (to be augmented, say), and put back beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import Call, pairs, tidy
from tacit.gradients.layout import Layout, Mixed, Only, Tag, Total


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
    return pairs(call)


_UNFINISHED = (
    "losses of single examples are added up, but not those of all examples of the batch, each in its turn; add every "
    "example's loss, or put them together: torch.stack(losses).mean()"
)


def added(call: Call) -> Tag | None:
    """Return the tag of a sum that a loop adds up, one example's loss after the other; None if this is no such sum.

    It is a sum over examples once every example of the batch is in it. Until then nothing else may be done with it:
    a loop that leaves examples out would let an example's place in the batch decide whether it counts.
    """
    if call.name not in ("add", "sub") or call.batch == 1 or call.out.numel() != 1:
        return None
    tags = [tag for _, tag in call.tagged]
    singles = {tag.example for tag in tags if isinstance(tag, Only)}
    begun = [tag for tag in tags if not isinstance(tag, Only)]
    if not singles or len(singles) + len(begun) != 2 or len(tags) != 2:
        return None
    if begun and isinstance(begun[0], Total):
        return begun[0] if begun[0].last in singles else None
    if begun and not (isinstance(begun[0], Mixed) and begun[0].added):
        return None
    found = frozenset(singles).union(*(tag.added for tag in begun if isinstance(tag, Mixed)))
    if len(found) < call.batch:
        return Mixed(_UNFINISHED, added=found)
    return Total("sum", last=next(tag.example for tag in reversed(tags) if isinstance(tag, Only)))


def _joined(call: Call, singles: Sequence[Only]) -> Layout | None:
    parts = call.args[0] if call.args else call.kwargs["tensors"]
    if len(parts) != len(singles):
        return None
    dim = call.dim(1, call.out.ndim)
    each = [1 if call.name == "stack" else part.shape[dim] for part in parts]
    owner = torch.tensor([s.example for s, n in zip(singles, each) for _ in range(n)], device=call.out.device)
    return tidy(Layout(dim, 1, owner), call.batch)
