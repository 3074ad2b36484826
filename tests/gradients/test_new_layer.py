"""The layer rule that CONTRIBUTING shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.factors.contribution import Dense, own_sums
from tacit.gradients.layers.generic import finish
from tacit.gradients.layers.registry import OPERATIONS, RULES, bare, bound, layout_of, operation, rule_of_one
from tacit.gradients.layout import by_example
from tacit.gradients.traced import plain

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
NAME = "linalg_cross"
USED = (torch, Dense, own_sums, finish, bare, bound, layout_of, operation, rule_of_one, by_example, plain)


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.line = nn.Parameter(torch.rand(1, 1, 3)), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.cross(self.line(x), self.weight)


def test_the_example_of_a_layer_rule_is_exact(agree: Any, monkeypatch: Any) -> None:
    (code,) = re.findall(r"```python\n(@operation.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    for registered in (OPERATIONS, RULES):
        monkeypatch.setitem(registered, NAME, None)  # undone afterwards
    exec(code, {used.__name__: used for used in USED})
    seen: list[str] = []
    rule = OPERATIONS[NAME]
    monkeypatch.setitem(OPERATIONS, NAME, lambda *given: seen.append(NAME) or rule(*given))
    agree(Crossed(), torch.randn(5, 6, 2))
    assert seen
