"""Finding out, by trial, how an unknown operation treats the examples of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.generic import run_on_example
from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed, Tag, select_examples
from tacit.gradients.nested import mapped, tensors


def probed(call: Call) -> Any:
    """One tag for every tensor in the output, or None where it is the same for every example."""
    refused = Mixed(
        f"`{call.name}` is not known to the engine and does not treat examples independently (or is random); "
        "use an operation that works on each example by itself"
    )
    tags = {id(t): tag for t, tag in call.layouts()}
    many = isinstance(call.out, (tuple, list))
    outs = list(call.out) if many else [call.out]
    if call.batch == 1:
        layout = next(iter(tags.values()))
        alone: list[Tag | None] = [_of_one(o, layout) if isinstance(o, Tensor) else None for o in outs]
        return alone if many else alone[0]
    found = _tried(call, outs, many, tags)
    if found is None or _UNEXPLAINED in found:
        # Perhaps a constant has a row for each example (where to sample each image): then each is given its own.
        rows = {id(t): tag for t in tensors((call.args, call.kwargs)) for tag in [_rows(t, call, tags)] if tag}
        again = _tried(call, outs, many, {**rows, **tags}) if rows else None
        found = again if again is not None else found
    if found is None:
        return refused
    found = [refused if tag is _UNEXPLAINED else tag for tag in found]
    return found if many else found[0]


_UNEXPLAINED = Mixed("unexplained")


def _rows(t: Tensor, call: Call, tags: dict[int, Layout]) -> Layout | None:
    """The layout of a constant that is as long as the batch where the batch is."""
    first, layout = call.first()
    regular = layout.owner is None and id(t) not in tags and t.ndim > layout.dim
    return layout if regular and t.shape[layout.dim] == first.shape[layout.dim] else None


def _tried(call: Call, outs: list[Any], many: bool, tags: dict[int, Layout]) -> list[Tag | None] | None:
    try:
        singles = [run_on_example(call, tags, b) for b in (0, call.batch - 1)]
        with torch.no_grad():  # those between, all at once: if the examples move on by one, so must what they give
            args, kwargs = mapped((call.args, call.kwargs), lambda t: _moved(t, tags, call.batch))
            turned = call.func(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    found: list[Tag | None] = []
    for i, out in enumerate(outs):
        if not isinstance(out, Tensor):
            found.append(None)
            continue
        bare = out.as_subclass(Tensor).detach()
        layout = _explain(bare, [s[i] if many else s for s in singles], call.batch, tags)
        moved = turned[i] if many else turned
        fits = layout is not None and _close(_turned(bare, layout, call.batch), moved)
        found.append(layout if fits else _UNEXPLAINED)
    return found


def _turned(t: Tensor, layout: Layout, batch: int) -> Tensor:
    """With every example in the place of the one after it."""
    if layout.owner is not None:
        return t
    places = torch.arange(t.shape[layout.dim], device=t.device).view(-1, batch, layout.inner).roll(1, 1)
    return t.index_select(layout.dim, places.flatten())


def _moved(t: Tensor, tags: dict[int, Layout], batch: int) -> Tensor:
    bare = t.as_subclass(Tensor).detach()
    return _turned(bare, tags[id(t)], batch) if id(t) in tags else bare


def _of_one(out: Tensor, layout: Layout) -> Layout:
    return Layout(min(layout.dim, max(out.ndim - 1, 0)), 1)


def _explain(out: Tensor, singles: list[Tensor], batch: int, tags: dict[int, Layout]) -> Layout | None:
    if any(s.ndim != out.ndim for s in singles):
        return None
    differing = [d for d in range(out.ndim) if out.shape[d] != singles[0].shape[d]]
    if len(differing) != 1 or out.shape[differing[0]] != batch * singles[0].shape[differing[0]]:
        return None
    dim, each = differing[0], singles[0].shape[differing[0]]
    for inner in dict.fromkeys([each, 1, *(t.inner for t in tags.values())]):
        layout = Layout(dim, inner)
        if each % inner:
            continue
        parts = [select_examples(out, layout, batch, b, b + 1) for b in (0, batch - 1)]
        if all(_close(p, s) for p, s in zip(parts, singles)):
            return layout
    return None


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    tolerance = 1e-2 if a.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return torch.allclose(
        a,
        b,
        rtol=tolerance,
        atol=tolerance * float(b.abs().nan_to_num(0, 0, 0).max() if b.numel() else 0),
        equal_nan=True,
    )
