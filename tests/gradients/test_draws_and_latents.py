"""Draws of distributions belong to the examples they are drawn for; learned latents lie along the batch, also alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F

from tacit import gradients

B = 5

DRAWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gamma": lambda m, s: distributions.Gamma(s, 1.0).rsample(),
    "beta": lambda m, s: distributions.Beta(s, s + 1).rsample(),
    "dirichlet": lambda m, s: distributions.Dirichlet(s).rsample(),
    "student": lambda m, s: distributions.StudentT(s + 2, m, s).rsample(),
    "poisson": lambda m, s: torch.poisson(s).detach() * m,
    "binomial": lambda m, s: distributions.Binomial(5, probs=s / (1 + s)).sample() * m,
    "bernoulli": lambda m, s: torch.bernoulli(s / (1 + s)).detach() * m,
    "bernoulli, straight through": lambda m, s: (torch.bernoulli(s / (1 + s)) - s).detach() + s,
}


class Drawing(nn.Module):
    def __init__(self, draw: Callable[[Tensor, Tensor], Tensor], mix: bool) -> None:
        super().__init__()
        self.draw, self.mix, self.into, self.out = draw, mix, nn.Linear(8, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        m, s = self.into(x).chunk(2, dim=-1)
        s = F.softplus(s) + 0.1
        if self.mix:
            s = s + s.mean(0)
        out: Tensor = self.out(self.draw(m, s))
        return out


@pytest.mark.parametrize("name", DRAWS)
def test_every_example_has_its_own_draws(name: str) -> None:
    model, x = Drawing(DRAWS[name], mix=False), torch.randn(B, 8)
    engine = gradients.attach(model)
    for _ in range(2):
        torch.manual_seed(3)
        loss = model(x).square().sum(1)
        loss.mean().backward()
        norms = engine.norms()
        engine.discard()
    engine.detach()
    torch.manual_seed(3)
    losses = model(x).square().sum(1)
    rows = [torch.autograd.grad(losses[i], list(model.parameters()), retain_graph=True) for i in range(B)]
    wanted = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])
    if not engine.isolated:
        torch.testing.assert_close(norms, wanted, rtol=1e-4, atol=1e-6)
    assert bool(norms.isfinite().all()) and bool((norms > 0).all())


@pytest.mark.parametrize("name", DRAWS)
def test_draws_from_parameters_of_the_whole_batch_are_refused(name: str) -> None:
    model, x = Drawing(DRAWS[name], mix=True), torch.randn(B, 8)
    engine = gradients.attach(model)

    def train() -> None:
        model(x).square().sum(1).mean().backward()
        engine.norms()

    with pytest.raises(ValueError, match="example"):
        train()
    engine.detach()


class Latents(nn.Module):
    """Learned latents read the inputs; the attention merges places and examples and takes them apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.out = nn.Parameter(torch.randn(4, 8)), nn.Linear(8, 3)
        self.read = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        z = self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)
        z = z + self.read(z, x, x, need_weights=False)[0]
        out: Tensor = self.out(z.mean(dim=1))
        return out


@pytest.mark.parametrize("size", [1, 2, 5])
def test_latents_that_read_the_inputs_are_exact_for_any_number_of_examples(size: int, agree: Any) -> None:
    agree(Latents(), torch.randn(size, 9, 8))
