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


@pytest.mark.usefixtures("without_isolation")
def test_a_gradient_penalty_without_isolation_is_refused() -> None:
    model = Penalised(create_graph=True)
    with pytest.raises(ValueError, match="gradients of gradients"), gradients.record(model):
        model(torch.randn(B, 4))


def test_a_gradient_penalty_inside_the_model(agree: Callable[..., None]) -> None:
    agree(Penalised(create_graph=True), torch.randn(B, 4))


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


class Between(nn.Module):
    """Two linear maps, and what lies between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.between: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.between = [self.first(x)]
        return self.second(self.between[0])


def test_writing_to_a_linear_maps_input_before_its_gradient_arrives_is_refused() -> None:
    model, x = Between(), torch.randn(B, 4)
    with gradients.record(model):
        loss = model(x).square().sum()
        with torch.no_grad():
            model.between[0].as_subclass(Tensor).add_(1.0)
        with pytest.raises(RuntimeError, match="modified in place"):
            loss.backward()


def test_a_weight_must_not_be_written_to_where_a_gradient_has_to_pass_it() -> None:
    model, x = Between(), torch.randn(B, 4)
    with gradients.record(model):
        loss = model(x).square().sum()
        with torch.no_grad():
            model.second.weight.mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with gradients.record(model) as tape:
        loss = model(x).square().sum()
        with torch.no_grad():
            model.first.weight.mul_(2.0)  # which no gradient passes: nothing below it needs one
        loss.backward()
    assert tape.norms().isfinite().all()


def test_a_graph_that_is_gone_is_not_captured_a_second_time() -> None:
    model, x = nn.Linear(4, 3), torch.randn(B, 4)
    with gradients.record(model):
        loss = model(x).sum()  # for which PyTorch itself keeps nothing
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_linear_maps_under_autocast(naive: Any) -> None:
    """In bfloat16 as PyTorch computes them, gradients that pass through a map included."""
    torch.manual_seed(0)
    model, (x, y) = net(), data()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return F.cross_entropy(out.float(), y)

    each = naive(model, lambda i: loss(x[i : i + 1], y[i : i + 1]), B)
    with gradients.record(model) as tape:
        loss(x, y).backward()
    wanted = torch.stack([torch.cat([g[i].flatten() for g in each.values()]).norm() for i in range(B)])
    torch.testing.assert_close(tape.norms(), wanted, rtol=0.03, atol=1e-3)


@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_that_meet_at_an_input_are_added_up(naive: Any, compare: Any, frozen: bool) -> None:
    """Trained and frozen maps of one input, and a look at what arrives there."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.head = nn.Linear(4, 16), nn.Linear(16, 2)
            self.one, self.two, self.three = (nn.Linear(16, 16) for _ in range(3))
            self.two.requires_grad_(not frozen)

        def forward(self, x: Tensor) -> Tensor:
            h = self.below(x)
            if h.requires_grad and h.shape[0] > 1:
                h.retain_grad()
            return self.head(self.one(h) + self.two(h).tanh() + self.three(h) * h)

    torch.manual_seed(0)
    model, x = Branching(), torch.randn(33, 7, 4)
    each = naive(model, lambda i: model(x[i : i + 1]).square().sum(), 33)
    with gradients.record(model) as tape:
        model(x).square().sum().backward()
    compare(tape, each)


@pytest.mark.parametrize(
    ("weight", "bias"), [((3, 4), ()), ((3, 4), (1,)), ((3, 4), (3,)), ((3, 4), None), ((4,), None)], ids=str
)
def test_weights_and_biases_of_other_dimensions(naive: Any, compare: Any, weight: Any, bias: Any) -> None:
    """PyTorch takes them too: a bias that is spread over the outputs has the sum of their gradients."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(weight))
            self.bias = nn.Parameter(torch.randn(bias)) if bias is not None else None

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight, self.bias)

    torch.manual_seed(0)
    model, x = Model(), torch.randn(B, 4)
    each = naive(model, lambda i: model(x[i : i + 1]).square().sum(), B)
    with gradients.record(model) as tape:
        model(x).square().sum().backward()
    compare(tape, each)


class Turned(nn.Module):
    """A linear map at several positions, with few outputs or with many."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(24, 24), nn.LayerNorm(24), nn.Linear(24, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).tanh())


@pytest.mark.parametrize("positions", [1, 4, 30])
@pytest.mark.parametrize("width", [1, 5, 24])
@pytest.mark.parametrize("where", ["backward", "sum"])
def test_gradients_norms_and_sums_are_not_rounded_to_half_precision(where: str, width: int, positions: int) -> None:
    """Called within autocast, after a forward pass without: each product of factors would lose 16 of its 24 bits."""
    torch.manual_seed(0)
    model, x = Turned(width), torch.randn(20, positions, 24)

    def found(mixed: str) -> list[Tensor]:
        with gradients.record(model) as tape:
            loss = model(x).square().sum()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed == "backward"):
                loss.backward()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed == "sum"):
                return [*tape.clipped_sum(Halved()).values(), tape.norms()]

    for own, wanted in zip(found(where), found(""), strict=True):
        assert torch.equal(own, wanted)


class Halved:
    def partition(self, shapes: Any) -> Any:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return torch.full_like(norms, 0.5)


def test_maxima_of_a_batch_may_be_used_again() -> None:
    """Found before the model is called: their memory is nobody else's."""
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(32, 2)), torch.randn(7, 2, 8, 8)
    engine = gradients.attach(model)
    pooled = F.max_pool2d(engine.trace(x, 7), 2)
    assert pooled.as_subclass(Tensor).untyped_storage().resizable()
    for _ in range(2):
        model(pooled).square().sum().backward()
    assert engine.norms().isfinite().all()
    engine.detach()
