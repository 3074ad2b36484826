"""Custom autograd functions, penalties and reparametrised weights, as papers and tutorials write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case
from zoo_models.plain import classify, mlp, pictures, rows, sequences
from zoo_models.stranger_nets import stranger


class Reversal(torch.autograd.Function):
    """Ganin and Lempitsky: the domain's gradient turns round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].neg() * ctx.strength, None


class Adversarial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.label, self.domain = mlp(8, 16), mlp(16), mlp(16, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.features(x)
        return self.label(h), self.domain(Reversal.apply(h, 0.7))


def adapt(model: nn.Module, batch: Batch) -> Tensor:
    label, domain = model(batch[0])
    return F.cross_entropy(label, batch[1]) + F.cross_entropy(domain, batch[1] % 2)


class Spike(torch.autograd.Function):
    """A spike forwards, the slope of a fast sigmoid backwards."""

    @staticmethod
    def forward(ctx: Any, potential: Tensor) -> Tensor:
        ctx.save_for_backward(potential)
        return (potential > 0).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (potential,) = ctx.saved_tensors
        return grads[0] / (10 * potential.abs() + 1) ** 2


class Spiking(nn.Module):
    """Leaky integrate-and-fire neurons over time, as snnTorch's tutorial."""

    spike = Spike.apply

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        potential = torch.zeros(len(x), 16, device=x.device)
        total = torch.zeros(len(x), 3, device=x.device)
        for step in range(x.shape[1]):
            potential = 0.9 * potential + self.first(x[:, step])
            spikes = self.spike(potential - 0.2)
            potential = potential - 0.2 * spikes
            total = total + self.second(spikes)
        return total


class Sparsemax(torch.autograd.Function):
    """Martins and Astudillo: the projection onto the simplex, with its own backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ordered = torch.sort(z, dim=-1, descending=True).values
        ranks = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        sums = ordered.cumsum(-1) - 1
        size = (ranks * ordered > sums).sum(-1, keepdim=True)
        out = torch.clamp(z - sums.gather(-1, size - 1) / size, min=0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        inside = (out > 0).to(out.dtype)
        mean = (grads[0] * inside).sum(-1, keepdim=True) / inside.sum(-1, keepdim=True)
        return inside * (grads[0] - mean)


class Selective(nn.Module):
    """TabNet's feature selection, in two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.steps = nn.ModuleList(nn.Linear(8, 6) for _ in range(2))
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        prior, out = torch.ones_like(x), 0
        for mask, step in zip(self.masks, self.steps):
            chosen = Sparsemax.apply(mask(x) * prior)
            prior = prior * (1.3 - chosen)
            out = out + F.glu(step(chosen * x), dim=-1)
        return self.head(out)


class Step(torch.autograd.Function):
    """LSQ: a learned step size, whose gradient the function adds up itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(x, step)
        return (x / step).clamp(-4, 3).round() * step

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, step = ctx.saved_tensors
        q = x / step
        inside = ((q >= -4) & (q <= 3)).to(x.dtype)
        slope = inside * (q.round() - q) + (1 - inside) * q.clamp(-4, 3)
        return grads[0] * inside, (grads[0] * slope).sum().unsqueeze(0)


class StepWeights(nn.Linear):
    """Quantisation of the weights alone: no gradient of the batch goes through the function."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.step = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, Step.apply(self.weight, self.step), self.bias)


class StepInputs(StepWeights):
    """Quantisation of the activations too, by a learned step."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(Step.apply(x, self.step))


class Codebook(nn.Module):
    """VQ-VAE with the straight-through estimator and both of its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode, self.codes = mlp(8, 6), mlp(6, 8), nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x).view(-1, 2, 3)
        far = z.pow(2).sum(-1, keepdim=True) - 2 * z @ self.codes.weight.T + self.codes.weight.pow(2).sum(-1)
        chosen = self.codes(far.argmin(-1))
        apart = (chosen.detach() - z).pow(2).mean((1, 2)) + 0.25 * (chosen - z.detach()).pow(2).mean((1, 2))
        return self.decode((z + (chosen - z).detach()).flatten(1)), apart


def quantised(model: nn.Module, batch: Batch) -> Tensor:
    found, apart = model(batch[0])
    return F.mse_loss(found, batch[0]) + apart.mean()


class StandardisedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.flatten(1).std(dim=1).view(-1, 1, 1, 1) + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


def ridge(model: nn.Module, batch: Batch) -> Tensor:
    """The penalty of a course's first exercise."""
    return classify(model, batch) + 1e-2 * sum(p.pow(2.0).sum() for p in model.parameters())


def lasso(model: nn.Module, batch: Batch) -> Tensor:
    return (
        F.cross_entropy(model(batch[0]), batch[1])
        + 0.01 * torch.cat([p.view(-1) for p in model.parameters()]).abs().sum()
    )


class Variational(nn.Module):
    """Weights with a mean and a spread, as Bayes by Backprop; the model returns its loss with the divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.raw = nn.Parameter(torch.randn(3, 8) * 0.3), nn.Parameter(torch.full((3, 8), -3.0))
        self.register_buffer("noise", torch.randn(3, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        spread = F.softplus(self.raw)
        loss = F.cross_entropy(F.linear(x, self.mean + spread * self.noise), y)
        divergence = (0.5 * (spread**2 + self.mean**2 - 1) - spread.log()).sum()
        return loss + divergence / 600


class Orthogonal(nn.Module):
    """A regulariser on a layer's Gram matrix, added to the loss inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits, weight = self.net(x), self.net[0].weight
        loss = F.cross_entropy(logits, y)
        loss += 0.1 * torch.norm(weight.T @ weight - torch.eye(8))
        return {"loss": loss, "logits": logits}


stranger("gradient-reversal")(lambda: Case(Adversarial(), rows, adapt))
stranger("spiking-neurons")(lambda: Case(Spiking(), sequences, classify))
stranger("sparsemax-selection")(lambda: Case(Selective(), rows, classify))
stranger("quantised-weights")(
    lambda: Case(nn.Sequential(StepWeights(8, 16), nn.ReLU(), StepWeights(16, 3)), rows, classify)
)
stranger("quantised-activations")(
    lambda: Case(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), StepInputs(16, 3)), rows, classify)
)
stranger("vector-quantised")(lambda: Case(Codebook(), rows, quantised))
stranger("weight-standardisation")(
    lambda: Case(
        nn.Sequential(
            StandardisedConv(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        pictures,
        classify,
    )
)
stranger("ridge")(lambda: Case(mlp(), rows, ridge))
stranger("lasso")(lambda: Case(mlp(), rows, lasso))
stranger("bayes-by-backprop")(lambda: Case(Variational(), rows, lambda m, b: m(*b)))
stranger("orthogonal-penalty")(lambda: Case(Orthogonal(), rows, lambda m, b: m(*b)["loss"]))
