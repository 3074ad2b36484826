"""Rows that data of the batch has picked or put in order, and constants.

Which example is in which row was decided by all of them then. A constant that has another row for each place must not
meet such rows: which of its rows an example gets would depend on the others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import BESIDE, Call, mixes
from tacit.gradients.layout import Layout, Mixed, Tag, same_everywhere
from tacit.gradients.nested import mapped, tensors

_OWN_RULE = frozenset(["getitem", "setitem", "index_select", "_pack_padded_sequence", "_pad_packed_sequence"])
"""Operations that put rows in order, or undo it: their rules say what becomes of it."""

_TYPES = frozenset(["to", "type_as"])
"""Operations that look at another tensor's type alone."""


def in_order(call: Call, found: Any, *, pointwise: bool) -> Any:
    """The tags of an operation on rows that data has put in order: they stay so, and constants beside are refused."""
    if call.name in _OWN_RULE or _is_refused(found):
        return found
    if call.name not in _TYPES and (_meets(call) if pointwise or call.name == "masked_select" else _minds(call, found)):
        return mixes(call, BESIDE)
    given = [tag for _, tag in call.layouts() if tag.by_data]
    several = isinstance(found, list)
    tags = [_kept(tag, given) for tag in (found if several else [found])]
    return tags if several else tags[0]


def _is_refused(found: Any) -> bool:
    return all(isinstance(tag, Mixed) for tag in (found if isinstance(found, list) else [found]))


def _kept(tag: Tag | None, given: list[Layout]) -> Tag | None:
    if not isinstance(tag, Layout):
        return tag
    packed = tag.packed and all(own.packed for own in given)
    same = [own.before for own in given if own.same_order(tag)]
    alike = len(same) == len(given) and all(before is same[0] for before in same)
    return replace(tag, by_data=True, packed=packed, before=same[0] if alike else None)


def inverted(call: Call) -> Mixed | list[Mixed] | None:
    """The tag of the inverse of an order: what sorts it, or the numbers of places written where it says."""
    for t, tag in call.tagged if call.name in ("argsort", "sort", "scatter", "setitem") else ():
        out = call.out[1] if call.name == "sort" else call.out
        if isinstance(tag, Mixed) and _is_sorted_or_written_to(call, t) and _is_inverse(out, t):
            found = Mixed(tag.reason, inverts=tag)
            return [Mixed(tag.reason), found] if call.name == "sort" else found
    return None


def _is_sorted_or_written_to(call: Call, t: Tensor) -> bool:
    if call.name in ("argsort", "sort"):
        return call.main() is t
    at, value = (call.arg(2, "index"), call.arg(3, "src")) if call.name == "scatter" else call.args[1:3]
    return at is t and type(value) is Tensor


def _is_inverse(found: Tensor, order: Tensor) -> bool:
    if order.ndim != 1 or order.shape != found.shape or order.dtype != torch.long:
        return False
    places = torch.arange(order.numel(), device=order.device)
    order = order.as_subclass(Tensor)
    return torch.equal(order.sort().values, places) and torch.equal(found.as_subclass(Tensor)[order], places)


def stride(layout: Layout) -> int:
    """How many rows in a sequence belong to the same example, wherever one begins."""
    if layout.owner is None:
        return layout.inner
    runs = torch.unique_consecutive(layout.owner, return_counts=True)[1].tolist()
    return math.gcd(*runs) if len(runs) > 1 else 1


def alike(t: Tensor, dim: int, each: int) -> bool:
    """Return whether a constant begins again after every `each` places along a dimension."""
    if t.shape[dim] <= each:
        return True
    if each > 1 and t.shape[dim] % each == 0:
        t = t.detach().unflatten(dim, (-1, each))  # type: ignore[no-untyped-call]
    return same_everywhere(t, dim)


def _period(t: Tensor, dim: int, rows: dict[int, int]) -> int:
    """How many places along a dimension an example would have in a constant, if the dimension holds examples at all.

    `rows` are how many rows hold them, and how many of these each has. Only in one dimension (targets written one after
    the other) are several entries of each taken for a row.
    """
    size = t.shape[dim]
    fitting = [n for n in rows if 1 < n <= size and size % n == 0 and (n == size or t.ndim == 1)]
    return rows[fitting[0]] * (size // fitting[0]) if fitting else size


def _constants(call: Call) -> list[Tensor]:
    tagged = {id(t) for t, _ in call.tagged}
    given = tensors((call.args[1:] if call.name == "copy" else call.args, call.kwargs))  # what it replaces is no matter
    return [t.as_subclass(Tensor) for t in given if id(t) not in tagged]


def _listed(value: Any) -> list[Tensor]:
    """Python's lists and tuples of numbers among arguments, as tensors: lengths, say, one for each place."""
    if isinstance(value, dict):
        return [t for v in value.values() for t in _listed(v)]
    if not isinstance(value, (tuple, list)):
        return []
    if value and all(isinstance(v, (int, float)) for v in value):
        return [torch.tensor(value, dtype=torch.float64)]
    return [t for v in value for t in _listed(v)]


def _meets(call: Call) -> bool:
    """Return True if a constant's rows differ, in an operation on entries at the same (broadcast) place."""
    constants = _constants(call)
    for t, tag in call.layouts():
        for constant in constants if tag.by_data else ():
            place = constant.ndim - t.ndim + tag.dim
            if place >= 0 and not alike(constant, place, stride(tag)):
                return True
    return False


def _minds(call: Call, found: Any) -> bool:
    """Return True if a trial shows that it matters for an example which row it is in.

    Asked only where a constant could have a row for each. Numbers are drawn for the trial, so that the answer depends
    on the operation and on what the constants are, not on the batch: if all examples move on, so must what they give.
    """
    constants = _constants(call) + _listed((call.args, call.kwargs))
    rows = {t.shape[tag.dim]: stride(tag) for t, tag in call.layouts() if tag.by_data and constants}
    if all(alike(t, d, _period(t, d, rows)) for t in constants for d in range(t.ndim)):
        return False
    try:
        before, after = _tried(call, rows, {}), _tried(call, rows, {id(t): tag for t, tag in call.layouts()})
    except (RuntimeError, ValueError, IndexError, TypeError):
        return True
    tags = found if isinstance(found, list) else [found] * len(before)
    return not all(_same(_moved(a, tag), b) for a, b, tag in zip(before, after, tags) if isinstance(a, Tensor))


def _tried(call: Call, rows: dict[int, int], moved: dict[int, Layout]) -> list[Any]:
    """The results on numbers drawn for all that is real, with what has one of these layouts moved on."""
    generator, tagged = torch.Generator().manual_seed(0), {id(t) for t, _ in call.tagged}
    known: dict[int, Tensor] = {}

    def stand_in(t: Tensor) -> Tensor:
        if id(t) not in known:
            bare = t.as_subclass(Tensor).detach()
            known[id(t)] = _moved(_drawn(bare, {} if id(t) in tagged else rows, generator), moved.get(id(t)))
        return known[id(t)]

    device = call.tagged[0][0].device
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):  # both begin alike
        args, kwargs = mapped((call.args, call.kwargs), stand_in)
        with torch.autocast(device.type, enabled=False):
            out = call.func(*args, **kwargs)
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _drawn(t: Tensor, rows: dict[int, int], generator: torch.Generator) -> Tensor:
    """A tensor like this one, of other real numbers; the same for all examples where this one is."""
    if not t.is_floating_point():
        return t.clone()
    each = [_period(t, d, rows) if alike(t, d, _period(t, d, rows)) else n for d, n in enumerate(t.shape)]
    numbers = 0.1 + 0.8 * torch.rand(each, dtype=torch.float64, generator=generator)
    for d, n in enumerate(each):
        numbers = torch.cat([numbers] * (t.shape[d] // n), d) if n else numbers
    return numbers.to(t.device)


def _moved(t: Tensor, tag: Tag | None) -> Tensor:
    """With all examples in the places of those after them."""
    return t.roll(stride(tag), tag.dim) if isinstance(tag, Layout) else t


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-12, equal_nan=True)
