"""Scaled dot-product attention. It has no parameters of its own."""

from __future__ import annotations

from tacit.gradients.layers.registry import (
    Call,
    aligned,
    rule,
)
from tacit.gradients.layout import Tag


@rule("scaled_dot_product_attention")
def _attention(call: Call) -> Tag:
    return aligned(call, call.out.ndim, call.out.ndim - 2)
