"""Where examples lie after resizing, padding and rearranging images."""

from __future__ import annotations

from tacit.gradients.layers.registry import (
    Call,
    leading,
    mixes,
    rule_of_one,
)
from tacit.gradients.layout import Tag

rule_of_one(
    """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d pixel_shuffle pixel_unshuffle
    affine_grid_generator channel_shuffle im2col col2im feature_dropout feature_alpha_dropout"""
)(leading)


@rule_of_one(
    "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
)
def _pad(call: Call) -> Tag:
    x, layout = call.first()
    amounts = list(call.arg(1, "pad"))  # of the last dimension first
    own = amounts[2 * (x.ndim - 1 - layout.dim) :][:2]
    return mixes(call, "pads among the examples") if any(own) else layout
