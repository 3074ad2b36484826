"""Nodes behind trainable operations, which receive their outputs' gradients; and the scale of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tacit.gradients.kernels import batch_invariant_matmul
from tacit.gradients.precision import unmixed
from tacit.gradients.torch_internals import keeps_graph, write_count

OWN = object()
"""The mark on a node of the graph (`made_by`) that the engine made."""


def differentiates_forward(x: Tensor) -> bool:
    """Return whether a tensor takes part in forward-mode differentiation (`torch.func.jvp`)."""
    return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


class Tap(torch.autograd.Function):
    """A node of its own behind a trainable operation, through which every gradient of its output must pass.

    A hook on the output would be passed by: many operations return views, and an in-place change of a view reroutes
    the graph around the view's own node. The anchor gives the first trainable operation a graph to begin with, and
    marks whatever is computed from here as data.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, out: Tensor, arrived: Callable[[Tensor], None]) -> Tensor:
        ctx.arrived, ctx.made_by = arrived, OWN
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        arrived = ctx.arrived
        if not keeps_graph():
            ctx.arrived = _gone  # what it holds is freed now, as autograd frees its own saved tensors
        arrived(grads[0])
        return None, grads[0], None


class Border(Tap):
    """The node behind a module that ran one example at a time: the nodes before it are each example's own."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchor: Tensor, out: Tensor, arrived: Callable[[Tensor], None], upstream: list[Any]
    ) -> Tensor:
        ctx.upstream = upstream
        return Tap.forward(ctx, anchor, out, arrived)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *Tap.backward(ctx, *grads), None


class LinearTap(torch.autograd.Function):
    """A linear map and, unless it is frozen, the node behind it in one.

    The gradient of its input is new memory (`batch_invariant_matmul.linear_backward`), where that of PyTorch's own map
    is a view of some for more than two dimensions: autograd can add other gradients to it in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        x: Tensor,
        given: tuple[Tensor, Tensor, Tensor | None, bool],
        arrived: Callable[[Tensor], None] | None,
    ) -> Tensor:
        """`given` are the input, the weight, the bias and whether the weight is turned, out of autograd's sight."""
        ctx.arrived, ctx.made_by = arrived, OWN
        features, weight, bias, turned = given
        if ctx.needs_input_grad[1]:
            ctx.weight, ctx.version, ctx.turned = weight, write_count(weight), turned
        out = batch_invariant_matmul.linear(features, weight, bias, turned=turned)
        return out.detach()  # where it is a view of a padded product, autograd would refuse to write to it

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if torch.is_grad_enabled():
            raise RuntimeError("gradients of gradients have no fast rule; run the model with isolate=True")
        arrived = ctx.arrived
        if arrived is not None:
            if not keeps_graph():
                ctx.arrived = _gone  # as in `Tap`
            arrived(grad)
        if not ctx.needs_input_grad[1]:
            return None, None, None, None
        if write_count(ctx.weight) != ctx.version:
            raise RuntimeError(
                "a weight that the gradient has to pass was modified by an inplace operation since the forward pass; "
                "take the optimizer's step after backward"
            )
        if not torch.is_autocast_enabled(grad.device.type):
            return None, batch_invariant_matmul.linear_backward(grad, ctx.weight, turned=ctx.turned), None, None
        with unmixed(grad.device):
            return None, batch_invariant_matmul.linear_backward(grad, ctx.weight, turned=ctx.turned), None, None


put_tap = super(torch.autograd.Function, Tap).apply
put_linear_tap = super(torch.autograd.Function, LinearTap).apply
"""`apply` without what it does for `torch.func`: the recorder refuses a batch that is wrapped by it."""


def _gone(grad: Tensor) -> None:
    raise RuntimeError("backward ran a second time through the same graph; pass retain_graph=True the first time")


def unscaled(seed: Tensor, kind: str, declared: str | None, batch: int) -> Tensor:
    """Return what a gradient that arrives at a mean or sum over examples is for each of them, their number taken out.

    Where the caller divided by it (a sum, declared a mean), multiplying does not undo that to the last bit. The factor
    that the caller meant must not depend on how it was rounded for this number, so it must be a fraction that can be
    told from all others of its kind in spite of the rounding: see `simple_fraction`.
    """
    if declared is None or (declared == "mean") == (kind == "mean"):
        return seed
    factors, places = torch.unique(
        seed.double() * batch if declared == "mean" else seed.double() / batch, return_inverse=True
    )
    meant = [simple_fraction(factor, torch.finfo(seed.dtype).eps) for factor in factors.tolist()]
    return torch.tensor(meant, dtype=seed.dtype, device=seed.device)[places]


def simple_fraction(value: float, eps: float) -> float:
    """The p/q, times a power of two, that `value` is up to 2·eps; q² < 1/(16·eps), so that it is the only one.

    For float32 that is q ≤ 724: thirds, tenths, percents and most thousandths.
    """
    if value == 0 or not math.isfinite(value):
        return value
    fraction, exponent = math.frexp(value)
    found = float(Fraction(fraction).limit_denominator(math.isqrt(int(1 / (16 * eps)))))
    if abs(found - fraction) > 2 * eps:
        raise ValueError(
            "without the number of examples, by which the caller divided or multiplied, the losses have a factor that "
            "cannot be told from how that was rounded; take the mean or the sum of the losses by itself (loss.mean(), "
            "loss.sum()) and multiply that."
        )
    return math.ldexp(found, exponent)
