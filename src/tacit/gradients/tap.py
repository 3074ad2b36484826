"""The engine's own nodes in the graph: behind a trainable operation, and behind a mean over examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Tap(torch.autograd.Function):
    """A node of its own behind a trainable operation, through which every gradient of its output must pass.

    A hook on the output would be passed by: many operations return views, and an in-place change of a view reroutes
    the graph around the view's own node. The anchor gives the first trainable operation a graph to begin with, and
    marks whatever is computed from here as data.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, out: Tensor, arrived: Callable[[Tensor], None]) -> Tensor:
        ctx.arrived = arrived
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        arrived = ctx.arrived
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.arrived = _gone  # what it holds is freed now, as autograd frees its own saved tensors
        arrived(grads[0])
        return None, grads[0], None


def _gone(grad: Tensor) -> None:
    raise RuntimeError("backward ran a second time through the same graph; pass retain_graph=True the first time")


class Average(torch.autograd.Function):
    """A mean over examples and perhaps more; back goes what a mean over one example's `own` entries would send."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: list[int], keepdim: bool, dtype: torch.dtype | None, own: int) -> Tensor:
        ctx.of, ctx.dims, ctx.keepdim, ctx.own, ctx.dtype = x.shape, dims, keepdim, own, x.dtype
        return x.mean(dims, keepdim=keepdim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].to(ctx.dtype) / ctx.own
        if not ctx.keepdim:
            for d in sorted(ctx.dims):
                grad = grad.unsqueeze(d)
        return grad.expand(ctx.of), None, None, None, None


def unscaled(seed: Tensor, kind: str, declared: str | None, batch: int) -> Tensor:
    """What a gradient that arrives at a mean or sum over examples is for each of them, their number taken out.

    Where the caller divided by it (a sum, declared a mean), multiplying does not always undo that to the last bit; so
    the product is taken to four bits less than the type has.
    """
    if declared is None or batch == 1 or (declared == "mean") == (kind == "mean"):
        return seed
    fraction, exponent = torch.frexp((seed * batch if declared == "mean" else seed / batch).double())
    bits = 2.0 ** (-4 - math.log2(torch.finfo(seed.dtype).eps))
    return torch.ldexp((fraction * bits).round_() / bits, exponent).to(seed.dtype)
