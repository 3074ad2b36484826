"""Modules that mean something else alone give way to the module around them, which is exact, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients
from tacit.gradients.guard import batch_rules
from tacit.gradients.guard.standing_still import Still

B = 6
WIDTH = 4


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grads[0]


class Gate(nn.Module):
    """Picks an expert for each row with Gumbel noise, and reads values."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        chosen = (scores - torch.empty_like(scores).exponential_().log()).argmax(-1, keepdim=True)
        found = torch.zeros_like(scores).scatter(-1, chosen, Square.apply(scores.softmax(-1).gather(-1, chosen)))
        return found * float(x.isfinite().all())


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(3, WIDTH), Gate(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gate(self.first(x)))


@pytest.mark.parametrize("seed", range(3))
def test_a_router_with_gumbel_noise_is_isolated_and_exact(naive: Any, compare: Any, seed: int) -> None:
    """Noise that differs between the runs that are compared says nothing about mixing."""
    torch.manual_seed(seed)
    model, x = Gated(), torch.randn(B, 5, 3)
    with Still():
        each = naive(model, lambda i: model(x[i : i + 1]).square().mean(), B)
        engine = gradients.attach(model)
        model(x).square().mean().backward()
        compare(engine, each)
    engine.discard()
    model(x).square().mean().backward()
    assert engine.norms().isfinite().all()
    assert engine.isolated == ("gate",)
    engine.detach()


class Sorting(nn.Module):
    """Returns all tokens of the batch, sorted by their expert, and how many each expert has."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, 2)

    def forward(self, rows: Tensor) -> tuple[Tensor, list[int]]:
        chosen = self.scores(rows).argmax(1)
        order = chosen.argsort(stable=True)
        return order, [int(n) for n in torch.bincount(chosen, minlength=2).tolist()]


class Sorted(nn.Module):
    """Experts on tokens that are sorted over the whole batch, and put back: alone and together it is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Sorting(), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        rows = h.reshape(-1, WIDTH)
        order, sizes = self.router(rows)
        parts = [expert(part) for expert, part in zip(self.experts, rows[order].split(sizes))]
        return torch.zeros_like(rows).index_add(0, order, torch.cat(parts)).view_as(h)


class Experts(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, WIDTH), middle, nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)).tanh())


def test_a_router_that_sorts_the_tokens_of_all_examples_gives_way_to_the_module_around_it(
    naive: Any, compare: Any
) -> None:
    model, x = Experts(Sorted()), torch.randn(B, 5, 3)
    each = naive(model, lambda i: model(x[i : i + 1]).square().mean(), B)
    engine = gradients.attach(model)
    model(x).square().mean().backward()
    compare(engine, each)
    assert engine.isolated == ("middle",)
    engine.detach()


class Crowded(Sorted):
    """Its experts have room for few tokens of the whole batch: an example's output depends on the others."""

    def forward(self, h: Tensor) -> Tensor:
        rows = h.reshape(-1, WIDTH)
        order, sizes = self.router(rows)
        kept = [part[:2] for part in order.split(sizes)]
        parts = [expert(rows[places]) for expert, places in zip(self.experts, kept)]
        return torch.zeros_like(rows).index_add(0, torch.cat(kept), torch.cat(parts)).view_as(h)


class ClosedGate(Crowded):
    """The same behind a gate that begins at zero: the first outputs do not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.open = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.open * super().forward(h)


class MeanGate(nn.Module):
    """A mean over all examples behind a gate that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.open = nn.Parameter(torch.zeros(1))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.open * h.mean(0)


class CentredGate(Gate):
    """A custom function of what is left of the mean over all examples."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x - x.mean((0, 1)) * float(x.isfinite().all())), x[..., :1]], -1)


@pytest.mark.parametrize("middle", [Crowded, ClosedGate, MeanGate, CentredGate])
def test_routers_that_combine_examples_stay_refused(middle: type[nn.Module]) -> None:
    engine = gradients.attach(model := Experts(middle()))
    with pytest.raises((ValueError, RuntimeError)):
        model(torch.randn(B, 5, 3)).square().mean().backward()
    engine.detach()


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] * w, (grads[0] * x).flatten(0, -2).sum(0) if x.ndim > 1 else grads[0] * x


class Scaled(nn.Module):
    """A custom autograd function of a parameter in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Times.apply(x, self.scale)


class Placed(nn.Module):
    """Uses it on a learned table, which has no examples, and on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.changed = nn.Parameter(torch.randn(5, WIDTH)), Scaled()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return self.line(self.changed(h) + self.changed(self.table))


def test_a_custom_function_that_is_given_parameters_is_isolated_with_the_module_around_it(
    naive: Any, compare: Any
) -> None:
    model, x = Experts(Placed()), torch.randn(B, 5, 3)
    each = naive(model, lambda i: model(x[i : i + 1]).square().mean(), B)
    engine = gradients.attach(model)
    model(x).square().mean().backward()
    compare(engine, each)
    assert engine.isolated == ("middle",)
    engine.detach()


def test_a_mistake_of_the_engine_is_not_hidden_by_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be hidden here: the plan alone follows seven examples of the eight."""
    scope: dict[str, Any] = {"__name__": "tacit.gradients.guard.broken", "propagate": batch_rules.propagate}
    exec("def broken(call): return call.nothing if call.batch == 7 else propagate(call)", scope)
    monkeypatch.setattr("tacit.gradients.guard.guard.propagate", scope["broken"])
    engine = gradients.attach(model := Experts(nn.Linear(WIDTH, WIDTH)))
    with pytest.raises(AttributeError, match="nothing"):
        model(torch.randn(8, 5, 3)).sum(-1).sum().backward()
    engine.detach()


class Tasks(nn.Module):
    """Two tasks whose losses are weighted by learned uncertainties."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.log_vars = nn.Linear(3, 4), nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.line(x)
        return out[:, :3], out[:, 3]


def _weighted(model: Tasks, x: Tensor, y: Tensor, reduction: str) -> Tensor:
    """The loss of two tasks, each divided by a learned variance."""
    scores, value = model(x)
    losses = F.cross_entropy(scores, y, reduction=reduction), F.mse_loss(value, x[:, 0], reduction=reduction)
    return torch.stack([torch.exp(-s) * loss + s for s, loss in zip(model.log_vars, losses)]).sum(0).mean()


def test_a_learned_factor_of_the_loss_is_exact_before_the_mean(naive: Any, compare: Any) -> None:
    model, x, y = Tasks(), torch.randn(B, 3), torch.randint(0, 3, (B,))
    each = naive(model, lambda i: _weighted(model, x[i : i + 1], y[i : i + 1], "none"), B)
    engine = gradients.attach(model)
    _weighted(model, x, y, "none").backward()
    compare(engine, each)
    engine.detach()


def test_a_learned_factor_of_the_mean_names_the_remedy() -> None:
    engine = gradients.attach(model := Tasks())
    x, y = torch.randn(B, 3), torch.randint(0, 3, (B,))
    with pytest.raises(ValueError, match=r"computed from parameters.*scale before the mean: .*reduction='none'"):
        _weighted(model, x, y, "mean").backward()
    engine.detach()


class Euler(nn.Module):
    """Integrates from one of some times to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(2, 2)

    def forward(self, y: Tensor, times: Tensor) -> Tensor:
        for step in times[1:] - times[:-1]:
            y = y + step * self.slope(y)
        return y


@pytest.mark.parametrize("size", [5, 7])
def test_an_argument_without_examples_is_named_with_the_remedy(naive: Any, compare: Any, size: int) -> None:
    model, y, times = Euler(), torch.randn(size, 2), torch.linspace(0, 1, 5)
    engine = gradients.attach(model)
    with pytest.raises(ValueError, match=r"batch_dim=\{'(times|argument)': None\}"):
        model(y, times).square().mean().backward()
    engine.detach()
    each = naive(model, lambda i: model(y[i : i + 1], times).square().mean(), size)
    engine = gradients.attach(model, batch_dim={"times": None})
    model(y, times).square().mean().backward()
    compare(engine, each)
    engine.detach()
