"""Padded sequences that are as wide as the longest of the batch: what may be done along that dimension.

`pad_packed_sequence` without total_length gives every example as many positions as the longest has. What treats each
position by itself is right, and so is a sum where the padding is zero. Means, maxima, softmax, the last position and
all else along that dimension depend on the longest example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Total
from tacit.gradients.names import POINTWISE, words
from tacit.gradients.torch_internals import write_count
from tacit.gradients.traced import Traced

_MOVING = words(
    """
    transpose permute t T mT movedim moveaxis swapaxes swapdims unsqueeze expand index_select getitem
    _pack_padded_sequence
    """
)
_ZERO_KEEPING = _MOVING | words(
    """
    relu tanh neg abs square dropout to float double half bfloat16 clone contiguous detach type type_as sum cpu cuda
    view reshape flatten unflatten
    """
)
"""Operations that give zero, and a gradient of zero to what they meet, where their first argument is zero."""

_EACH = POINTWISE | _MOVING | words("gather take_along_dim embedding cumsum cumprod logcumsumexp stack")
_ALONG = {
    **dict.fromkeys(words("mean max min amax amin argmax argmin logsumexp std var prod any all median softmax"), 1),
    **dict.fromkeys(words("log_softmax softmin _softmax sort argsort flip cat select unbind glu squeeze"), 1),
    **dict.fromkeys(words("topk kthvalue linalg_vector_norm split chunk"), 2),
}
"""Operations along dimensions, and the place of the argument that says which."""


def stays_zero(call: Call, padded: list[Tensor]) -> bool:
    """Return whether an operation's output is zero in the padding, because its arguments are."""
    zero = [t for t in padded if _is_zero(t)]
    if call.name in ("add", "sub", "cat", "stack"):
        joined = call.args if call.name in ("add", "sub") else call.arg(0, "tensors")
        scaled = call.kwargs.get("alpha", 1)
        return len(joined) > 1 and _is_finite(scaled) and all(any(v is t for t in zero) for v in joined)
    if call.name in ("mul", "div", "true_divide"):
        return _scales(call, zero)
    return call.name in _ZERO_KEEPING and any(t is call.main() for t in zero)


def _scales(call: Call, zero: list[Tensor]) -> bool:
    """Return whether a product or quotient is zero where these are: not times infinity, nor divided by zero."""
    a, b = call.main(), call.arg(1, "other")
    if call.name == "mul":
        return any((t is a and _is_finite(b, zero)) or (t is b and _is_finite(a, zero)) for t in zero)
    return (
        any(t is a for t in zero) and type(b) is not Traced and _is_finite(b) and bool((torch.as_tensor(b) != 0).all())
    )


def _is_finite(factor: Any, zero: Sequence[Tensor] = ()) -> bool:
    """Return True if a factor is so in every batch: by its type, as zero in the padding, or as a constant."""
    if type(factor) is Traced and (factor.is_floating_point() or factor.is_complex()):
        return any(factor is t for t in zero)
    return type(factor) is Traced or bool(torch.as_tensor(factor).isfinite().all())


def _is_zero(t: Tensor) -> bool:
    return bool(t._zero_padded == write_count(t))  # type: ignore[attr-defined]


def objection(call: Call, padded: list[Tensor], after: frozenset[int]) -> str | None:
    """Why the output depends on the longest example of the batch."""
    for t in padded:
        tag = t._tag  # type: ignore[attr-defined]
        for dim in t._free - {tag.dim} if isinstance(tag, Layout) else ():  # type: ignore[attr-defined]
            if _acts_along(call, t, dim, after):
                return _reason(call)
    return None


def objection_to_mean(call: Call, padded: list[Tensor], outs: list[Tensor]) -> str | None:
    """Why a mean depends on the longest example of the batch, whatever a mask has left of the others."""
    whole = any(isinstance(t._tag, Total) and t._tag.kind == "mean" for t in outs)  # type: ignore[attr-defined]
    for t in padded if call.name == "mean" or whole else ():
        dims = call.dims(1, t.ndim) if call.name == "mean" else None
        if t._free.intersection(range(t.ndim) if dims is None else dims):  # type: ignore[attr-defined]
            return _reason(call)
    return None


def _reason(call: Call) -> str:
    return (
        f"`{call.name}` acts along positions that are as many as the longest sequence of the batch has: "
        "give pad_packed_sequence total_length= (the input's, or a constant)"
    )


def _acts_along(call: Call, t: Tensor, dim: int, after: frozenset[int]) -> bool:
    name = call.name
    if name in ("getitem", "setitem"):
        return t is not call.args[0] or not _begins_at_the_first(call.args[1], t, dim)
    if name in _EACH or (name in ("max", "min") and isinstance(call.arg(1, "other"), Tensor)):
        return False
    if name in ("linear", "matmul"):
        return t is not call.main() or dim == t.ndim - 1
    if name in ("layer_norm", "rms_norm"):
        return bool(dim >= t.ndim - len(call.arg(1, "normalized_shape")))
    if name == "sum":
        dims = call.dims(1, t.ndim)
        return (dims is None or dim in dims) and not _is_zero(t)
    if name in _ALONG:
        dims = call.dims(_ALONG[name], t.ndim, "dims")
        return dims is None or dim in dims
    if name in ("view", "reshape", "flatten", "unflatten"):
        return len(after) != 1 or not _stays_whole(t.shape, dim, call.out.shape, *after)
    return True


def _stays_whole(old: Sequence[int], dim: int, new: Sequence[int], place: int) -> bool:
    """Return True if a reshape keeps a dimension, with as many entries before it and in each of its positions."""
    return old[dim] == new[place] and math.prod(old[:dim]) == math.prod(new[:place])


def _begins_at_the_first(key: Any, t: Tensor, dim: int) -> bool:
    """Return whether the part of a key for a dimension counts from its first position (or each example has its own)."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(p, Tensor) and p.ndim != 1 for p in parts):
        return False
    taken = [p for p in parts if p is not None]
    if Ellipsis in [p for p in taken if not isinstance(p, Tensor)]:
        at = next(i for i, p in enumerate(taken) if p is Ellipsis)
        taken = taken[:at] + [slice(None)] * (t.ndim - len(taken) + 1) + taken[at + 1 :]
    part = taken[dim] if dim < len(taken) else slice(None)
    if isinstance(part, slice):
        return all(b is None or (type(b) is int and b >= 0) for b in (part.start, part.stop, part.step))
    return type(part) is Traced or (type(part) is int and part >= 0)
