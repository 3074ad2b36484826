"""The average of the weights over the steps: computed from weights that are released, so it costs nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tacit.recipes.recipe import Ema, Tail


class Average:
    """The weights to evaluate and to save: averaged, or with no ``kind`` the current ones."""

    def __init__(self, kind: Tail | Ema | None, model: nn.Module, steps: int) -> None:
        self._kind, self._model, self._steps = kind, model, steps
        self._mean = {name: value.detach().clone() for name, value in model.named_parameters()} if kind else {}

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take in the weights after ``step``."""
        if self._kind is None:
            return
        share = self._kind.share(step, self._steps)
        for name, value in self._model.named_parameters():
            self._mean[name].lerp_(value, share)

    def weights(self) -> dict[str, Tensor]:
        """The whole state of the model, with the averaged weights in it."""
        return {name: value.detach().clone() for name, value in self._model.state_dict().items()} | self._mean

    def state(self) -> dict[str, Tensor]:
        return self._mean

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if set(state) != set(self._mean):
            raise ValueError(f"the saved average has {sorted(state)}; this model has {sorted(self._mean)}.")
        for name, value in state.items():
            self._mean[name].copy_(value)
