"""Where examples lie after `x[key]`, and after `x[key] = value`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.gradients.layers.registry import tidy
from tacit.gradients.layout import Layout, Mixed, Tag, owners, same_everywhere
from tacit.gradients.nested import tensors
from tacit.gradients.traced import Traced


def _normalised(key: Any, rank: int) -> list[Any]:
    parts = list(key) if isinstance(key, tuple) else [key]
    used = sum(_consumes(p) for p in parts if p is not Ellipsis)
    filler: list[Any] = [slice(None)] * (rank - used)
    for i, p in enumerate(parts):
        if p is Ellipsis:
            return parts[:i] + filler + parts[i + 1 :]
    return parts + filler


def _consumes(part: Any) -> int:
    if part is None or isinstance(part, bool):
        return 0
    if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.ndim
    return 1


def torch_key(key: Any) -> Any:
    """A key with arrays, lists and tuples as tensors, and numbers as Python's."""
    several = (list, tuple, range, slice, Tensor, np.ndarray)
    if isinstance(key, list) and any(p is None or p is Ellipsis or isinstance(p, several) for p in key):
        key = tuple(key)  # as PyTorch reads it
    if isinstance(key, tuple):
        return tuple(_torch_part(p) for p in key)
    return _torch_part(key)


def _torch_part(part: Any) -> Any:
    if isinstance(part, (list, tuple, range, np.ndarray)) and not tensors(part):
        return torch.as_tensor(np.asarray(part))
    return part.item() if isinstance(part, np.generic) else part


def is_single_truth(part: Any) -> bool:
    return isinstance(part, bool) or (
        isinstance(part, Tensor) and not part.ndim and part.dtype in (torch.bool, torch.uint8)
    )


def indexed(x: Tensor, key: Any, out: Tensor, tags: Mapping[int, Tag], batch: int) -> Tag | None:
    """The tag of `x[key]`."""
    key = torch_key(key)
    raw = list(key) if isinstance(key, tuple) else [key]
    if any(map(is_single_truth, raw)):
        return Mixed("an index of True or False adds a dimension; use None, or an index within each example")
    index_tags = [tags[id(p)] for p in raw if isinstance(p, Tensor) and id(p) in tags]
    mine = tags.get(id(x)) or _beside_examples(raw, x, tags)
    if mine is not None and not isinstance(mine, Layout):
        return Mixed(mine.reason) if isinstance(mine, Mixed) else mine
    combined = _combined(raw, x, mine, tags)
    if combined is not None:
        return combined
    parts = _normalised(key, x.ndim)
    advanced = [i for i, p in enumerate(parts) if isinstance(p, Tensor) and not (p.ndim == 0 and p.dtype != torch.bool)]
    refused = Mixed(
        "indexing picks examples out of the batch or sets them against each other; "
        "index only within each example (other dimensions); an argument of the model that has no examples (times, "
        "positions) is declared: batch_dim={'argument': None}"
    )
    if not advanced:
        return _basic(parts, mine, x, refused) if mine is not None else refused
    in_dim = [sum(_consumes(p) for p in parts[:i]) for i in range(len(parts))]
    chosen: list[Tensor] = [parts[i].as_subclass(Tensor) for i in advanced]
    adjacent = advanced[-1] - advanced[0] == len(advanced) - 1
    lead = _out_rank(parts[: advanced[0]]) if adjacent else 0
    masks = [t.dtype in (torch.bool, torch.uint8) for t in chosen]
    shape = (
        torch.broadcast_shapes(*(torch.Size([0]) if m else t.shape for t, m in zip(chosen, masks)))  # type: ignore[no-untyped-call]
        if not any(masks)
        else None
    )
    width = 1 if shape is None else len(shape)
    if mine is not None:
        for i, t, is_mask in zip(advanced, chosen, masks):
            if in_dim[i] <= mine.dim < in_dim[i] + _consumes(parts[i]):
                ids = owners(mine, batch, x.shape[mine.dim], x.device).to(x.device)
                if is_mask:
                    if len(advanced) > 1:
                        return refused
                    at = mine.dim - in_dim[i]
                    own = tags.get(id(parts[i]))
                    if isinstance(own, Layout) and not (own.dim == at and own.same_order(mine)):
                        return refused
                    if own is None and mine.by_data and not same_everywhere(t, at):
                        return PLACES
                    spread = ids.view(-1, *(1,) * (t.ndim - at - 1)).expand(t.shape)
                    return tidy(Layout(lead, 1, spread[t], own is not None or mine.by_data), batch)
                varying = [d for d in range(t.ndim) if t.shape[d] > 1]
                if len(varying) > 1 or shape is None:
                    return refused
                d = varying[0] if varying else max(t.ndim - 1, 0)
                position = width - t.ndim + d
                owner = ids[t.flatten()]
                if owner.numel() != shape[position]:
                    owner = owner.expand(shape[position])
                picks = id(parts[i]) in tags
                if mine.by_data and not picks and not _is_permutation(t.flatten(), x.shape[mine.dim]):
                    return PLACES
                found = _put_in_order(mine, tags.get(id(parts[i])), owner, batch, lead + position)
                others = [p for j, p in zip(advanced, chosen) if j != i and id(parts[j]) not in tags]
                if found.by_data and not alike_along(others, position - width):
                    return PLACES
                return found if all(_agrees(tag, found, lead, width, raw, tags) for tag in index_tags) else refused
        if any(isinstance(tag, Layout) for tag in index_tags):
            return refused
        if index_tags:
            return index_tags[0]
        before = _out_rank([p for p in parts[: _part_of(parts, mine.dim)] if not isinstance(p, Tensor) or p.ndim == 0])
        crossed = not adjacent or _part_of(parts, mine.dim) > advanced[0]
        part = parts[_part_of(parts, mine.dim)]
        if not _full(part, x.shape[mine.dim]):
            return refused
        return mine.at(before + (width if crossed else 0))
    found_tag: Tag | None = None
    for part in raw:
        tag = tags.get(id(part)) if isinstance(part, Tensor) else None
        if tag is None:
            continue
        if not isinstance(tag, Layout):
            return tag
        is_mask = part.dtype in (torch.bool, torch.uint8)
        if is_mask or (found_tag is not None and found_tag != tag.at(lead + width - part.ndim + tag.dim)):
            return refused
        found_tag = tag.at(lead + width - part.ndim + tag.dim)
    if isinstance(found_tag, Layout) and found_tag.by_data:
        constants = [p.as_subclass(Tensor) for p in raw if isinstance(p, Tensor) and id(p) not in tags]
        if not alike_along(constants, found_tag.dim - lead - width):
            return PLACES
    return found_tag


def _put_in_order(mine: Layout, index: Tag | None, owner: Tensor, batch: int, dim: int) -> Layout:
    """Where examples are whose rows an index has moved: where they were before, if it undoes what was done last."""
    if not isinstance(index, Mixed):
        return tidy(Layout(dim, 1, owner, index is not None or mine.by_data), batch)
    if mine.before is not None and _undoes(index, mine.before[0]):
        found = mine.before[1].at(dim)
        if torch.equal(owner, owners(found, batch, owner.numel(), owner.device)):
            return found
    return Layout(dim, 1, owner, True, before=(index, mine))


def _undoes(index: Mixed, order: Mixed) -> bool:
    return index.inverts is order or order.inverts is index


PLACES = Mixed(
    "indexing picks examples by their places, or gives them constants by their places, where data of the batch has "
    "picked the rows or put them in order; index before that, or with indices that are part of the batch"
)


def alike_along(constants: list[Tensor], dim: int) -> bool:
    """Return whether constants are the same along a dimension, counted from the last, if they have it."""
    return all(t.ndim < -dim or same_everywhere(t, dim) for t in constants)


def _beside_examples(raw: list[Any], x: Tensor, tags: Mapping[int, Tag]) -> Layout | None:
    """Return where the examples are beside a constant that is put in their order, or cut by their mask, with them."""
    for i, p in enumerate(raw):
        tag = tags.get(id(p)) if isinstance(p, Tensor) else None
        order = tag.order if isinstance(tag, Mixed) else tag
        if not isinstance(order, Layout) or order.by_data or not all(isinstance(r, slice) for r in raw[:i]):
            continue
        mine = order.at(i + order.dim)
        if p.dtype == torch.bool or (isinstance(tag, Mixed) and _reorders(raw, p.as_subclass(Tensor), x, mine)):
            return mine
    return None


def _combined(raw: list[Any], x: Tensor, mine: Layout | None, tags: Mapping[int, Tag]) -> Mixed | None:
    """An index or mask that several examples decided makes the result depend on all of them.

    One use is harmless: putting all the rows in another order, each once, because every row keeps its owner.
    """
    for p in raw:
        if is_bounded_by_data(p):
            return Mixed("the bounds of a slice are data of the batch; use a mask within each example, or constants")
        tag = tags.get(id(p)) if isinstance(p, Tensor) else None
        if tag is None or isinstance(tag, Layout):
            continue
        if isinstance(tag, Mixed) and mine is not None and _reorders(raw, p.as_subclass(Tensor), x, mine):
            continue
        return Mixed(
            tag.reason
            if isinstance(tag, Mixed)
            else "an index was computed from a quantity of the whole batch (a sum, mean or count over examples)"
        )
    return None


def is_bounded_by_data(part: Any) -> bool:
    """Return whether a slice, or a list of numbers, has data of the batch in it."""
    inside = (part.start, part.stop, part.step) if isinstance(part, slice) else part
    return isinstance(inside, (tuple, list)) and any(type(t) is Traced for t in tensors(inside))


def _reorders(raw: list[Any], index: Tensor, x: Tensor, mine: Layout) -> bool:
    if len([p for p in raw if isinstance(p, Tensor)]) != 1 or any(p is None or p is Ellipsis for p in raw):
        return False
    size = x.shape[mine.dim]
    if index.dtype in (torch.bool, torch.uint8) or index.shape != (size,) or not isinstance(raw[-1], Tensor):
        return False
    return len(raw) - 1 == mine.dim and _is_permutation(index, size)


def _is_permutation(index: Tensor, size: int) -> bool:
    return index.numel() == size and is_natural(index.sort().values, size)


def is_natural(owner: Tensor, batch: int) -> bool:
    """Return whether the examples are in their own order, all with the same number of rows."""
    each = owner.numel() // batch
    return torch.equal(owner, torch.arange(batch, device=owner.device).repeat_interleave(each))


def _agrees(tag: Tag, found: Layout, lead: int, width: int, raw: list[Any], tags: Mapping[int, Tag]) -> bool:
    if not isinstance(tag, Layout):
        return True  # a mere change of order, see `_combined`
    part = next(p for p in raw if isinstance(p, Tensor) and tags.get(id(p)) is tag)
    return lead + width - part.ndim + tag.dim == found.dim and tag.same_order(found)


def _part_of(parts: list[Any], dim: int) -> int:
    seen = 0
    for i, p in enumerate(parts):
        seen += _consumes(p)
        if seen > dim:
            return i
    raise IndexError(dim)


def _out_rank(parts: list[Any]) -> int:
    return sum(1 for p in parts if p is None or isinstance(p, slice))


def _full(part: Any, size: int) -> bool:
    return isinstance(part, slice) and part.indices(size) == (0, size, 1)


def _basic(parts: list[Any], mine: Layout, x: Tensor, refused: Mixed) -> Tag:
    i = _part_of(parts, mine.dim)
    if not _full(parts[i], x.shape[mine.dim]):
        return refused
    return mine.at(_out_rank(parts[:i]))
