"""The layer rule that CONTRIBUTING shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients.layers.registry import OPERATIONS, RULES, rule

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
NAME = "linalg_vecdot"


class Projected(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.weight, self.line, self.how = nn.Parameter(torch.rand(3)), nn.Linear(2, 3), how

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.vecdot(self.line(x), self.weight, **self.how)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The example's rules in place, and the calls of its gradient rule."""
    assert NAME not in OPERATIONS and NAME not in RULES, "show another operation: the engine has a rule for this one"
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    for registered in (OPERATIONS, RULES):
        monkeypatch.setitem(registered, NAME, None)  # undone afterwards
        del registered[NAME]
    exec(code, {})
    calls: list[str] = []
    found = OPERATIONS[NAME]
    monkeypatch.setitem(OPERATIONS, NAME, lambda *given: calls.append(NAME) or found(*given))
    return calls


@pytest.mark.parametrize("how", [{}, {"dim": -1}])
def test_the_example_of_a_layer_rule_is_exact(agree: Any, seen: list[str], how: dict[str, Any]) -> None:
    agree(Projected(**how), torch.randn(5, 6, 2))
    agree(Projected(**how), torch.randn(5, 2, 4, 2))
    assert seen


def test_a_second_batch_rule_of_one_operation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"amax has a batch rule already, in tacit\.gradients\.guard\.reductions"):
        rule("amax")(lambda call: None)


class Crossed(nn.Module):
    def __init__(self, dim: int, constant: bool) -> None:
        super().__init__()
        self.left, self.dim = nn.Linear(3, 3), dim
        self.right = None if constant else nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        other = x.new_ones(1, 3, 3).cumsum(-1) if self.right is None else self.right(x)
        return torch.linalg.cross(self.left(x), other, dim=self.dim)


@pytest.mark.parametrize(("dim", "constant"), [(-1, False), (1, False), (2, True), (1, True)])
def test_cross_products_of_data_are_followed(agree: Any, dim: int, constant: bool) -> None:
    model = Crossed(dim, constant)
    agree(model, torch.randn(5, 3, 3))
    engine = gradients.attach(model)
    model(torch.randn(5, 3, 3)).square().sum().backward()
    assert not engine.isolated
    engine.detach()


def test_a_cross_product_over_the_batch_is_refused() -> None:
    model = Crossed(0, constant=False)
    with pytest.raises(ValueError, match="`linalg_cross` works across examples"), gradients.record(model):
        model(torch.randn(3, 3, 3)).square().sum().backward()
