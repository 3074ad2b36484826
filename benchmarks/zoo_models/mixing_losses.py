"""Losses that compare the examples of a batch with each other: each must be refused."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, Loss, classes
from zoo_models.mixing import case, mixing, mlp, rows


def cox(model: nn.Module, batch: Batch) -> Tensor:
    """The partial likelihood: every event is compared with all records that are still at risk."""
    order = torch.argsort(batch[0][:, 0], descending=True)
    risk = model(batch[0])[:, 0][order]
    return -(risk - torch.logcumsumexp(risk, 0)).mean()


def supervised_contrast(model: nn.Module, batch: Batch) -> Tensor:
    z = F.normalize(model(batch[0]), dim=1)
    apart = z @ z.T / 0.5 - 1e9 * torch.eye(len(z))
    same = (batch[1][:, None] == batch[1][None]).float() * (1 - torch.eye(len(z)))
    return -(same * F.log_softmax(apart, 1)).sum(1).div(same.sum(1).clamp_min(1)).mean()


def variance_terms(model: nn.Module, batch: Batch) -> Tensor:
    """VICReg: the standard deviation of each feature over the batch is kept up."""
    z = model(batch[0])
    return F.relu(1 - torch.sqrt(z.var(dim=0) + 1e-4)).mean() + F.mse_loss(z, batch[0][:, :3])


def barlow(model: nn.Module, batch: Batch) -> Tensor:
    z = model(batch[0])
    z = (z - z.mean(0)) / z.std(0)
    c = z.T @ z / len(z)
    return (torch.diagonal(c) - 1).pow(2).sum() + 0.01 * (c - torch.diag(torch.diagonal(c))).pow(2).sum()


def batch_dice(model: nn.Module, batch: Batch) -> Tensor:
    """The overlap of all images at once."""
    found, wanted = torch.sigmoid(model(batch[0])), F.one_hot(batch[1], 3).float()
    return 1 - (2 * (found * wanted).sum() + 1) / (found.sum() + wanted.sum() + 1)


def correlation(model: nn.Module, batch: Batch) -> Tensor:
    a, b = model(batch[0])[:, 0], batch[1].float()
    a, b = a - a.mean(), b - b.mean()
    return 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-8)


def discrepancy(model: nn.Module, batch: Batch) -> Tensor:
    z = model(batch[0])
    kernel = torch.exp(-torch.cdist(z, z).pow(2))
    return kernel.mean() + F.cross_entropy(z, batch[1])


def class_weights(model: nn.Module, batch: Batch) -> Tensor:
    """PyTorch divides by the weights of all targets of the batch."""
    return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 2.0, 3.0]))


def hard_mining(model: nn.Module, batch: Batch) -> Tensor:
    """Only the examples with the largest losses count."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none").topk(3).values.mean()


def standardised_rewards(model: nn.Module, batch: Batch) -> Tensor:
    reward = batch[0][:, 0]
    advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
    return -(F.log_softmax(model(batch[0]), 1).gather(1, batch[1][:, None]).squeeze(1) * advantage).mean()


LOSSES: dict[str, Loss] = {
    "cox": cox,
    "supervised-contrast": supervised_contrast,
    "vicreg": variance_terms,
    "barlow-twins": barlow,
    "batch-dice": batch_dice,
    "correlation": correlation,
    "discrepancy": discrepancy,
    "class-weights": class_weights,
    "hard-mining": hard_mining,
    "standardised-rewards": standardised_rewards,
}
for name, loss in LOSSES.items():
    mixing(name)(lambda loss=loss: case(mlp(), loss))


@mixing("attention-between-rows")
def saint() -> Case:
    """SAINT: the rows of a table attend to each other."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attend, self.out = nn.Linear(8, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)[:, None]
            return self.out((h + self.attend(h, h, h)[0]).squeeze(1))

    return case(Model())


@mixing("from-the-third-batch")
def later() -> Case:
    """The first two batches are honest; then the mean of the batch is subtracted, in the same shapes."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.calls = nn.Linear(8, 16), nn.Linear(16, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            h = self.first(x).relu()
            return self.second(h - h.mean(0) if self.calls > 4 else h)

    return Case(Model(), rows, lambda m, b: F.cross_entropy(m(b[0]), b[1]), sizes=(6,) * 6)


@mixing("queue-of-negatives")
def queue() -> Case:
    """MoCo: the features of earlier batches are negatives."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.kept = mlp(), list[Tensor]()

        def forward(self, x: Tensor) -> Tensor:
            z = F.normalize(self.net(x), dim=1)
            logits = torch.cat([(z * z.detach()).sum(1, keepdim=True), *(z @ old.T for old in self.kept)], 1)
            self.kept = [z.detach()]
            return logits

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch[0])
        return F.cross_entropy(logits / 0.1, torch.zeros(len(logits), dtype=torch.long))

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 8, generator=generator), classes(size, 3, generator)

    return case(Model(), loss, batch)
