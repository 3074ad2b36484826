"""Several backward passes on one batch, and gradients with respect to the batch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 5


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(B, 4), torch.randint(0, 3, (B,))


def both(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y) + 2 * (out**2).sum(1).mean()


def test_two_losses_of_one_forward_pass(naive: Any, compare: Any) -> None:
    model, (x, y) = net(), data()
    each = naive(model, lambda i: both(model(x[i : i + 1]), y[i : i + 1]), B)
    with gradients.record(model, reduction="mean") as tape:
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        (2 * (out**2).sum(1).mean()).backward()
    compare(tape, each)


def test_two_losses_of_two_forward_passes_on_the_same_examples(naive: Any, compare: Any) -> None:
    model, (x, y) = net(), data()
    each = naive(model, lambda i: F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) + model(x[i]).square().sum(), B)
    with gradients.record(model) as tape:
        F.cross_entropy(model(x), y).backward()
        model(x).square().sum(1).mean().backward()
    compare(tape, each)


def test_norms_read_in_between_are_measured_again(naive: Any, compare: Any) -> None:
    model, (x, y) = net(), data()
    each = naive(model, lambda i: 3 * F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), B)
    with gradients.record(model) as tape:
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        first = tape.norms()
        loss.backward(retain_graph=True)
        loss.backward()
    compare(tape, each)
    torch.testing.assert_close(tape.norms(), 3 * first, rtol=1e-5, atol=1e-7)


def test_passes_that_reduce_differently_are_refused() -> None:
    model, (x, y) = net(), data()
    with gradients.record(model) as tape:
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.square().sum().backward()
        with pytest.raises(ValueError, match="one part of the loss is a mean and another a sum"):
            tape.norms()


def test_another_batch_before_the_sum_was_taken_is_refused() -> None:
    model = net()
    gradients.attach(model)
    model(torch.randn(B, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="not yet taken"):
        model(torch.randn(B + 1, 4))
    loss = model(torch.randn(B, 4)).sum()
    with pytest.raises(RuntimeError, match="another batch"):
        loss.backward()


def test_memory_that_was_filled_with_another_batch_is_another_batch() -> None:
    model, x = net(), torch.randn(B, 4)
    gradients.attach(model)
    model(x).sum().backward()
    x.copy_(torch.randn(B, 4))
    loss = model(x).sum()
    with pytest.raises(RuntimeError, match="another batch"):
        loss.backward()


def test_looking_at_another_batch_in_between_is_allowed(naive: Any, compare: Any) -> None:
    model, (x, y) = net(), data()
    each = naive(model, lambda i: F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), B)
    with gradients.record(model) as tape:
        F.cross_entropy(model(x), y).backward()
        model(torch.randn(B, 4))
    compare(tape, each)


@pytest.mark.parametrize(
    "ask", [lambda t: t.backward(create_graph=True), lambda t: torch.autograd.backward(t, create_graph=True)]
)
def test_gradients_of_gradients_are_refused(ask: Callable[[Tensor], None]) -> None:
    model = net()
    with gradients.record(model):
        loss = model(torch.randn(B, 4)).sum()
        with pytest.raises(ValueError, match="gradients of gradients"):
            ask(loss)


class Penalised(nn.Module):
    """A network whose loss contains the gradient of its output with respect to its input."""

    def __init__(self, create_graph: bool) -> None:
        super().__init__()
        self.net, self.create_graph = net(), create_graph

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True) if not x.requires_grad else x
            (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=self.create_graph)
        return self.net(x + 0.1 * slope.sign())


def test_a_gradient_penalty_is_refused() -> None:
    model = Penalised(create_graph=True)
    with pytest.raises(ValueError, match="gradients of gradients"), gradients.record(model):
        model(torch.randn(B, 4))


def test_adversarial_examples(agree: Callable[..., None]) -> None:
    """The inner gradient leaves no trace in the parameters' gradients, and belongs to the examples it was taken at."""
    agree(Penalised(create_graph=False), torch.randn(B, 4))


def test_gradients_with_respect_to_parameters_come_from_backward_only() -> None:
    model = net()
    with gradients.record(model):
        loss = model(torch.randn(B, 4)).sum()
        with pytest.raises(ValueError, match="not part of the batch"):
            torch.autograd.grad(loss, list(model.parameters()))


def test_a_gradient_that_mixes_examples_is_refused() -> None:
    class Mixing(Penalised):
        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_(True)
            out = self.net(x)
            (slope,) = torch.autograd.grad((out - out.mean(0)).square().sum(), x)
            return self.net(x + slope)

    model = Mixing(False)
    with pytest.raises(ValueError, match="no per-example gradients"), gradients.record(model):
        model(torch.randn(B, 4)).sum().backward()


def test_a_batch_that_was_measured_may_be_used_again() -> None:
    """Compiled loops read its memory without marking it as shared with an array, which others might write to."""
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 20, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(180, 300), nn.Linear(300, 2)
    model, x = nn.Sequential(*layers), torch.randn(7, 2, 8, 8)
    with gradients.record(model) as tape:
        model(x).square().sum().backward()
        wanted = tape.norms()
    assert x.untyped_storage().resizable()
    assert all(p.untyped_storage().resizable() for p in model.parameters())
    with gradients.record(model) as tape:
        for _ in range(2):
            model(x).square().sum().backward()
    assert torch.allclose(tape.norms(), 2 * wanted)
