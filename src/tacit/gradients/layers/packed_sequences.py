"""Packing and unpacking sequences: each row of a packed sequence is its example's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.empty_batch import run_empty
from tacit.gradients.layers.registry import ALWAYS, BESIDE, Call, in_order, mixes, operation, rule
from tacit.gradients.layout import Layout, Mixed, owners, same_everywhere, steps_agree
from tacit.gradients.recording import Recording
from tacit.gradients.traced import plain


@operation("_pack_padded_sequence", ALWAYS)
def pack(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """PyTorch packs no empty batch: no row, and no sequence in the first step."""
    if recorder.batch != 0:
        return recorder.carry_out(func, args, kwargs)
    x: Tensor = args[0]
    rows = run_empty(recorder, lambda: plain(x).new_zeros(0, *x.shape[2:]), (), {}, x.requires_grad)
    return rows, torch.zeros(1, dtype=torch.long)


@operation("_pad_packed_sequence", ALWAYS)
def unpack(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    if recorder.batch != 0:
        return recorder.carry_out(func, args, kwargs)
    x, _, batch_first, _, length = args
    shape = (0, length) if batch_first else (length, 0)
    padded = run_empty(recorder, lambda: plain(x).new_zeros(*shape, *x.shape[1:]), (), {}, x.requires_grad)
    return padded, torch.zeros(0, dtype=torch.long)


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
    if isinstance(own, Mixed):
        return own
    if own is None and layout.by_data and not same_everywhere(lengths, 0):
        return mixes(call, BESIDE)
    owner = torch.cat([columns[:n] for n in call.out[1].tolist()])
    return [Layout(0, 1, owner, layout.by_data if own is None else "count"), None]


@rule("_pad_packed_sequence")
def _unpack(call: Call) -> Any:
    if not call.layouts():
        return call.tagged[0][1]
    layout = call.first()[1]
    if layout.owner is None or not steps_agree(layout.owner, call.args[1]):
        return mixes(call, "was given rows of other examples than those of its first step")
    columns = in_order(0 if call.args[2] else 1, layout.owner[: int(call.args[1][0])], call.batch)
    return [columns, columns.at(0)]  # every example's length is its own
