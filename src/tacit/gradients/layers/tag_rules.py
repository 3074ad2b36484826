"""Tags after the operations behind standard layers."""

from __future__ import annotations

from typing import Any

import torch

from tacit.gradients.layers.registry import BESIDE, ELSEWHERE, Call, aligned, mixes, rule, rule_of_one, tidy
from tacit.gradients.layout import Layout, Mixed, Tag, owners, same_everywhere, steps_agree

_RANK = {"1d": 3, "2d": 4, "3d": 5}


@rule_of_one(
    """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d pixel_shuffle pixel_unshuffle
    affine_grid_generator
    group_norm instance_norm prelu channel_shuffle im2col col2im feature_dropout feature_alpha_dropout"""
)
def _leading(call: Call) -> Tag:
    """Operations that treat every slice of the first dimension by itself."""
    x, layout = call.first()
    rank = _RANK.get(call.name[-2:], 4 if call.name in ("im2col", "pixel_shuffle", "pixel_unshuffle") else None)
    if call.name == "col2im":
        rank = 3
    if layout.dim != 0 or (rank is not None and x.ndim != rank and call.batch != 1):
        return mixes(call, "treats the dimension that holds the examples as channels or space; move the examples first")
    return layout


@rule_of_one("batch_norm")
def _batch_norm(call: Call) -> Tag:
    training = call.arg(5, "training", default=False)
    if training:
        return mixes(
            call,
            "in training mode normalises with statistics of the whole batch: replace BatchNorm by GroupNorm, "
            "or put the module in eval mode (frozen statistics)",
        )
    layout = call.first()[1]
    return layout if layout.dim != 1 else mixes(call, "treats examples as channels")


@rule_of_one("layer_norm rms_norm")
def _layer_norm(call: Call) -> Tag:
    x, layout = call.first()
    shape = call.arg(1, "normalized_shape")
    return layout if layout.dim < x.ndim - len(shape) else mixes(call, "normalises across examples")


@rule("scaled_dot_product_attention")
def _attention(call: Call) -> Tag:
    return aligned(call, call.out.ndim, call.out.ndim - 2)


@rule("embedding")
def _embedding(call: Call) -> Tag:
    return call.layouts()[0][1] if call.has_only(call.arg(1, "input", "indices")) else mixes(call, ELSEWHERE)


@rule_of_one("one_hot")
def _one_hot(call: Call) -> Tag:
    if call.arg(1, "num_classes", default=-1) < 1:
        return mixes(call, "without num_classes is as wide as the largest class in the batch")
    return call.first()[1]


@rule_of_one(
    "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
)
def _pad(call: Call) -> Tag:
    x, layout = call.first()
    amounts = list(call.arg(1, "pad"))  # of the last dimension first
    own = amounts[2 * (x.ndim - 1 - layout.dim) :][:2]
    return mixes(call, "pads among the examples") if any(own) else layout


@rule("_pack_padded_sequence")
def _pack(call: Call) -> Any:
    if not call.layouts():
        return call.tagged[0][1]
    x, layout = call.first()
    if layout.dim != (0 if call.arg(2, "batch_first") else 1):
        return mixes(call, "takes the dimension that holds the examples for time (see batch_first)")
    columns = owners(layout, call.batch, x.shape[layout.dim], x.device)
    lengths = call.arg(1, "lengths")
    own = next((tag for t, tag in call.tagged if t is lengths), None)
    if isinstance(own, Layout) and not torch.equal(owners(own, call.batch, len(lengths)).cpu(), columns.cpu()):
        return mixes(call, "was given lengths in another order than the examples")
    if isinstance(own, Mixed) and (layout.before is None or layout.before[0] is not own.sorted_by):
        return mixes(call, "was given lengths in another order than the examples")
    if own is None and layout.by_data and not same_everywhere(lengths, 0):
        return mixes(call, BESIDE)
    owner = torch.cat([columns[:n] for n in call.out[1].tolist()])
    by_data = layout.by_data or own is not None
    return [Layout(0, 1, owner, by_data, not layout.by_data, layout.before), None]


@rule("_pad_packed_sequence")
def _unpack(call: Call) -> Any:
    if not call.layouts():
        return call.tagged[0][1]
    layout = call.first()[1]
    if layout.owner is None or not steps_agree(layout.owner, call.args[1]):
        return mixes(call, "was given rows of other examples than those of its first step")
    owner = layout.owner[: int(call.args[1][0])]
    by_data = layout.by_data and not layout.packed
    columns = tidy(Layout(0 if call.args[2] else 1, 1, owner, by_data, before=layout.before), call.batch)
    return [columns, columns.at(0)]  # every example's length is its own


@rule("native_layer_norm lstm gru rnn_tanh rnn_relu")
def _refused(call: Call) -> Tag:
    return mixes(call, "was called in a form the engine does not know")
