"""The node behind a trainable operation at which its output's gradient arrives."""

from __future__ import annotations

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
