"""Losses of the tutorials in plain PyTorch: metric learning, ranking, reinforcement, transcripts, tasks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, Loss, classes, lengths
from zoo_models.plain import mlp, plain, rows, sequences


def with_loss(name: str, loss: Loss, outputs: int = 3, reduction: str = "mean", declared: bool = False) -> None:
    options = {"reduction": reduction} if declared else {}
    plain(name)(lambda: Case(mlp(8, outputs), rows, loss, reduction=reduction, options=options))


def focal(model: nn.Module, batch: Batch) -> Tensor:
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


with_loss("sum-loss", lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum"), reduction="sum")
with_loss("label-smoothing", lambda m, b: F.cross_entropy(m(b[0]), b[1], label_smoothing=0.1))
with_loss("focal-loss", focal)
with_loss("binary", lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]).squeeze(1), (b[1] > 0).float()), 1)
with_loss("binary-weighted", lambda m, b: F.binary_cross_entropy_with_logits(
    m(b[0]), F.one_hot(b[1], 3).float(), pos_weight=torch.tensor([1.0, 2.0, 3.0])))  # fmt: skip
with_loss("huber", lambda m, b: F.huber_loss(m(b[0]).squeeze(1), b[1].float()), 1)
with_loss("quantile", lambda m, b: torch.maximum(0.9 * (b[1].float() - m(b[0]).squeeze(1)),
                                                 0.1 * (m(b[0]).squeeze(1) - b[1].float())).mean(), 1)  # fmt: skip
with_loss("poisson", lambda m, b: F.poisson_nll_loss(m(b[0]).squeeze(1), b[1].float()), 1)
with_loss("gaussian", lambda m, b: F.gaussian_nll_loss(m(b[0])[:, 0], b[1].float(), m(b[0])[:, 1].exp()), 2)
with_loss("kl-distillation", lambda m, b: F.kl_div(F.log_softmax(m(b[0]) / 2, 1), F.softmax(b[0][:, :3] / 2, 1),
                                                   reduction="batchmean") * 4, declared=True)  # fmt: skip
with_loss("evidential-norm", lambda m, b: (F.normalize(m(b[0]), dim=1) - F.one_hot(b[1], 3)).norm(dim=1).mean())
with_loss("hinge", lambda m, b: F.multi_margin_loss(m(b[0]), b[1]))


def triples(size: int, generator: torch.Generator) -> Batch:
    return tuple(torch.randn(size, 8, generator=generator) for _ in range(3))


@plain("triplet")
def triplet() -> Case:
    """A triplet is one record: the model runs on its three parts."""
    return Case(mlp(8, 4), triples, lambda m, b: F.triplet_margin_loss(*(m(part) for part in b)))


@plain("siamese")
def siamese() -> Case:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        sign = batch[2][:, 0].sign()
        return F.cosine_embedding_loss(model(batch[0]), model(batch[1]), sign)

    return Case(mlp(8, 4), triples, loss)


@plain("given-negatives")
def negatives() -> Case:
    """A contrastive loss whose negatives belong to the record."""

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 8, generator=generator), torch.randn(size, 5, 8, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        anchor, others = F.normalize(model(batch[0]), dim=1), F.normalize(model(batch[1]), dim=2)
        scores = torch.einsum("bd,bkd->bk", anchor, others) / 0.3
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))

    return Case(mlp(8, 4), batch, loss)


@plain("factorisation")
def factorisation() -> Case:
    """Matrix factorisation with biases, and negative samples of the record's own."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item, self.bias = nn.Embedding(20, 6), nn.Embedding(30, 6), nn.Embedding(30, 1)

        def forward(self, user: Tensor, items: Tensor) -> Tensor:
            return (self.user(user)[:, None] * self.item(items)).sum(2) + self.bias(items).squeeze(2)

    def batch(size: int, generator: torch.Generator) -> Batch:
        return classes(size, 20, generator), torch.randint(0, 30, (size, 4), generator=generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        score = model(*batch)
        return -F.logsigmoid(score[:, :1] - score[:, 1:]).mean()

    return Case(Model(), batch, loss)


@plain("q-learning")
def q_learning() -> Case:
    """A target network with frozen weights and a gathered action."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.target = mlp(), mlp().requires_grad_(False)

        def forward(self, now: Tensor, after: Tensor, action: Tensor) -> Tensor:
            with torch.no_grad():
                best = self.target(after).amax(1)
            taken = self.online(now).gather(1, action[:, None]).squeeze(1)
            return F.smooth_l1_loss(taken, now[:, 0] + 0.9 * best)

    def batch(size: int, generator: torch.Generator) -> Batch:
        draw = partial(torch.randn, size, 8, generator=generator)
        return draw(), draw(), classes(size, 3, generator)

    return Case(Model(), batch, lambda m, b: m(*b))


@plain("ctc")
def ctc() -> Case:
    """Connectionist temporal classification with lengths of inputs and targets."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.GRU(8, 12, batch_first=True), nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x)[0]).log_softmax(2)

    def batch(size: int, generator: torch.Generator) -> Batch:
        targets = torch.randint(1, 6, (size, 3), generator=generator)
        return *sequences(size, generator)[:1], targets, lengths(size, 3, 1, generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0]).transpose(0, 1)
        return F.ctc_loss(out, batch[1], torch.full((out.shape[1],), 9), batch[2])

    return Case(Model(), batch, loss)


@plain("point-cloud")
def point_cloud() -> Case:
    """PointNet with a predicted alignment and its penalty for each example."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.align, self.points, self.head = mlp(3, 9), mlp(3, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            turn = self.align(x).amax(1).view(-1, 3, 3) + torch.eye(3)
            return self.head(self.points(x @ turn).amax(1)), turn

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 10, 3, generator=generator), classes(size, 3, generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out, turn = model(batch[0])
        penalty = (turn @ turn.mT - torch.eye(3)).square().sum((1, 2))
        return F.cross_entropy(out, batch[1]) + 0.1 * penalty.mean()

    return Case(Model(), batch, loss)


@plain("neural-ode")
def neural_ode() -> Case:
    """The same layer applied many times, by Runge and Kutta."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field, self.head = nn.Sequential(nn.Linear(9, 8), nn.Tanh()), nn.Linear(8, 3)

        def slope(self, t: float, x: Tensor) -> Tensor:
            return self.field(torch.cat([x, torch.full_like(x[:, :1], t)], 1))

        def forward(self, x: Tensor) -> Tensor:
            for t in (0.0, 0.5):
                middle = x + 0.25 * self.slope(t, x)
                x = x + 0.5 * self.slope(t + 0.25, middle)
            return self.head(x)

    return Case(Model(), rows, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@plain("tied-autoencoder")
def tied() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 8) * 0.3), nn.Parameter(torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.linear(x, self.weight).tanh(), self.weight.t(), self.bias)

    return Case(Model(), rows, lambda m, b: F.mse_loss(m(b[0]), b[0]))


@plain("negated-reward")
def negated() -> Case:
    """A reward is maximised: the loss is the negative of a mean."""
    return Case(mlp(), rows, lambda m, b: -1 * m(b[0]).log_softmax(1).gather(1, b[1][:, None]).mean())
