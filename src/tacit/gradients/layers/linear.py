"""Linear maps with trainable weights, and the parts that all rules for trainable operations share.

Each runs the operation on detached parameters, so that autograd computes activation gradients only, and keeps
(input, output gradient), from which every example's gradient follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.factors.contribution import Contribution, Dense, own_sums
from tacit.gradients.factors.formed import formed_at_once
from tacit.gradients.factors.outer import Outer
from tacit.gradients.kernels import batch_invariant_matmul
from tacit.gradients.layers.generic import fallback
from tacit.gradients.layers.matmul import added_product
from tacit.gradients.layers.registry import ALWAYS, FROZEN, Call, aligned, bound, layout_of, mixes, operation, rule
from tacit.gradients.layout import Layout, Tag, by_example
from tacit.gradients.recording import Recording
from tacit.gradients.remembered import is_regular
from tacit.gradients.tap import differentiates_forward, put_linear_tap
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark, plain


def sequences(x: Tensor, layout: Layout, batch: int, width: int) -> Tensor:
    """[batch, 1, positions, width] from a tensor whose last dimension is the feature, each example's together."""
    if layout.dim == 0 and layout.owner is None and layout.inner * batch == x.shape[0]:
        return x.reshape(batch, 1, -1, width) if batch else x.reshape(0, 1, 0, width)
    return by_example(x, layout, batch).reshape(batch, 1, -1, width).contiguous()


@operation("linear")
def linear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias = args if len(args) == 3 else bound("input weight bias", args, kwargs)
    layout = layout_of(recorder, x)
    if layout is None or type(weight) is Traced or type(bias) is Traced or weight.is_complex():
        out = torch.matmul(x, weight.mT)
        return out if bias is None else out + bias
    with without_subclasses():
        features = x.detach()
    if layout.dim == features.ndim - 1 or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return fallback(recorder, "linear", func, args, kwargs)
    return affine(recorder, x, features, weight, bias, layout)


def affine(
    recorder: Recording,
    x: Tensor,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    layout: Layout,
    *,
    turned: bool = False,
) -> Tensor:
    """A linear map of features in the last dimension, also given detached; a ``turned`` weight has its inputs first."""
    batch = recorder.batch
    assert batch is not None
    for_weight, for_bias = weight.requires_grad, bias is not None and bias.requires_grad
    together = layout.dim == 0 and layout.owner is None and layout.inner * batch == features.shape[0]

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        if together and for_weight and (grad.ndim > 2 or layout.inner > 1) and features.numel():
            rows, inputs = _in_rows(grad, batch), _in_rows(features, batch)
            formed = formed_at_once(rows, inputs) if turned else formed_at_once(inputs, rows)
            if formed is not None:
                return [(bias, Dense(own_sums(rows, 1))), (weight, formed)] if for_bias else [(weight, formed)]  # type: ignore[list-item]
        g = sequences(grad, layout, batch, grad.shape[-1])
        single = g.shape[2] == 1
        summed = Dense(g.reshape(batch, -1) if single else own_sums(g, (1, 2))) if for_bias else None
        pairs: list[tuple[Tensor, Contribution]] = [] if summed is None or bias is None else [(bias, summed)]
        if for_weight:
            a = sequences(features, layout, batch, features.shape[-1])
            outer = (
                Outer(g, a, weight.shape) if turned else Outer(a, g, weight.shape, output=summed if single else None)
            )
            pairs.append((weight, outer))
        return pairs

    saved = (features,) if for_weight else ()
    if torch.is_autocast_enabled(features.device.type):
        bare_bias = None if bias is None else bias.detach()
        out = batch_invariant_matmul.linear(plain(x), weight.detach(), bare_bias, turned=turned)
        out = recorder.tap(out, saved, make)
    else:
        given = features, weight, bias, turned
        with without_subclasses():
            out = put_linear_tap(recorder.anchor, x, given, recorder.arrival(saved, make))  # type: ignore[no-untyped-call]
    return mark(out, recorder, layout)


def _in_rows(x: Tensor, batch: int) -> Tensor:
    """[batch, positions, features] from features of examples that stand one after the other."""
    return x if x.ndim == 3 and len(x) == batch else x.reshape(batch, -1, x.shape[-1])


@operation("addmm")
def addmm(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`bias + x @ weight` for the rows of a batch (GPT-2's linear maps); other forms are taken apart."""
    if len(args) != 3 or kwargs:
        return added_product(recorder, func, args, kwargs)
    bias, x, weight = args
    layout = layout_of(recorder, x)
    parameters = type(weight) is nn.Parameter and type(bias) is nn.Parameter and not weight.is_complex()
    if not parameters or layout is None or layout.dim or bias.shape != weight.shape[1:]:
        return added_product(recorder, func, args, kwargs)
    return affine(recorder, x, plain(x).detach(), weight, bias, layout, turned=True)


@operation("linear", FROZEN)
def frozen_linear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Computes each row alike too (`alike`)."""
    x, weight, bias = args = tuple(bound("input weight bias", args, kwargs))
    layout, kwargs = layout_of(recorder, x), {}
    if layout is None or layout.dim == x.ndim - 1 or differentiates_forward(plain(x)):
        return recorder.carry_out(func, args, kwargs)
    features = plain(x).detach()
    if not batch_invariant_matmul.is_linear(features, weight, bias):
        return recorder.carry_out(func, args, kwargs)
    with without_subclasses():
        out = put_linear_tap(None, x, (features, weight, bias, False), None)  # type: ignore[no-untyped-call]
    if is_regular(layout):
        return mark(out, recorder, layout)
    return recorder.finish("linear", func, args, kwargs, out, [(x, layout)])


@operation("bilinear", ALWAYS)
def bilinear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x1, x2, weight, bias = bound("input1 input2 weight bias", args, kwargs)
    out = torch.einsum("...i,oij,...j->...o", x1, weight, x2)
    return out if bias is None else out + bias


@rule("linear")
def _linear(call: Call) -> Tag:
    x, w = call.main(), call.arg(1, "weight")
    if isinstance(w, Traced):
        return mixes(call, "uses data as a weight matrix")
    if id(x) not in {id(t) for t, _ in call.layouts()}:
        return mixes(call, "uses data as a bias")
    if len(call.layouts()) == 1:
        layout = call.layouts()[0][1]
        return layout if layout.dim != x.ndim - 1 else mixes(call, "sums over examples")
    return aligned(call, call.out.ndim, call.out.ndim - 1)  # a bias may have a row for each example
