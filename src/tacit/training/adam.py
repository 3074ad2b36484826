"""Adam for noisy gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class AdamBC(torch.optim.Optimizer):
    """Adam that subtracts the noise's variance from its second moment (Tang, Shpilevskiy & Lécuyer 2024).

    The squared noisy gradient estimates g² plus the variance of the noise. That variance is public: a private run
    hands it to the optimizer at each step, the optimizer subtracts it, and the difference is at least ``floor``².
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 <= lr < float("inf") or not 0 < floor < float("inf"):
            raise ValueError(f"lr is {lr!r} and floor is {floor!r}; they must be finite, lr at least 0, floor above 0.")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {betas!r}; both must be in [0, 1).")
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor, "weight_decay": weight_decay})
        self._noise: dict[Tensor, float] = {}

    def expect_noise(self, stds: Mapping[Tensor, float]) -> None:
        """The standard deviation of the noise on each parameter's gradient in the step to come."""
        self._noise = dict(stds)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"], state["noise"] = 0, 0.0
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        first, second = group["betas"]
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        state["noise"] = second * state["noise"] + (1 - second) * self._noise.get(parameter, 0.0) ** 2
        correction = 1 - second ** state["step"]
        square = (state["square"] - state["noise"]).div_(correction).clamp_(min=group["floor"] ** 2)
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["mean"], square.sqrt_(), value=-group["lr"] / (1 - first ** state["step"]))
