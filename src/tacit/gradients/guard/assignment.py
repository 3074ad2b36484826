"""Where examples lie after `x[key] = value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.guard.indexing import indexed, is_bounded_by_data, is_natural, is_single_truth, torch_key
from tacit.gradients.layout import Layout, Mixed, Tag, same_everywhere
from tacit.gradients.traced import Traced


def _numbered_rows(x: Tensor, raw: Sequence[Any], keyed: Sequence[Tag], batch: int) -> Layout | None:
    """Where the examples are in a constant of which `x[torch.arange(batch), index]` takes a row for each of them."""
    constants = [(d, p) for d, p in enumerate(raw) if isinstance(p, Tensor) and type(p) is not Traced]
    places = [d for d, p in constants if p.shape == (batch,) and is_natural(p, batch)]
    regular = all(isinstance(tag, Layout) and tag.owner is None and tag.inner == 1 for tag in keyed)
    plain_key = all(isinstance(p, (Tensor, int)) and not is_single_truth(p) for p in raw)
    fits = regular and plain_key and len(places) == 1 and x.shape[places[0]] == batch
    return Layout(places[0]) if fits else None


def _is_for_all(value: Any, dim: int) -> bool:
    """Return whether a constant gives all rows along a dimension, counted from the last, the same."""
    return not isinstance(value, Tensor) or value.ndim < -dim or same_everywhere(value, dim)


def written(x: Tensor, key: Any, value: Any, tags: Mapping[int, Tag], batch: int) -> Tag:
    """The tag of `x` after `x[key] = value`."""
    refused = Mixed("assignment into a tensor puts data of one example in the place of another")
    key = torch_key(key)
    raw = key if isinstance(key, tuple) else (key,)
    if any(is_single_truth(p) or is_bounded_by_data(p) for p in raw):
        return refused
    mine, new = tags.get(id(x)), tags.get(id(value))
    if mine is not None and not isinstance(mine, Layout):
        return mine
    if new is not None and not isinstance(new, Layout):
        return new
    base = x.as_subclass(Tensor)
    bare = tuple(p.as_subclass(Tensor) if isinstance(p, Tensor) else p for p in key) if isinstance(key, tuple) else key
    bare = bare.as_subclass(Tensor) if isinstance(bare, Tensor) else bare
    part = base[bare]
    if new is None:
        keyed = [tags[id(p)] for p in raw if isinstance(p, Tensor) and id(p) in tags]
        if mine is not None and not keyed and not mine.by_data:
            return mine
        at = mine
        if at is None and len(keyed) == 1 and isinstance(key, Tensor) and key.dtype == torch.bool:
            at = keyed[0] if isinstance(keyed[0], Layout) else None
        if at is None and keyed:
            at = _numbered_rows(x, raw, keyed, batch)
        if at is None or (mine is None and at.by_data and not same_everywhere(base, at.dim)):
            return refused
        found = indexed(x, key, part, {**tags, id(x): at}, batch)
        alike = isinstance(found, Layout) and (not found.by_data or _is_for_all(value, found.dim - part.ndim))
        return at if alike else refused
    regular = Layout(0, new.inner)
    candidates = [mine] if mine is not None else [regular.at(d) for d in range(x.ndim)]
    wanted = new.at(part.ndim - value.ndim + new.dim)
    fitting = []
    for layout in candidates:
        size = x.shape[layout.dim]
        if layout.owner is None and size % (batch * layout.inner):
            continue
        found = indexed(x, key, part, {**tags, id(x): layout}, batch)
        if isinstance(found, Layout) and found.dim == wanted.dim and found.same_order(wanted):
            fitting.append(layout)
    return fitting[0] if len(fitting) == 1 else refused
