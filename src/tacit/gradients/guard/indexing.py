"""Where examples lie after `x[key]`, and after `x[key] = value`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.gradients.layers.registry import in_order, tidy
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
    mine = tags.get(id(x))
    if mine is not None and not isinstance(mine, Layout):
        return Mixed(mine.reason) if isinstance(mine, Mixed) else mine
    combined = _combined(raw, x, mine, tags)
    if combined is not None:
        return combined
    parts = _normalised(key, x.ndim)
    advanced = [i for i, p in enumerate(parts) if isinstance(p, Tensor) and not (p.ndim == 0 and p.dtype != torch.bool)]
    if not advanced:
        return _basic(parts, mine, x)
    chosen: list[Tensor] = [parts[i].as_subclass(Tensor) for i in advanced]
    adjacent = advanced[-1] - advanced[0] == len(advanced) - 1
    lead = _out_rank(parts[: advanced[0]]) if adjacent else 0
    shape = None if any(map(_is_mask, chosen)) else torch.broadcast_shapes(*(t.shape for t in chosen))  # type: ignore[no-untyped-call]
    width = 1 if shape is None else len(shape)
    if mine is None:
        return _looked_up(raw, tags, lead + width)
    at = _part_of(parts, mine.dim)
    if at in advanced:
        part, own = chosen[advanced.index(at)], tags.get(id(parts[at]))
        first = sum(map(_consumes, parts[:at]))
        ids = owners(mine, batch, x.shape[mine.dim], x.device).to(x.device)
        if _is_mask(part):
            return _masked(mine, part, own, ids, mine.dim - first, lead, batch) if len(advanced) == 1 else _REFUSED
        return _picked(raw, x, mine, part, own, ids, lead, shape, tags, batch)
    layouts = [tags[id(p)] for p in raw if isinstance(p, Tensor) and id(p) in tags]
    if layouts or not _full(parts[at], x.shape[mine.dim]):
        return _REFUSED
    before = _out_rank([p for p in parts[:at] if not isinstance(p, Tensor) or p.ndim == 0])
    return mine.at(before + (width if not adjacent or at > advanced[0] else 0))


_REFUSED = Mixed(
    "indexing picks examples out of the batch or sets them against each other; "
    "index only within each example (other dimensions); an argument of the model that has no examples (times, "
    "positions) is declared: batch_dim={'argument': None}"
)


def _is_mask(part: Tensor) -> bool:
    return part.dtype in (torch.bool, torch.uint8)


def _masked(mine: Layout, mask: Tensor, own: Tag | None, ids: Tensor, at: int, lead: int, batch: int) -> Tag:
    """Return where rows are that a mask of examples has picked; `at` is the dimension of examples in the mask."""
    if isinstance(own, Layout) and not (own.dim == at and own.same_order(mine)):
        return _REFUSED
    if own is None and mine.by_data and not same_everywhere(mask, at):
        return _REFUSED
    picked = ids.view(-1, *(1,) * (mask.ndim - at - 1)).expand(mask.shape)[mask]
    if own is None and mine.by_data is None:
        return tidy(Layout(lead, 1, picked), batch)
    return Layout(lead, 1, picked, "count" if own is not None else mine.by_data)


def _picked(
    raw: list[Any],
    x: Tensor,
    mine: Layout,
    index: Tensor,
    own: Tag | None,
    ids: Tensor,
    lead: int,
    shape: torch.Size | None,
    tags: Mapping[int, Tag],
    batch: int,
) -> Tag:
    """Return where rows are that an index of examples has picked or put in order."""
    varying = [d for d in range(index.ndim) if index.shape[d] > 1]
    if shape is not None and mine.by_data is None and (isinstance(own, Layout) or len(varying) > 1):
        found = _own_rows(raw, ids[index].expand(shape), tags, batch)
        if found is not None:
            return found.at(lead + found.dim)
    if len(varying) > 1 or shape is None:
        return _REFUSED
    position = len(shape) - index.ndim + (varying[0] if varying else max(index.ndim - 1, 0))
    owner = ids[index.flatten()]
    if owner.numel() != shape[position]:
        owner = owner.expand(shape[position])
    if mine.by_data and own is None and not _is_permutation(index.flatten(), x.shape[mine.dim]):
        return _REFUSED  # the first few, say: which these are the others decided
    if isinstance(own, Layout) or mine.by_data == "count":
        found = Layout(lead + position, 1, owner, own.by_data or "order" if isinstance(own, Layout) else "count")
    elif own is not None or mine.by_data:
        found = in_order(lead + position, owner, batch)
    else:
        found = tidy(Layout(lead + position, 1, owner), batch)
    for p in raw:
        tag = tags.get(id(p)) if isinstance(p, Tensor) else None
        if isinstance(tag, Layout):
            here = tag.at(lead + len(shape) - p.ndim + tag.dim)
            if here.dim != found.dim or not torch.equal(owners(here, batch, owner.numel(), owner.device), owner):
                return _REFUSED
    return found


def _own_rows(raw: list[Any], picked: Tensor, tags: Mapping[int, Tag], batch: int) -> Layout | None:
    """Return the indices' own layout where each picks rows of its own example alone (its nearest points, say).

    `picked` are the examples of the rows that were picked. What is where is then for the indices to say, each example's
    for itself, and not for the order of the rows.
    """
    found: Layout | None = None
    for p in raw:
        tag = tags.get(id(p)) if isinstance(p, Tensor) else None
        if tag is None:
            continue
        if not isinstance(tag, Layout) or tag.owner is not None or tag.by_data:
            return None
        here = tag.at(picked.ndim - p.ndim + tag.dim)
        if found is not None and found != here:
            return None
        found = here
    if found is None:
        return None
    rows = owners(found, batch, picked.shape[found.dim], picked.device)
    return (
        found if torch.equal(picked, rows.view(-1, *(1,) * (picked.ndim - found.dim - 1)).expand_as(picked)) else None
    )


def _looked_up(raw: list[Any], tags: Mapping[int, Tag], width: int) -> Tag | None:
    """Return where examples are in what their indices have looked up in a constant."""
    found: Layout | None = None
    for part in raw:
        tag = tags.get(id(part)) if isinstance(part, Tensor) else None
        if not isinstance(tag, Layout):
            continue
        here = tag.at(width - part.ndim + tag.dim)
        if _is_mask(part) or (found is not None and found != here):
            return _REFUSED
        found = here
    return found


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


def _basic(parts: list[Any], mine: Layout | None, x: Tensor) -> Tag:
    i = 0 if mine is None else _part_of(parts, mine.dim)
    if mine is None or not _full(parts[i], x.shape[mine.dim]):
        return _REFUSED
    return mine.at(_out_rank(parts[:i]))
