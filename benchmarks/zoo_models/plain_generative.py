"""Generative models and policies in plain PyTorch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case
from zoo_models.plain import mlp, plain, rows


@plain("vae-distributions")
def vae() -> Case:
    """`torch.distributions` with argument validation; the noise comes with the batch, so that the oracle repeats it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(8, 8), mlp(4, 8)

        def forward(self, x: Tensor, noise: Tensor) -> Tensor:
            mean, spread = self.encode(x).chunk(2, 1)
            posterior = distributions.Normal(mean, F.softplus(spread) + 1e-3, validate_args=True)
            prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean), validate_args=True)
            z = posterior.loc + posterior.scale * noise
            seen = distributions.Normal(self.decode(z), 1.0, validate_args=True).log_prob(x).sum(1)
            return seen - distributions.kl_divergence(posterior, prior).sum(1)

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 8, generator=generator), torch.randn(size, 4, generator=generator)

    return Case(Model(), batch, lambda m, b: -m(*b).mean())


@plain("mixture-density")
def mixture_density() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(8, 9)

        def forward(self, x: Tensor) -> Any:
            weight, mean, spread = self.net(x).chunk(3, 1)
            parts = distributions.Normal(mean, spread.exp())
            return distributions.MixtureSameFamily(distributions.Categorical(logits=weight), parts)

    return Case(Model(), rows, lambda m, b: -m(b[0]).log_prob(b[1].float()).mean())


@plain("policy-gradient")
def policy() -> Case:
    """Actor and critic with an entropy bonus."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.body(x).tanh()
            return self.actor(h), self.critic(h).squeeze(1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, value = model(batch[0])
        chosen = distributions.Categorical(logits=logits)
        advantage = batch[0].sum(1) - value
        actor = -chosen.log_prob(batch[1]) * advantage.detach()
        return (actor + 0.5 * advantage.square() - 0.01 * chosen.entropy()).mean()

    return Case(Model(), rows, loss)


@plain("diffusion")
def diffusion() -> Case:
    """DDPM's noise prediction with a time for each example."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.net = nn.Linear(8, 16), nn.Conv2d(3, 16, 3, padding=1)
            self.norm, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 3, 3, padding=1)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            angle = t[:, None].float() * torch.exp(-math.log(100.0) * torch.arange(4) / 4)
            scale = self.time(torch.cat([angle.sin(), angle.cos()], 1))
            return self.out(F.silu(self.norm(self.net(x)) + scale[:, :, None, None]))

    kept = torch.linspace(0.99, 0.1, 20)

    def batch(size: int, generator: torch.Generator) -> Batch:
        draw = partial(torch.randn, size, 3, 12, 12, generator=generator)
        return draw(), draw(), torch.randint(0, 20, (size,), generator=generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, noise, t = batch
        share = kept[t][:, None, None, None]
        return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)

    return Case(Model(), batch, loss)


@plain("normalising-flow")
def flow() -> Case:
    """RealNVP's coupling layers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(mlp(4, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            total = x.new_zeros(len(x))
            for net in self.nets:
                a, b = x.chunk(2, 1)
                scale, shift = net(a).chunk(2, 1)
                x = torch.cat([b * scale.tanh().exp() + shift, a], 1)
                total = total + scale.tanh().sum(1)
            return total - 0.5 * x.square().sum(1)

    return Case(Model(), rows, lambda m, b: -m(b[0]).mean())


@plain("vq-vae")
def vq_vae() -> Case:
    """A codebook looked up with a straight-through estimate."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode, self.codes = mlp(8, 4), mlp(4, 8), nn.Embedding(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            nearest = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
            out = self.decode(z + (nearest - z).detach())
            parts = [(out - x), (nearest - z.detach()), 0.5 * (nearest.detach() - z)]
            return sum(p.square().mean(1) for p in parts)

    return Case(Model(), rows, lambda m, b: m(b[0]).mean())
