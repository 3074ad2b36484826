"""Writes in place: the written memory may be seen by other tensors, whose tags must stay true."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import RULES
from tacit.gradients.layout import Layout, Mixed, Only, Tag, Total
from tacit.gradients.names import words
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import base_of, storage_users, without_subclasses
from tacit.gradients.traced import Traced, mark

_SHAPES = words("transpose t squeeze unsqueeze swapaxes swapdims resize resize_as as_strided set rename")
"""Operations whose in-place form changes a tensor's shape, not its values."""


def known(name: str, pointwise: frozenset[str]) -> bool:
    """Return whether the engine knows what the in-place form of an operation writes where."""
    return (name in pointwise or name in RULES) and name not in _SHAPES


def settle(
    recorder: Recording,
    name: str,
    written: Any,
    new: Any,
    args: tuple[Any, ...],
    tagged: list[tuple[Tensor, Tag]],
    own: bool,
) -> None:
    """See that no other tensor is left with a tag that a write in place made untrue, or refuse the write.

    Safe without a look at other tensors: an entry changed from its own value and constants alone (`own`: the operation
    is pointwise or an assignment), and entries that belong to the same examples after the write as before, because a
    view's tag is that of its base restricted to it. Otherwise the tag changes, and everything that shares the memory
    would have to change with it: the tensor itself and the base it is a view of can be told, nothing else can.
    """
    old = next((tag for t, tag in tagged if t is written), None)
    alone = own and len(tagged) == 1 and old is not None and not isinstance(old, Total)
    if alone or _same(old, new) or not isinstance(written, Tensor) or new is None:
        return
    with without_subclasses():
        base, users = base_of(written), storage_users(written)
    owner = written if base is None else base
    kept = type(written) not in (Tensor, Traced) or type(owner) not in (Tensor, Traced) or id(owner) in recorder.buffers
    if name == "setitem" and _onto_itself(*args):
        return
    if kept or users > 1 + (base is not None):
        reason = new.reason if isinstance(new, Mixed) else f"`{name}` writes data of the batch in place"
        if type(written) is Traced:
            mark(written, recorder, Mixed(reason))
        recorder.problems.refuse_now(
            f"{reason} (in place, into memory that other tensors share; write into a copy of its own, or do without)"
        )
    place = _place_in_base(written, base, new)
    if base is not None and place is not None:
        mark(base, recorder, place)
    elif base is not None:
        reason = new.reason if isinstance(new, Mixed) else f"`{name}` wrote data of the batch into a view"
        mark(base, recorder, Mixed(reason))
        if base.requires_grad:
            recorder.problems.suspect(reason)


def _place_in_base(view: Tensor, base: Tensor | None, new: Any) -> Layout | None:
    """Return where the examples are in a constant, if a view that has all of that dimension was written to.

    The rest of the constant is the same for any batch, so that it may be counted to any example.
    """
    if type(base) is not Tensor or not isinstance(new, Layout) or new.dim >= view.ndim:
        return None
    with without_subclasses():
        step, size = view.stride(new.dim), view.shape[new.dim]
        places = [d for d in range(base.ndim) if base.stride(d) == step and base.shape[d] == size]
        return new.at(places[0]) if len(places) == 1 and size > 1 else None


def _onto_itself(x: Tensor, key: Any, value: Any) -> bool:
    """Return whether `x[key] = value` is the end of `x[key] += …`: the value is that part of x, already written."""
    keys = key if isinstance(key, tuple) else (key,)
    if not isinstance(value, Tensor) or not all(type(k) in (int, slice) for k in keys):
        return False
    with without_subclasses(), torch.no_grad():
        part = x[key]
        return (part.data_ptr(), part.shape, part.stride()) == (value.data_ptr(), value.shape, value.stride())


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, Layout) and isinstance(new, Layout):
        return old.dim == new.dim and old.same_order(new)
    return isinstance(old, (Only, Total)) and old == new


COUNTING = {"batch_norm": 3, "instance_norm": 3, "native_batch_norm": 3, "_native_batch_norm_legit": 3}
"""Operations that write what they count into an argument, which begins at this place."""


def refuse_counting(recorder: Recording, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An operation of `COUNTING` that has somewhere to write to."""
    values = dict(enumerate(args))
    running = values.get(COUNTING[name], kwargs.get("running_mean"))
    on = values.get(COUNTING[name] + 2, kwargs.get("training", kwargs.get("use_input_stats")))
    if running is not None and bool(on):
        recorder.problems.add(f"`{name}` writes statistics of the batch into its running mean and variance")


def assign_attribute(recorder: Recording, attribute: str, target: Tensor, value: Any) -> None:
    """Follow `target.data = value`; refuse it, or `target.grad = value`, where data of the batch would outlive it."""
    if not recorder.follows(value):
        return
    layout = target._tag if recorder.follows(target) else None  # type: ignore[attr-defined]
    if attribute == "data" and type(target) in (Tensor, Traced) and id(target) not in recorder.buffers:
        mark(target, recorder, value._tag)  # the values are others' now, and so is their tag
    elif attribute != "grad" or layout is None:
        recorder.problems.refuse_now(f"data of the batch is assigned to `.{attribute}` of a tensor that outlives it")
