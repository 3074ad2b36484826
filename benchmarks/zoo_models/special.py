"""Models with derivatives in the loss, custom autograd functions and reparametrised weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from zoo_models.cases import Batch, Case, entry
from zoo_models.plain import classify, pictures, rows

special = partial(entry, "special")

# -- double backward -------------------------------------------------------------------------------------------------


def smooth(inputs: int = 8, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs))


@special("gradient-penalty")
def gradient_penalty() -> Case:
    """WGAN-GP's penalty on the gradient with respect to the input, in the user's loop."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0].detach().requires_grad_(True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (out.squeeze(1) + 10 * (slope.norm(dim=1) - 1).square()).mean()

    return Case(smooth(), rows, loss, options={"isolate": True})


@special("physics-informed")
def physics() -> Case:
    """The residual of u'' + u = 0 at collocation points, taken in the user's loop."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0].detach().requires_grad_(True)
        u = model(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + u).square().mean()

    return Case(smooth(1), lambda s, g: (torch.randn(s, 1, generator=g),), loss, options={"isolate": True})


@special("physics-informed-model")
def physics_inside() -> Case:
    """The same residual inside the model's forward."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = smooth(2)

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_(True)
            u = self.net(x)
            (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
            return (second[:, 0] - first[:, 1] + u.squeeze(1)).square()

    return Case(Model(), lambda s, g: (torch.randn(s, 2, generator=g),), lambda m, b: m(b[0]).mean())


@special("energy-forces")
def forces() -> Case:
    """Forces as the derivative of a predicted energy, as in interatomic potentials."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = smooth(1, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_(True)
            apart = (x[:, :, None] - x[:, None, :]).square().sum(-1) + torch.eye(x.shape[1])
            energy = self.net(apart[..., None]).sum((1, 2, 3))
            (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
            return energy, -slope

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        energy, force = model(batch[0])
        return ((energy - batch[1]).square() + (force - batch[2]).square().sum((1, 2))).mean()

    def batch(size: int, generator: torch.Generator) -> Batch:
        draw = partial(torch.randn, generator=generator)
        return draw(size, 4, 3), draw(size), draw(size, 4, 3)

    return Case(Model(), batch, loss)


# -- custom autograd functions ---------------------------------------------------------------------------------------


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


class Round(torch.autograd.Function):
    """A straight-through estimate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-1, 1)


class OwnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x


class Apply(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


class OwnLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return OwnLinear.apply(x, self.weight)


special("custom-activation")(
    lambda: Case(nn.Sequential(nn.Linear(8, 16), Apply(Swish), nn.Linear(16, 3)), rows, classify)
)
special("straight-through")(
    lambda: Case(nn.Sequential(nn.Linear(8, 16), Apply(Round), nn.Linear(16, 3)), rows, classify)
)
special("custom-linear")(lambda: Case(nn.Sequential(OwnLayer(), nn.ReLU(), nn.Linear(16, 3)), rows, classify))


# -- reparametrised weights ------------------------------------------------------------------------------------------


@special("weight-norm")
def weight_norm() -> Case:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 3))
    return Case(model, rows, classify)


@special("weight-norm-conv")
def weight_norm_conv() -> Case:
    conv = parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
    return Case(nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(800, 3)), pictures, classify)


@special("spectral-norm")
def spectral_norm() -> Case:
    """The power iteration is run to its end beforehand, so that the oracle's passes leave the weight where it is."""
    layer = parametrizations.spectral_norm(nn.Linear(8, 16), n_power_iterations=1)
    for _ in range(300):
        layer(torch.zeros(1, 8))
    return Case(nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 3)), rows, classify)


@special("orthogonal")
def orthogonal() -> Case:
    layer = parametrizations.orthogonal(nn.Linear(8, 8))
    return Case(nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 3)), rows, classify)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


@special("own-parametrization")
def own_parametrization() -> Case:
    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return Case(nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 3)), rows, classify)


@special("standardised-weights")
def standardised() -> Case:
    class Conv(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            w = self.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
            return F.conv2d(x, w, self.bias, padding=1)

    model = nn.Sequential(Conv(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(8, 3))  # fmt: skip
    return Case(model, pictures, classify)
