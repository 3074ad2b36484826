"""Models that mix examples: each must be refused, because one record would change another record's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, Loss, classes, entry

SIZES = (6, 5)


def rows(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 8, generator=generator), classes(size, 3, generator)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Through(nn.Module):
    """A two-layer network with a function of the hidden layer between."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(8, 16), nn.Linear(16, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x).relu()))


def mixing(name: str) -> Any:
    return entry("mixing", f"mixing-{name}", honest=False)


def case(model: nn.Module, loss: Loss = classify, batch: Any = rows, **options: Any) -> Case:
    return Case(model, batch, loss, sizes=SIZES, **options)


@mixing("batch-norm")
def batch_norm() -> Case:
    return case(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))


@mixing("functional-batch-norm")
def functional_batch_norm() -> Case:
    return case(Through(lambda h: F.batch_norm(h, None, None, training=True)))


@mixing("hand-written-batch-norm")
def by_hand() -> Case:
    return case(Through(lambda h: (h - h.mean(0)) / (h.var(0) + 1e-5).sqrt()))


@mixing("centred")
def centred() -> Case:
    return case(Through(lambda h: h - h.mean(0)))


@mixing("batch-softmax")
def batch_softmax() -> Case:
    return case(Through(lambda h: h.softmax(0)))


@mixing("batch-maximum")
def batch_maximum() -> Case:
    return case(Through(lambda h: h / h.abs().max()))


@mixing("attention-over-the-batch")
def attention() -> Case:
    """Attention over the batch: `batch_first` was forgotten."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.head = nn.MultiheadAttention(8, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = x.unflatten(1, (1, 8))
            return self.head(self.attend(h, h, h, need_weights=False)[0].squeeze(1))

    return case(Model())


@mixing("recurrent-over-the-batch")
def recurrent() -> Case:
    """A recurrent network without `batch_first`: the batch is taken for time."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.LSTM(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x.unflatten(1, (2, 4)))[0].mean(1))

    return case(Model())


@mixing("shuffled-rows")
def shuffled() -> Case:
    return case(Through(lambda h: h + 0.5 * h.roll(1, 0)))


@mixing("mixup")
def mixup() -> Case:
    """Inputs mixed with those of another example, in the loop before the model."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        order = torch.arange(len(x)).flip(0)
        out = model(0.7 * x + 0.3 * x[order])
        return 0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, y[order])

    return case(mlp(), loss)


@mixing("contrastive")
def contrastive() -> Case:
    """SimCLR: the other examples of the batch are the negatives."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0]
        one, two = F.normalize(model(x), dim=1), F.normalize(model(x + 0.1), dim=1)
        return F.cross_entropy(one @ two.T / 0.5, torch.arange(len(x)))

    return case(mlp(), loss)


@mixing("in-batch-negatives")
def in_batch_negatives() -> Case:
    """Two towers inside one model, scored against each other as CLIP does."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 6)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.left(a) @ self.right(b).T

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 8, generator=generator), torch.randn(size, 8, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(*batch), torch.arange(len(batch[0])))

    return case(Towers(), loss, batch)


@mixing("clip")
def clip() -> Case:
    """CLIP of `transformers` with its own contrastive loss."""
    import transformers

    tower = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
    config = transformers.CLIPConfig(
        text_config=tower | dict(vocab_size=64, max_position_embeddings=16, eos_token_id=2, pad_token_id=0),
        vision_config=tower | dict(image_size=16, patch_size=8), projection_dim=8,
    )  # fmt: skip

    def batch(size: int, generator: torch.Generator) -> Batch:
        return {"input_ids": torch.randint(3, 64, (size, 6), generator=generator),
                "pixel_values": torch.randn(size, 3, 16, 16, generator=generator)}  # fmt: skip

    return case(transformers.CLIPModel(config), lambda m, b: m(**b, return_loss=True).loss, batch)


@mixing("router-balance")
def router_balance() -> Case:
    """Mixtral with its load-balancing loss, a product of means over the batch."""
    from zoo_models.causal import batch_of, causal_model

    model = causal_model("mixtral", output_router_logits=True, router_aux_loss_coef=0.1)
    return case(model, lambda m, b: m(**b).loss, batch_of)


@mixing("state-between-batches")
def state() -> Case:
    """The hidden state of one batch starts the next."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)
            self.memory: Tensor = torch.zeros(16)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).relu() + self.memory
            self.memory = 0.9 * self.memory + 0.1 * h.detach().mean(0)
            return self.second(h)

    return case(Model())


@mixing("running-buffer")
def running_buffer() -> Case:
    """An exponential mean of the inputs in a buffer, subtracted from later batches."""

    class Model(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.net(x - self.mean)

    return case(Model())


@mixing("values-scale-all")
def values() -> Case:
    """A Python number from the whole batch scales every example."""
    return case(Through(lambda h: h / (1.0 + h.abs().max().item())))


@mixing("ranking-loss")
def ranking() -> Case:
    """Differences of all pairs of scores in the batch."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        score = model(batch[0])[:, 0]
        return F.softplus(-(score[:, None] - score[None, :]) * (batch[1][:, None] > batch[1][None, :])).mean()

    return case(mlp(), loss)


@mixing("batch-covariance")
def covariance() -> Case:
    """Barlow Twins' cross-correlation over the batch."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        one, two = model(batch[0]), model(batch[0] + 0.1)
        return ((one.T @ two) / len(one) - torch.eye(3)).square().sum()

    return case(mlp(), loss)


@mixing("square-root-of-the-mean")
def root() -> Case:
    """A root mean square error over the batch."""
    return case(mlp(), lambda m, b: (m(b[0])[:, 0] - b[1].float()).square().mean().sqrt())
