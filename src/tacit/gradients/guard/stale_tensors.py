"""Tensors kept from an earlier batch may not influence this batch's gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tacit.gradients.layers.registry import Call
from tacit.gradients.nested import tensors
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark_like

DROPPED = (
    "a tensor computed from a batch is used although the model was called on another batch since; call the model on "
    "other data under torch.no_grad() only"
)
FILLED = {"zeros_like": 0.0, "ones_like": 1.0, "full_like": None}
"""Operations that give every entry one number: this one, or an argument."""


def note_fill(call: Call) -> None:
    """Note the number that an operation of `FILLED` has filled its output with."""
    fill = FILLED[call.name]
    given = call.arg(1, "fill_value") if fill is None else fill
    call.out._filled_with = given if isinstance(given, (int, float)) else None


def is_filled(t: Traced) -> bool:
    """Return whether all entries are still the public number that they were at first."""
    with without_subclasses():
        return t._filled_with is not None and bool((t == t._filled_with).all())


def mark_as_before(written: Any, given: Any) -> None:
    """Mark what an evaluated model computed from tensors that it kept: they are of an earlier batch, and so is this."""
    kept = [t for t in tensors(given) if type(t) is Traced]
    for t in tensors(written) if kept else ():
        if type(t) in (Tensor, Traced):
            mark_like(t, kept[0], epoch=kept[0]._epoch)
