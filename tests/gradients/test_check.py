"""Finding, before training, what no single operation shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients


class Run(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 3), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.function(self, x)


GOOD: dict[str, Callable[..., Any]] = {
    "plain": lambda m, x: m.linear(x),
    "dropout": lambda m, x: {"out": m.dropout(m.linear(x)), "size": x.shape[0]},
    "random": lambda m, x: m.linear(x) + torch.randn(3),
    "branches on the shape": lambda m, x: m.linear(x) if x.ndim == 2 else None,
}
BAD: dict[str, Callable[..., Any]] = {
    "scaled by a number taken out of the batch": lambda m, x: m.linear(x) * float(x.max()),
    "branches on other examples": lambda m, x: m.linear(x) if x.sum().item() > 1e9 or len(x) == 1 else -m.linear(x),
    "divided by the number of examples": lambda m, x: m.linear(x) / len(x),
    "an ordinary mixing operation": lambda m, x: m.linear(x - x.mean(0)),
}


@pytest.mark.parametrize("name", list(GOOD))
def test_models_without_problems(name: str) -> None:
    model = Run(GOOD[name])
    state = torch.random.get_rng_state()
    gradients.check(model, torch.randn(5, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert float(model.calls) == 0
    assert not model._forward_hooks
    assert type(model(torch.randn(2, 4))) is not None


@pytest.mark.parametrize("name", list(BAD))
def test_models_that_mix_out_of_sight(name: str) -> None:
    with pytest.raises(ValueError, match="no per-example gradients"):
        gradients.check(Run(BAD[name]), torch.randn(5, 4))


def test_time_major_inputs() -> None:
    gradients.check(nn.LSTM(3, 4, num_layers=2, dropout=0.5), torch.randn(6, 5, 3), batch_dim=1)
    with pytest.raises(ValueError, match="dimension"):
        gradients.check(nn.LSTM(3, 4), torch.randn(6, 5, 3))
