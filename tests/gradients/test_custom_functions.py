"""Autograd functions that users write are followed forwards and backwards, by the batch rules of their operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients

B, WIDTH = 5, 4


class Ramp(torch.autograd.Function):
    """PyTorch's tutorial: a ReLU that writes into a copy of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad = grads[0].clone()
        grad[x < 0] = 0
        return grad


class Saturated(torch.autograd.Function):
    """Saves its output, keeps a number, and takes an argument that is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        out = (slope * x).tanh()
        ctx.save_for_backward(out)
        ctx.slope = slope
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return grads[0] * ctx.slope * (1 - out * out), None


class Rounded(torch.autograd.Function):
    """A straight-through estimator in the newer form."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = 0.5

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return ctx.factor * grads[0]


class Scores(torch.autograd.Function):
    """Two arguments, two outputs of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Any:
        found = q @ k.mT
        best = found.argmax(-1)
        ctx.save_for_backward(q, k)
        ctx.mark_non_differentiable(best)
        return found, best

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k = ctx.saved_tensors
        return grads[0] @ k, grads[0].mT @ q


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self._function = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._function(self.first(x)))


def _scored(h: Tensor) -> Tensor:
    found, best = Scores.apply(h, 2 * h)
    return found.softmax(-1) @ h + best.unsqueeze(-1)


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "ramp": lambda h: Ramp.apply(h),
    "saturated": lambda h: Saturated.apply(h, 1.5),
    "rounded": lambda h: Rounded.apply(h),
    "scores": _scored,
    "examples second": lambda h: Ramp.apply(h.transpose(0, 1)).transpose(0, 1),
}


@pytest.mark.parametrize("case", HONEST)
def test_a_custom_function_is_followed_and_exact(agree: Callable[..., None], case: str) -> None:
    model, x = Net(HONEST[case]), torch.randn(B, 5, 3)
    agree(model, x)
    engine = gradients.attach(model)
    model(x).square().mean().backward()
    assert engine.isolated == ()
    engine.detach()


def test_a_function_that_is_kept_by_its_apply_is_exact(agree: Callable[..., None]) -> None:
    """As PyTorch's tutorial keeps it; since 2.15 it runs one example at a time."""
    ramp = Ramp.apply
    agree(Net(lambda h: ramp(h)), torch.randn(B, 5, 3))


def _with_backward(backward: Callable[[Any, Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    own: Any = type("Own", (torch.autograd.Function,), members)
    return lambda h: own.apply(h)


def _unit(ctx: Any, grad: Tensor) -> Tensor:
    return grad / grad.norm()


def _centred(ctx: Any, grad: Tensor) -> Tensor:
    return grad - grad.mean(0)


def _exchanged(ctx: Any, grad: Tensor) -> Tensor:
    return grad.flip(0)


def _largest(ctx: Any, grad: Tensor) -> Tensor:
    return grad * float(ctx.saved_tensors[0].abs().max())


class _Centring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


@pytest.mark.parametrize("backward", [_unit, _centred, _exchanged, _largest])
def test_a_backward_that_mixes_examples_is_not_followed(
    backward: Any, naive: Any, compare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Alone, each example has a backward of its own: the whole model or module runs so, and nothing leaks."""
    model, x = Net(_with_backward(backward)), torch.randn(B, 5, 3)
    each = naive(model, lambda i: model(x[i : i + 1]).square().mean(), B)
    engine = gradients.attach(model)
    model(x).square().mean().backward()
    assert engine.isolated == ("",)
    assert "custom autograd function 'Own' cannot be followed" in caplog.text or "reads values" in caplog.text
    compare(engine, each)
    engine.detach()


@pytest.mark.usefixtures("without_isolation")
@pytest.mark.parametrize("backward", [_unit, _centred, _exchanged, _largest])
def test_without_a_plan_a_backward_that_mixes_examples_is_refused(backward: Any) -> None:
    model = Net(_with_backward(backward))
    with (
        pytest.raises((ValueError, RuntimeError), match=r"custom autograd function 'Own'|reads values"),
        gradients.record(model),
    ):
        model(torch.randn(B, 5, 3)).square().mean().backward()
    assert all(p.grad is None for p in model.parameters())


def test_a_forward_that_mixes_examples_is_refused() -> None:
    engine = gradients.attach(model := Net(lambda h: _Centring.apply(h)))
    with pytest.raises(ValueError):
        model(torch.randn(B, 5, 3)).square().mean().backward()
    engine.detach()


def test_a_backward_that_changes_in_a_later_batch_is_refused() -> None:
    mixes = []
    model = Net(_with_backward(lambda ctx, grad: grad - grad.mean(0) if mixes else grad))
    engine = gradients.attach(model)
    model(torch.randn(B, 5, 3)).square().mean().backward()
    engine.discard()
    mixes.append(True)
    with pytest.raises(ValueError, match="backward returns a gradient"):
        model(torch.randn(B, 5, 3)).square().mean().backward()
    engine.detach()


def test_a_custom_function_of_a_weight_is_exact(agree: Callable[..., None]) -> None:
    """Training with rounded weights: no gradient of a batch passes through the function."""

    class Quantised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, Rounded.apply(self.weight), self.bias)

    agree(nn.Sequential(Quantised(3, WIDTH), nn.Tanh(), Quantised(WIDTH, 2)), torch.randn(B, 3))


def test_custom_functions_are_as_they_were_outside_of_followed_passes() -> None:
    engine = gradients.attach(model := Net(HONEST["ramp"]))
    model(torch.randn(B, 5, 3)).square().mean().backward()
    x = torch.randn(3, requires_grad=True)
    out = Ramp.apply(x)
    assert type(out.grad_fn).__name__ == "RampBackward"
    out.sum().backward()
    assert torch.equal(x.grad, (x > 0).float())
    engine.detach()
