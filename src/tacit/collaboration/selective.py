"""Selective SGD for one party (Shokri & Shmatikov 2015, section 4): only the parameters that matter most move."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tacit.collaboration.messages import check_fraction, portion
from tacit.collaboration.selection import largest


class SelectiveSGD(torch.optim.Optimizer):
    """SGD that updates, in each step, only the ``fraction`` θ of all parameters with the largest gradients.

    "Largest" is by absolute value, over all tensors of all groups together; with θ = 1 it is plain SGD. Which
    parameters move depends on the records: this is no privacy mechanism.

    >>> weight = torch.nn.Parameter(torch.zeros(4))
    >>> optimizer = SelectiveSGD([weight], lr=1.0, fraction=0.5)
    >>> weight.grad = torch.tensor([1.0, -4.0, 2.0, 0.5])
    >>> optimizer.step()
    >>> weight.tolist()
    [0.0, 4.0, -2.0, 0.0]
    """

    def __init__(self, params: Iterable[Any], *, lr: float, fraction: float) -> None:
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr is {lr!r}; it must be a finite number above 0.")
        check_fraction("fraction", fraction)
        super().__init__(params, {"lr": lr})
        self.fraction = fraction

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; ``closure``, if given, computes the loss and the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pairs = [(p, p.grad, group["lr"]) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not pairs:
            return loss
        moves = self._largest([gradient for _, gradient, _ in pairs])
        for (parameter, gradient, rate), move in zip(pairs, moves, strict=True):
            parameter.add_(torch.where(move.view_as(gradient), gradient, 0.0), alpha=-rate)
        return loss

    def _largest(self, gradients: list[Tensor]) -> tuple[Tensor, ...]:
        """For each gradient a mask of what is among the largest of all."""
        sizes = torch.cat([gradient.abs().reshape(-1) for gradient in gradients])
        chosen = torch.zeros_like(sizes, dtype=torch.bool)
        places = largest(sizes.numpy(force=True), portion(self.fraction, sizes.numel()))
        chosen[torch.from_numpy(places).to(sizes.device)] = True
        return torch.split(chosen, [gradient.numel() for gradient in gradients])
