"""Trainable tables: embeddings, bags of embeddings, and parameters indexed directly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution
from tacit.gradients.factors.sparse import looked_up
from tacit.gradients.layers.generic import fallback, finish
from tacit.gradients.layers.registry import (
    ALWAYS,
    ELSEWHERE,
    Call,
    bare,
    bound,
    layout_of,
    mixes,
    operation,
    rule,
    rule_of_one,
    trainable,
)
from tacit.gradients.layout import Layout, Tag, by_example, owners
from tacit.gradients.recording import Recording
from tacit.gradients.remembered import is_regular
from tacit.gradients.traced import Traced, mark, plain


@operation("embedding")
def embedding(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    weight, index, padding_idx, by_frequency, _ = bound(
        "weight input padding_idx scale_grad_by_freq sparse", args, kwargs, padding_idx=-1, scale_grad_by_freq=False
    )
    layout, batch = layout_of(recorder, index), recorder.batch
    assert batch is not None
    if layout is None or type(weight) is Traced:
        return fallback(recorder, "embedding", func, args, kwargs)
    if by_frequency:
        recorder.problems.add("an embedding with scale_grad_by_freq counts words over the whole batch; set it to False")
    rows = plain(index)
    out = torch.embedding(bare(weight), rows)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g = by_example(grad, layout, batch).reshape(batch, -1, grad.shape[-1])
        which = by_example(rows, layout, batch).reshape(-1)
        owner = torch.arange(batch, device=g.device).unsqueeze(1).expand(batch, g.shape[1]).reshape(-1)
        return [(weight, _lookups(which, owner, g.reshape(-1, g.shape[-1]), weight, batch, padding_idx))]

    out = recorder.tap(out, [rows], make)
    if is_regular(layout):
        return mark(out, recorder, layout)
    return finish(recorder, "embedding", func, (weight, index), {}, out)


def _lookups(
    which: Tensor, owner: Tensor, grads: Tensor, weight: Tensor, batch: int, padding_idx: int | None
) -> Contribution:
    if padding_idx is not None and padding_idx >= 0:
        kept = (which != padding_idx).nonzero().flatten()
        which, owner, grads = which[kept], owner[kept], grads[kept]
    return looked_up(which.long(), owner, grads, weight.shape, batch)


@operation("one_hot", ALWAYS)
def one_hot(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    if recorder.inside and bound("tensor num_classes", args, kwargs, num_classes=-1)[1] < 1:
        recorder.problems.add("`one_hot` without num_classes is as wide as the largest class in the batch")
    return recorder.carry_out(func, args, kwargs)


@operation("embedding_renorm", ALWAYS)
def embedding_renorm(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    recorder.problems.add(
        "an embedding with max_norm rescales rows because of the examples that read them; leave max_norm out"
    )
    return args[0]


@operation("embedding_bag")
def embedding_bag(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    names = "weight input offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset padding_idx"
    weight, index, offsets, _, mode, _, scales, last, padding_idx = bound(
        names, args, kwargs, mode=0, include_last_offset=False
    )
    batch = recorder.batch
    assert batch is not None
    rows, starts = plain(index), plain(offsets)
    bags = starts.numel() - bool(last)
    own, of_bags = layout_of(recorder, index), layout_of(recorder, offsets)
    bag = torch.searchsorted(starts[:bags].contiguous(), torch.arange(rows.numel(), device=rows.device), right=True) - 1
    if of_bags is not None and not last:
        place: Layout | None = of_bags
    elif (
        own is not None
        and own.owner is None
        and bags % batch == 0
        and rows.numel()
        == bags * (own.inner * batch * bags // (bags * batch) if bags == batch else rows.numel() // bags)
    ):
        place = Layout(0, max(1, own.inner * bags // rows.numel())) if rows.numel() else Layout(0)
    else:
        place = None
    if place is None or (isinstance(scales, Tensor) and trainable(scales)):
        recorder.problems.add(
            "embedding_bag in this form has no per-example rule: pass offsets with one bag per example (declared "
            "as data), or use an embedding followed by a reduction"
        )
        place = place or Layout(0)
    assert place is not None
    out, *rest = func(bare(weight), rows, starts, False, mode, False, bare(scales), last, padding_idx)
    counted = (
        torch.ones(rows.numel(), device=rows.device)
        if padding_idx is None or padding_idx < 0
        else (rows != padding_idx).float()
    )
    counts = torch.zeros(bags, device=rows.device).index_add_(0, bag, counted).clamp_min(1)
    examples = owners(place, batch, bags, rows.device)
    for lies in filter(None, (own, layout_of(recorder, scales))):
        if not torch.equal(owners(lies, batch, rows.numel(), rows.device), examples[bag]):
            recorder.problems.add("embedding_bag puts rows or weights of several examples into one bag")

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        if mode == 2:  # each coordinate comes from one row of its bag, named in the last result
            key = torch.unique(bag * weight.shape[0] + rows)  # a row that a bag holds twice is still one row
            of, row = key.div(weight.shape[0], rounding_mode="floor"), key.remainder(weight.shape[0])
            g = grad[of] * (rest[2][of] == row.unsqueeze(1))
            return [(weight, _lookups(row, examples[of], g, weight, batch, padding_idx))]
        g = grad[bag]
        if scales is not None:
            g = g * bare(scales).detach().unsqueeze(1)
        if mode == 1:
            g = g / counts.to(g.dtype)[bag].unsqueeze(1)
        return [(weight, _lookups(rows, examples[bag], g, weight, batch, padding_idx))]

    out = recorder.tap(out, [rows], make)
    return (mark(out, recorder, place), *rest)


@operation("getitem index_select")
def lookup(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    table = args[0]
    if func.__name__ == "index_select":
        dim, index = bound("input dim index", args, kwargs)[1:]
    else:
        dim, index = 0, args[1]
    simple = isinstance(index, Traced) and not index.is_floating_point() and index.dtype != torch.bool
    if not trainable(table) or not simple or dim != 0:
        name = "getitem" if func.__name__ == "__getitem__" else func.__name__
        return fallback(recorder, name, func, args, kwargs)
    rows = table.reshape(table.shape[0], -1)
    index = torch.where(index < 0, index + table.shape[0], index)
    found = torch.embedding(rows, index)
    return found.reshape(*found.shape[:-1], *table.shape[1:])


@operation("setitem")
def assign(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`x[key] = parameter`: every example is given a copy of its own, which is then written like data."""
    x, key, value = args
    if trainable(x):  # its graph would not know of the write
        recorder.problems.refuse_now(
            "data of the batch is assigned into a tensor that was computed from parameters; put them together with "
            "torch.cat or torch.where"
        )
    if not trainable(value) or not recorder.follows(x):
        return fallback(recorder, "setitem", func, args, kwargs)
    x[key] = torch.zeros_like(x[key]) + value
    return None


@rule("embedding")
def _embedding(call: Call) -> Tag:
    return call.layouts()[0][1] if call.has_only(call.arg(1, "input", "indices")) else mixes(call, ELSEWHERE)


@rule_of_one("one_hot")
def _one_hot(call: Call) -> Tag:
    if call.arg(1, "num_classes", default=-1) < 1:
        return mixes(call, "without num_classes is as wide as the largest class in the batch")
    return call.first()[1]
