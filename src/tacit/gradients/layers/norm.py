"""Normalisation layers and activations with trainable scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution, Dense, own_sums, precise
from tacit.gradients.layers.generic import fallback, finish
from tacit.gradients.layers.registry import (
    Call,
    bare,
    bound,
    layout_of,
    leading,
    mixes,
    operation,
    rule,
    rule_of_one,
    trainable,
    unknown_form,
)
from tacit.gradients.layout import Layout, Tag, by_example
from tacit.gradients.names import writes
from tacit.gradients.nested import detached
from tacit.gradients.recording import Recording
from tacit.gradients.remembered import is_regular
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark, plain


@operation("layer_norm rms_norm")
def layer_norm(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    centred = func.__name__ == "layer_norm"
    if centred:
        x, shape, weight, bias, eps, _ = bound(
            "input normalized_shape weight bias eps cudnn_enable", args, kwargs, eps=1e-5
        )
    else:
        x, shape, weight, eps = bound("input normalized_shape weight eps", args, kwargs)
        bias = None
    layout, batch = layout_of(recorder, x), recorder.batch
    if layout is None or layout.dim >= x.ndim - len(shape):
        return fallback(recorder, func.__name__, func, args, kwargs)
    assert batch is not None
    data = plain(x)
    centre: Tensor | None = None
    if centred and data.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(data.device.type):
        out, centre, scale = torch.native_layer_norm(data, shape, bare(weight), bare(bias), eps)
    else:
        out = func(data, shape, bare(weight), bare(bias), eps) if centred else func(data, shape, bare(weight), eps)

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        grad = precise(grad)
        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(weight):
            if centre is not None:
                unit = data.detach().sub(centre.detach()).mul_(scale.detach())
            else:
                unit = func(data.detach(), shape, None, None, eps) if centred else func(data.detach(), shape, None, eps)
            pairs.append((weight, Dense(_per_example(unit * grad, layout, batch, tuple(shape)))))
        if trainable(bias):
            pairs.append((bias, Dense(_per_example(grad, layout, batch, tuple(shape)))))
        return pairs

    out = recorder.tap(out, [data] if trainable(weight) else [], make)
    if is_regular(layout) and Traced not in (type(weight), type(bias)):
        return mark(out, recorder, layout)
    return finish(recorder, func.__name__, func, args, kwargs, out)


def _per_example(x: Tensor, layout: Layout, batch: int, shape: tuple[int, ...]) -> Tensor:
    if layout.dim == 0 and layout.owner is None and layout.inner * batch == x.shape[0] and batch:
        x = x.reshape(batch, -1, *shape)
        return x[:, 0] if x.shape[1] == 1 else own_sums(x, 1)
    x = by_example(x, layout, batch).reshape(batch, -1, *shape)
    return x[:, 0] if x.shape[1] == 1 else own_sums(x, 1)


@operation("group_norm instance_norm batch_norm")
def channel_norm(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    if func.__name__ == "group_norm":
        x, groups, weight, bias, eps, _ = bound(
            "input num_groups weight bias eps cudnn_enabled", args, kwargs, eps=1e-5
        )

        def run(data: Tensor, w: Any, b: Any) -> Tensor:
            return torch.group_norm(data, groups, w, b, eps)
    else:
        x, weight, bias, *rest = bound(
            "input weight bias running_mean running_var training momentum eps cudnn_enabled", args, kwargs
        )
        if func.__name__ == "batch_norm" and rest[2]:
            tagged, shared = recorder.scan(args, kwargs)
            with without_subclasses():
                out = func(*detached(args, shared), **detached(kwargs, shared))
            out = recorder.tap(out, [], lambda grad: [])
            return recorder.finish("batch_norm", func, args, kwargs, out, tagged)

        def run(data: Tensor, w: Any, b: Any) -> Tensor:
            return func(data, w, b, *rest)  # type: ignore[no-any-return]

    layout, batch = layout_of(recorder, x), recorder.batch
    if layout is None or layout.dim != 0:
        return fallback(recorder, func.__name__, func, args, kwargs)
    assert batch is not None
    data = plain(x)
    out = run(data, bare(weight), bare(bias))

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        grad = precise(grad)

        def reduced(t: Tensor) -> Tensor:
            each = by_example(t, layout, batch)
            return own_sums(each.flatten(3), (1, 3)) if each.ndim > 3 else own_sums(each, 1)

        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(weight):
            pairs.append((weight, Dense(reduced(run(data.detach(), None, None) * grad))))
        if trainable(bias):
            pairs.append((bias, Dense(reduced(grad))))
        return pairs

    out = recorder.tap(out, [data] if trainable(weight) else [], make)
    if func.__name__ == "group_norm" and is_regular(layout) and Traced not in (type(weight), type(bias)):
        return mark(out, recorder, layout)
    return finish(recorder, func.__name__, func, args, kwargs, out)


@operation("prelu")
def prelu(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight = bound("input weight", args, kwargs)
    shaped = weight.view(-1, *(1,) * (x.ndim - 2)) if weight.numel() > 1 and x.ndim > 1 else weight
    return torch.where(x > 0, x, shaped * x)


@operation("masked_fill")
def masked_fill(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, mask, value = bound("input mask value", args, kwargs)
    if writes(func):
        recorder.problems.refuse_writing("masked_fill_")
    return torch.where(mask, value, x)


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


rule_of_one("group_norm instance_norm prelu")(leading)
rule("native_layer_norm")(unknown_form)
