"""Losses and heads as tutorials and papers write them: margins, overlaps, ordinal classes, several tasks, teachers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, Loss, classes, entry
from zoo_models.plain import mlp, pictures, rows

tutorial = partial(entry, "tutorial")


class ArcFace(nn.Module):
    """A margin on the angle between the normalised features and normalised class weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.weight = mlp(8, 6), nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(self.net(x)), F.normalize(self.weight))
        sine = torch.sqrt((1.0 - cosine.pow(2)).clamp(1e-6, 1))
        phi = cosine * 0.8776 - sine * 0.4794
        phi = torch.where(cosine > -0.8776, phi, cosine - 0.24)
        hot = torch.zeros(cosine.size())
        hot.scatter_(1, label.view(-1, 1).long(), 1)
        return (hot * phi + (1.0 - hot) * cosine) * 8.0


class Coral(nn.Module):
    """Ordinal classes: one score, a learned threshold for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.bias = mlp(8, 1), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + self.bias


def coral_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits, y = model(batch[0]), batch[1]
    levels = (y[:, None] > torch.arange(2)[None, :]).float()
    terms = F.logsigmoid(logits) * levels + (F.logsigmoid(logits) - logits) * (1 - levels)
    return torch.mean(-torch.sum(terms, dim=1))


class Centres(nn.Module):
    """The distance to a learned centre of the class, beside the cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head, self.centres = mlp(8, 4), nn.Linear(4, 3), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.net(x)
        pull = (features - self.centres[y]).pow(2).sum(1)
        return F.cross_entropy(self.head(features), y) + 0.1 * pull.mean()


class Proxies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.proxies = mlp(8, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(F.normalize(self.net(x), dim=-1), F.normalize(self.proxies, dim=-1)).pow(2)


tutorial("arcface")(lambda: Case(ArcFace(), rows, lambda m, b: F.cross_entropy(m(*b), b[1])))
tutorial("ordinal-coral")(lambda: Case(Coral(), rows, coral_loss))
tutorial("centre-loss")(lambda: Case(Centres(), rows, lambda m, b: m(*b)))
tutorial("proxy-nca")(lambda: Case(Proxies(), rows, lambda m, b: F.cross_entropy(m(b[0]), b[1])))


def scenes(size: int, generator: torch.Generator) -> Batch:
    image = pictures(size, generator)[0]
    return image, (torch.rand(size, 1, 12, 12, generator=generator) < 0.4).float()


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 1, 1))


def dice(model: nn.Module, batch: Batch) -> Tensor:
    found = torch.sigmoid(model(batch[0])).flatten(1)
    wanted = batch[1].flatten(1)
    overlap = (found * wanted).sum(1)
    return (1 - (2 * overlap + 1) / (found.sum(1) + wanted.sum(1) + 1)).mean()


def dice_and_binary(model: nn.Module, batch: Batch) -> Tensor:
    return dice(model, batch) + F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def tversky(model: nn.Module, batch: Batch) -> Tensor:
    p, g = torch.sigmoid(model(batch[0])), batch[1]
    hit, over, missed = ((v).sum(dim=(1, 2, 3)) for v in (p * g, p * (1 - g), (1 - p) * g))
    index = (hit + 1) / (hit + 0.3 * over + 0.7 * missed + 1)
    return torch.pow(1 - index, 0.75).mean()


for name, loss in {"dice": dice, "dice-and-binary": dice_and_binary, "tversky": tversky}.items():
    tutorial(name)(partial(lambda loss: Case(segmenter(), scenes, loss), loss))


def with_loss(name: str, loss: Loss, outputs: int = 3, options: dict[str, Any] | None = None) -> None:
    tutorial(name)(lambda: Case(mlp(8, outputs), rows, loss, options=options or {}))


def bounded(model: nn.Module, batch: Batch) -> Tensor:
    p = F.softmax(model(batch[0]), 1).gather(1, batch[1][:, None])
    return ((1 - p**0.7) / 0.7).mean()


def poly(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch[0])
    pt = (F.one_hot(batch[1], 3) * F.softmax(logits, -1)).sum(-1)
    return (F.cross_entropy(logits, batch[1], reduction="none") + 2.0 * (1 - pt)).mean()


def asymmetric(model: nn.Module, batch: Batch) -> Tensor:
    p, y = torch.sigmoid(model(batch[0])), F.one_hot(batch[1], 3).float()
    negative = (1 - p + 0.05).clamp(max=1)
    terms = y * torch.log(p.clamp(min=1e-8)) + (1 - y) * torch.log(negative.clamp(min=1e-8))
    weight = torch.pow(1 - p * y - negative * (1 - y), y + 4 * (1 - y))
    return -(terms * weight.detach()).sum() / len(batch[1])


def averaged_by_hand(model: nn.Module, batch: Batch) -> Tensor:
    total = 0.0
    for logits, label in zip(model(batch[0]), batch[1]):
        total = total + F.cross_entropy(logits[None], label[None])
    return total / len(batch[1])


with_loss("generalised-entropy", bounded)
with_loss("poly-loss", poly)
with_loss("asymmetric-loss", asymmetric)
with_loss("loop-over-examples", averaged_by_hand)
with_loss("soft-labels", lambda m, b: F.cross_entropy(m(b[0]), F.softmax(b[0][:, :3], 1)))
with_loss("nll-of-log-softmax", lambda m, b: F.nll_loss(F.log_softmax(m(b[0]), dim=1), b[1]))
with_loss("two-losses", lambda m, b: F.cross_entropy(m(b[0]), b[1]) + 0.01 * m(b[0]).pow(2).mean())
with_loss("entropy-bonus", lambda m, b: F.cross_entropy(m(b[0]), b[1])
          - 0.1 * torch.distributions.Categorical(logits=m(b[0])).entropy().mean())  # fmt: skip
with_loss("loss-over-accumulation", lambda m, b: F.cross_entropy(m(b[0]), b[1]) / 4, options={"reduction": "mean"})
with_loss("log-cosh", lambda m, b: torch.log(torch.cosh(m(b[0]).squeeze(-1) - b[1].float())).mean(), 1)
with_loss("rmse-by-record", lambda m, b: torch.sqrt(((m(b[0]) - b[0][:, :3]) ** 2).mean(1) + 1e-8).mean())
with_loss("beta-distribution", lambda m, b: -torch.distributions.Beta(*(F.softplus(m(b[0])) + 0.1).unbind(1)).log_prob(
    torch.sigmoid(b[0][:, 0])).mean(), 2)  # fmt: skip
with_loss("negative-binomial", lambda m, b: -torch.distributions.NegativeBinomial(
    F.softplus(m(b[0])[:, 0]), logits=m(b[0])[:, 1]).log_prob(b[1].float()).mean(), 2)  # fmt: skip
with_loss("multilabel-margin", lambda m, b: F.multilabel_soft_margin_loss(m(b[0]), F.one_hot(b[1], 3).float()))
with_loss("sampled-cross-entropy", lambda m, b: (torch.logsumexp(m(b[0]), 1)
                                                - m(b[0])[torch.arange(len(b[1])), b[1]]).mean())  # fmt: skip


@dataclass
class Answer:
    kind: Tensor
    size: Tensor


class Named(NamedTuple):
    kind: Tensor
    size: Tensor


class Tasks(nn.Module):
    def __init__(self, form: object) -> None:
        super().__init__()
        self.form, self.body = form, nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(16, 3), "size": nn.Linear(16, 1)})

    def forward(self, x: Tensor) -> object:
        features = self.body(x)
        found = {name: head(features) for name, head in self.heads.items()}
        return found if self.form is dict else self.form(**found)


def both_tasks(model: nn.Module, batch: Batch) -> Tensor:
    out = model(batch[0])
    kind, size = (out["kind"], out["size"]) if isinstance(out, dict) else (out.kind, out.size)
    return F.cross_entropy(kind, batch[1]) + 0.5 * F.mse_loss(size.squeeze(1), batch[1].float())


for form in (dict, Answer, Named):
    tutorial(f"tasks-in-{form.__name__.lower()}")(partial(lambda form: Case(Tasks(form), rows, both_tasks), form))


class Uncertain(Tasks):
    """Tasks weighted by learned variances (Kendall et al.), each example's losses first."""

    def __init__(self) -> None:
        super().__init__(dict)
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = super().forward(x)
        each = torch.stack([F.cross_entropy(out["kind"], y, reduction="none"),
                            F.mse_loss(out["size"].squeeze(1), y.float(), reduction="none")], 1)  # fmt: skip
        return (torch.exp(-self.log_variance) * each + self.log_variance).sum(1).mean()


tutorial("learned-task-weights")(lambda: Case(Uncertain(), rows, lambda m, b: m(*b)))


@tutorial("ragged-mean-with-missing-labels", token_mean=True)
def missing() -> Case:
    """Labels that are NaN count for nothing."""

    def batch(size: int, generator: torch.Generator) -> Batch:
        x, wanted = torch.randn(size, 8, generator=generator), torch.randn(size, 3, generator=generator)
        hidden = torch.rand(size, 3, generator=generator) < 0.4
        hidden[:, 0] = False
        return x, wanted.masked_fill(hidden, float("nan"))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        known = ~torch.isnan(batch[1])
        error = (model(batch[0]) - torch.nan_to_num(batch[1])).square() * known
        return error.sum() / known.sum()

    return Case(mlp(), batch, loss)


@tutorial("self-distillation")
def byol() -> Case:
    """BYOL: a predictor, a frozen average of the weights as the target, two views of each record."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.predict = mlp(8, 6), mlp(6, 6)
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            def apart(a: Tensor, b: Tensor) -> Tensor:
                with torch.no_grad():
                    wanted = self.target(b)
                return 2 - 2 * F.cosine_similarity(self.predict(self.online(a)), wanted.detach(), dim=-1)

            return (apart(one, two) + apart(two, one)).mean()

    def batch(size: int, generator: torch.Generator) -> Batch:
        x = torch.randn(size, 8, generator=generator)
        return x + 0.1 * torch.randn(size, 8, generator=generator), x

    return Case(Model(), batch, lambda m, b: m(*b))


@tutorial("dqn")
def dqn() -> Case:
    """The temporal difference with a frozen target network, and the best action of the online one."""
    net = mlp(8, 3)
    target = copy.deepcopy(net).requires_grad_(False)

    def batch(size: int, generator: torch.Generator) -> Batch:
        state, following = (torch.randn(size, 8, generator=generator) for _ in range(2))
        over = torch.rand(size, generator=generator) < 0.2
        return state, classes(size, 3, generator).unsqueeze(1), torch.rand(size, generator=generator), following, over

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        state, action, reward, following, over = batch
        value = model(state).gather(1, action).squeeze(1)
        with torch.no_grad():
            best = model(following).argmax(1, keepdim=True)
            wanted = reward + 0.9 * target(following).gather(1, best).squeeze(1) * (~over)
        return F.smooth_l1_loss(value, wanted)

    return Case(net, batch, loss)
