"""Parameters of which the model uses embeddings of constants, or rearrangements, get each example's own gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients
from tacit.gradients.factors.contribution import Dense
from tacit.gradients.factors.parameter_uses import Derived
from tacit.gradients.factors.pulled_back import pulled_back

B, T, H = 5, 4, 6


class Model(nn.Module):
    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.line = body, nn.Linear(H, H)
        self.table, self.padded = nn.Embedding(9, H), nn.Embedding(9, H, padding_idx=2)
        self.scale, self.matrix = nn.Parameter(torch.randn(H)), nn.Parameter(torch.randn(H, T))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(self.body(self, x)).sin()
        return out


MASK = (torch.arange(T * H).view(1, T, H) % 3) > 0
PLACES = torch.tensor([[3, 1, 3, 7]])
BODIES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "positions": lambda m, x: x * m.table(torch.arange(T)),
    "positions with a dimension for the batch": lambda m, x: x * m.table(PLACES),
    "one row twice": lambda m, x: x * m.table(PLACES) + m.table(PLACES.flip(1)),
    "a padding row": lambda m, x: x * m.padded(torch.tensor([2, 1, 2, 4])),
    "token types, a slot for each example": lambda m, x: x * m.table(PLACES.expand(B, T)[: len(x)]),
    "a turned table": lambda m, x: x * m.table(PLACES).permute(0, 2, 1).permute(0, 2, 1),
    "a relative bias": lambda m, x: x * m.table(torch.arange(T)).unsqueeze(0).clone(),
    "one and a weight": lambda m, x: x * (1 + m.scale),
    "a weight and twice a constant": lambda m, x: x * (m.scale + 2 * torch.ones(H).to(m.scale)),
    "a turned matrix": lambda m, x: x * (m.matrix + 1).permute(1, 0).unsqueeze(0),
    "a broadcast sum": lambda m, x: x * (m.scale + torch.ones(T, H).to(m.scale)),
    "a relative bias by an index": lambda m, x: x * m.table.weight[PLACES.view(-1)].view(1, T, H).permute(0, 1, 2),
    "rows counted from the last": lambda m, x: x * m.table.weight[torch.tensor([-1, 0, -9, 8])],
    "a mask over a relative bias": lambda m, x: x * torch.where(MASK, m.table(PLACES), -0.5).clone(),
    "a mask that takes the others": lambda m, x: x * torch.where(MASK, torch.ones(1, T, H), m.table(PLACES)),
    "a broadcast mask": lambda m, x: x * torch.where(MASK, m.scale.view(H, 1).permute(1, 0), 2.0),
    "a broadcast mask over a view": lambda m, x: x * torch.where(MASK, m.scale.view(1, H), 2.0).view(T, H),
    "something else on the way": lambda m, x: x * m.table(torch.arange(T)).exp(),
    "also a lookup by data": lambda m, x: x * m.table(torch.arange(T)) + m.table((x[..., 0] > 0).long()),
}


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_exact(name: str, agree: Any) -> None:
    agree(Model(BODIES[name]), torch.randn(B, T, H))


def test_gradient_hooks_of_a_parameter_are_not_called_for_examples() -> None:
    model = Model(BODIES["something else on the way"])
    kept, x = copy.deepcopy(model), torch.randn(B, T, H)
    called = list[Tensor]()
    model.table.weight.register_hook(lambda grad: called.append(grad) or 100 * grad)
    totals = []
    for each in (model, kept):
        with gradients.record(each) as tape:
            each(x).sum((1, 2)).mean().backward()
        totals.append(tape.norms())
    assert not called and torch.equal(*totals)


def test_an_embedding_of_constants_needs_no_pass_through_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *_: Any) -> None:
        raise AssertionError("Derived")

    monkeypatch.setattr(Derived, "__init__", refuse)
    for name in ("positions", "a padding row", "token types, a slot for each example", "one and a weight"):
        model = Model(BODIES[name])
        with gradients.record(model) as tape:
            model(torch.randn(B, T, H)).sum().backward()
        assert tape.norms().isfinite().all()


def test_other_graphs_are_left_to_autograd() -> None:
    weight = nn.Parameter(torch.randn(3, H))
    each = Dense(torch.randn(B, 3, H))
    assert pulled_back(weight * 2, each) is None
    assert pulled_back(weight + weight, each) is None
    assert pulled_back(torch.add(torch.ones(3, H), weight, alpha=2), each) is None
    assert pulled_back(weight[:1] + torch.ones(3, H), each) is None
    assert pulled_back(weight.double() + 1, each) is None
    table = torch.tensor([0, 1, 1])
    assert pulled_back(F.embedding(table, weight, scale_grad_by_freq=True), each) is None
