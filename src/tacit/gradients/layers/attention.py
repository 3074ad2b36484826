"""Scaled dot-product attention. It has no parameters of its own, but its mask may be learned (relative positions)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tacit.gradients.layers.generic import fallback
from tacit.gradients.layers.pointwise import personal
from tacit.gradients.layers.registry import Call, aligned, bound, layout_of, operation, rule, trainable
from tacit.gradients.layout import Tag
from tacit.gradients.recording import Recording
from tacit.gradients.remembered import is_regular
from tacit.gradients.traced import mark

_NAMES = "query key value attn_mask dropout_p is_causal scale enable_gqa"


@operation("scaled_dot_product_attention")
def attention(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Give each example a copy of a learned mask, which is then added to its scores like data."""
    given = bound(_NAMES, args, kwargs, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False)
    query, key, value, mask, *rest = given
    layout = layout_of(recorder, query)
    others = any(trainable(t) for t in (query, key, value))
    if layout is None or others or layout.dim or not is_regular(layout) or not isinstance(mask, Tensor):
        return fallback(recorder, "scaled_dot_product_attention", func, args, kwargs)
    size = query.shape[0]
    full = [size, *(1,) * (query.ndim - mask.ndim - 1), *mask.shape[-query.ndim + 1 :]]
    if mask.ndim > query.ndim or (mask.ndim == query.ndim and mask.shape[0] != 1):
        return fallback(recorder, "scaled_dot_product_attention", func, args, kwargs)
    own = mark(personal(recorder, mask, layout, size, query.ndim, full), recorder, layout)
    options = dict(zip(_NAMES.split()[4:], rest))
    return func(query, key, value, own, **options)


@rule("scaled_dot_product_attention")
def _attention(call: Call) -> Tag:
    return aligned(call, call.out.ndim, call.out.ndim - 2)
