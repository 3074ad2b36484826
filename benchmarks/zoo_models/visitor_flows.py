"""Flows, autoencoders, critics and agents, as tutorials and papers write them."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry


def rows(n: int, g: torch.Generator, width: int = 6) -> Tensor:
    return torch.randn(n, width, generator=g)


def labelled(n: int, g: torch.Generator) -> Batch:
    return rows(n, g), classes(n, 3, g)


def sort(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Spline(nn.Module):
    """A flow of rational-quadratic splines between two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 16, 3 * (3 * 4 - 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        w, h, d = self.net(a).view(len(x), 3, 11).split([4, 4, 3], -1)
        widths, heights = 0.01 + 0.96 * w.softmax(-1), 0.01 + 0.96 * h.softmax(-1)
        cw = F.pad(torch.cumsum(widths, -1), (1, 0)) * 6 - 3
        ch = F.pad(torch.cumsum(heights, -1), (1, 0)) * 6 - 3
        cw[..., -1], ch[..., -1] = 3.0, 3.0
        widths, heights = cw[..., 1:] - cw[..., :-1], ch[..., 1:] - ch[..., :-1]
        slope = F.pad(0.01 + F.softplus(d), (1, 1), value=1.0)
        inside = (b > -3) & (b < 3)
        z = b.clamp(-2.999, 2.999)
        i = (torch.sum(z[..., None] >= cw, -1) - 1)[..., None]
        at = lambda t: t.gather(-1, i)[..., 0]  # noqa: E731
        x0, y0, dx, dy = at(cw[..., :-1]), at(ch[..., :-1]), at(widths), at(heights)
        s, d0, d1 = dy / dx, at(slope[..., :-1]), at(slope[..., 1:])
        t = (z - x0) / dx
        bottom = s + (d0 + d1 - 2 * s) * t * (1 - t)
        y = y0 + dy * (s * t**2 + d0 * t * (1 - t)) / bottom
        log = torch.log(s**2 * (d1 * t**2 + 2 * s * t * (1 - t) + d0 * (1 - t) ** 2)) - 2 * torch.log(bottom)
        y, log = torch.where(inside, y, b), torch.where(inside, log, torch.zeros_like(log))
        return torch.cat([a, y], -1), log.sum(-1)


@entry("visitor", "spline-flow")
def spline() -> Case:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        z, log = m(b[0])
        prior = torch.distributions.MultivariateNormal(torch.zeros(6), torch.eye(6))
        return -(prior.log_prob(z) + log).mean()

    return Case(Spline(), lambda n, g: (rows(n, g),), loss)


class Planar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(3, 6) * 0.3), nn.Parameter(torch.randn(3, 6) * 0.3)
        self.b = nn.Parameter(torch.zeros(3))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        total = 0
        for w, u, b in zip(self.w, self.u, self.b):
            u = u + (F.softplus(w @ u) - 1 - w @ u) * w / w.norm() ** 2
            a = z @ w + b
            total = total + torch.log((1 + (1 - torch.tanh(a) ** 2) * (w @ u)).abs() + 1e-6)
            z = z + u * torch.tanh(a).unsqueeze(-1)
        return z, total


@entry("visitor", "planar-flow")
def planar() -> Case:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        z, log = m(b[0])
        return (0.5 * (z**2).sum(1) + 3 * math.log(2 * math.pi) - log).mean()

    return Case(Planar(), lambda n, g: (rows(n, g),), loss)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(6, 12, 8), mlp(4, 12, 6)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encoder(x).chunk(2, 1)
        return self.decoder(mu + noise * torch.exp(0.5 * logvar)), mu, logvar


@entry("visitor", "vae-summed")
def vae() -> Case:
    """The tutorial's loss: sums over the whole batch, divided by its length."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        out, mu, logvar = m(b[0], b[1])
        bce = F.binary_cross_entropy_with_logits(out, b[0].sigmoid(), reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return (bce + kld) / len(b[0])

    return Case(Vae(), lambda n, g: (rows(n, g), rows(n, g, 4)), loss, options={"reduction": "mean"})


@entry("visitor", "info-vae-own-weights")
def vae_mean() -> Case:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        out, mu, logvar = m(b[0], b[1])
        kl = torch.mean(-0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1), dim=0)
        return F.mse_loss(out, b[0]) + 0.00025 * kl

    return Case(Vae(), lambda n, g: (rows(n, g), rows(n, g, 4)), loss)


def real_and_fake(n: int, g: torch.Generator) -> Batch:
    return rows(n, g), rows(n, g)


@entry("visitor", "discriminator")
def discriminator() -> Case:
    """Each record brings the noise of its fake."""
    generator = mlp(6, 8, 6).requires_grad_(False)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        real, fake = m(b[0]).view(-1), m(generator(b[1]).detach()).view(-1)
        criterion = nn.BCEWithLogitsLoss()
        return criterion(real, torch.full((len(real),), 0.9)) + criterion(fake, torch.zeros(len(fake)))

    return Case(mlp(6, 8, 1), real_and_fake, loss)


@entry("visitor", "hinge-critic")
def critic() -> Case:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def loss(m: nn.Module, b: Batch) -> Tensor:
        return F.relu(1.0 - m(b[0])).mean() + F.relu(1.0 + m(b[1])).mean()

    return Case(net, real_and_fake, loss)


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.value, self.advantage = mlp(6, 12, 12), nn.Linear(12, 5), nn.Linear(12, 15)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x).relu()
        v, a = self.value(h).view(-1, 1, 5), self.advantage(h).view(-1, 3, 5)
        return (v + a - a.mean(dim=1, keepdim=True)).softmax(-1).clamp(min=1e-3)


@entry("visitor", "categorical-dqn")
def c51() -> Case:
    """The target distribution is projected on the atoms, with index_add over the flattened batch."""
    support = torch.linspace(-2, 2, 5)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        state, action, reward, done, following = b
        n = state.size(0)
        with torch.no_grad():
            q = m(following)
            best = (q * support).sum(2).argmax(1)
            future = q[range(n), best]
            tz = (reward.unsqueeze(1) + 0.9 * (1 - done).unsqueeze(1) * support).clamp(-2, 2)
            p = tz + 2
            low, up = p.floor().long(), p.ceil().long()
            target = torch.zeros(future.size())
            target.scatter_add_(1, low, future * (up.float() + (low == up).float() - p))
            target.scatter_add_(1, up, future * (p - low.float()))
        log = torch.log(m(state)[range(n), action])
        return -(target * log).sum(1).mean()

    def batch(n: int, g: torch.Generator) -> Batch:
        return rows(n, g), classes(n, 3, g), torch.randn(n, generator=g), classes(n, 2, g).float(), rows(n, g)

    return Case(Dueling(), batch, loss)


@entry("visitor", "quantile-regression-dqn")
def qr() -> Case:
    tau = (torch.arange(4) + 0.5) / 4

    def loss(m: nn.Module, b: Batch) -> Tensor:
        theta = m(b[0]).view(-1, 3, 4).gather(1, b[1].view(-1, 1, 1).expand(-1, 1, 4)).squeeze(1)
        u = b[2].unsqueeze(1) - theta.unsqueeze(2)
        huber = torch.where(u.abs() <= 1, 0.5 * u**2, u.abs() - 0.5)
        return ((tau.view(1, -1, 1) - (u.detach() < 0).float()).abs() * huber).sum(-1).mean(-1).mean()

    return Case(mlp(6, 12, 12), lambda n, g: (rows(n, g), classes(n, 3, g), rows(n, g, 4)), loss)


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.q = mlp(6, 12, 4), mlp(8, 8, 1).requires_grad_(False)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self.net(x).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        z = mean + std * noise
        action = torch.tanh(z)
        log = torch.distributions.Normal(mean, std).log_prob(z) - torch.log(1 - action.pow(2) + 1e-6)
        return 0.2 * log.sum(1, keepdim=True) - self.q(torch.cat([x, action], 1))


@entry("visitor", "soft-actor")
def sac() -> Case:
    return Case(Actor(), lambda n, g: (rows(n, g), rows(n, g, 2)), lambda m, b: m(*b).mean())


@entry("visitor", "hutchinson-flow")
def ffjord() -> Case:
    """A continuous flow, whose trace is estimated with gradients of gradients."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))

        def forward(self, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
            log = torch.zeros(len(x))
            for k in range(2):
                with torch.enable_grad():
                    z = x.requires_grad_(True) if not x.requires_grad else x
                    f = self.net(torch.cat([z, torch.full((len(z), 1), k / 2)], 1))
                    eJ = torch.autograd.grad(f, z, e, create_graph=True)[0]
                x, log = x + f / 2, log - (eJ * e).sum(1) / 2
            return x, log

    def loss(m: nn.Module, b: Batch) -> Tensor:
        z, log = m(*b)
        return (0.5 * z.square().sum(1) + log).mean()

    return Case(Flow(), lambda n, g: (rows(n, g, 3), rows(n, g, 3)), loss)


@entry("visitor", "contractive-autoencoder")
def contractive() -> Case:
    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inward, self.outward = nn.Linear(6, 4), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.sigmoid(self.inward(x))
            return self.outward(h), (((h * (1 - h)) ** 2) * (self.inward.weight**2).sum(1)).sum(1)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        out, penalty = m(b[0])
        return F.mse_loss(out, b[0]) + 1e-2 * penalty.mean()

    return Case(Auto(), lambda n, g: (rows(n, g),), loss)
