"""Loops and losses that the engine was not developed with: pairs, views, matching, inner loops, preferences."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, Loss, classes, lengths
from zoo_models.plain import classify, mlp, rows
from zoo_models.stranger_nets import stranger


class Scorer(nn.Module):
    """A small causal language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(30, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 30)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.block(self.words(words))[0])


def preferences(size: int, generator: torch.Generator) -> Batch:
    """Two answers, masks of their words, and what the reference model thinks of them."""
    words = torch.randint(1, 30, (size, 2, 7), generator=generator)
    long = torch.stack([lengths(size, 7, 3, generator) for _ in "ab"], dim=1)
    return words, (torch.arange(7) < long[..., None]).float(), torch.randn(size, 2, generator=generator)


def of_answers(model: nn.Module, words: Tensor, mask: Tensor) -> Tensor:
    logits = model(words)[:, :-1].log_softmax(-1)
    return (logits.gather(2, words[:, 1:, None]).squeeze(2) * mask[:, 1:]).sum(-1)


def dpo(model: nn.Module, batch: Batch) -> Tensor:
    """Both answers in one pass, one after the other in the batch, as in `trl`."""
    words, mask, reference = batch
    both = of_answers(model, torch.cat([words[:, 0], words[:, 1]]), torch.cat([mask[:, 0], mask[:, 1]]))
    chosen, rejected = both.chunk(2)
    return -F.logsigmoid(0.1 * ((chosen - reference[:, 0]) - (rejected - reference[:, 1]))).mean()


def orpo(model: nn.Module, batch: Batch) -> Tensor:
    words, mask, _ = batch
    found = of_answers(model, words.flatten(0, 1), mask.flatten(0, 1)) / mask[..., 1:].sum(-1).flatten()
    chosen, rejected = found.view(-1, 2).unbind(1)
    odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return (-chosen - 0.1 * F.logsigmoid(odds)).mean()


def grouped_policy(model: nn.Module, batch: Batch) -> Tensor:
    """GRPO: two answers to a question are compared with each other; the clipped ratio, and a distance to before."""
    words, mask, reward = batch
    advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
    logits = model(words.view(-1, 7))[:, :-1].log_softmax(-1).gather(2, words.view(-1, 7)[:, 1:, None]).squeeze(2)
    old = logits.detach()
    ratio = torch.exp(logits - old)
    gain = torch.min(ratio * advantage.view(-1, 1), ratio.clamp(0.8, 1.2) * advantage.view(-1, 1))
    each = -gain + 0.04 * (torch.exp(old - logits) - (old - logits) - 1)
    m = mask.view(-1, 7)[:, 1:]
    return ((each * m).sum(-1) / m.sum(-1)).mean()


def copied_words(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy over a few words at a time, to save memory; every text has the same number of words."""
    words = batch[0][:, 0]
    states = model.block(model.words(words))[0][:, :-1]
    total = 0.0
    for part, target in zip(states.chunk(3, dim=1), words[:, 1:].chunk(3, dim=1)):
        total = total + F.cross_entropy(model.head(part).flatten(0, 1), target.flatten(), reduction="sum")
    return total / words[:, 1:].numel()


class Wrapped(nn.Module):
    """A model whose loss is part of it, so that a loss may use its modules."""

    def __init__(self, net: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.net, batch)


def inside(net: nn.Module, loss: Loss) -> nn.Module:
    return Wrapped(net, loss)


def own(model: nn.Module, batch: Batch) -> Tensor:
    return model(*batch)


stranger("dpo-concatenated")(lambda: Case(Scorer(), preferences, dpo))
stranger("orpo")(lambda: Case(Scorer(), preferences, orpo))
stranger("grpo")(lambda: Case(Scorer(), preferences, grouped_policy))
stranger("chunked-cross-entropy")(lambda: Case(inside(Scorer(), copied_words), preferences, own,
                                             options={"reduction": "mean"}))  # fmt: skip


class Views(nn.Module):
    """SimSiam or BYOL without batch norm: two views in one batch, a predictor, a teacher that follows slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.predictor = mlp(8, 6), mlp(6, 6)
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        views = torch.cat([x, x.flip(1)], dim=0)
        p = self.predictor(self.net(views))
        with torch.no_grad():
            z = self.teacher(views)
        a, b = z.chunk(2)
        return -F.cosine_similarity(p, torch.cat([b, a]), dim=-1).mean()


class Student(nn.Module):
    """Distillation of features and answers from a frozen teacher beside the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher, self.match = mlp(), mlp().eval().requires_grad_(False), nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted, known = self.teacher(x), self.teacher[:2](x)
        hidden = self.net[:2](x)
        found = self.net[2](hidden)
        soft = F.kl_div(
            (found / 4).log_softmax(-1), (wanted / 4).log_softmax(-1), reduction="batchmean", log_target=True
        )
        return 0.5 * F.cross_entropy(found, y) + 8 * soft + 0.1 * F.mse_loss(self.match(hidden), known)


def jensen(model: nn.Module, batch: Batch) -> Tensor:
    """AugMix: the answers to three views agree."""
    views = [batch[0], batch[0] * 0.9, batch[0].roll(1, dims=1)]
    p = [model(v).softmax(-1) for v in views]
    middle = (sum(p) / 3).clamp(1e-7, 1).log()
    spread = sum(F.kl_div(middle, each, reduction="none").sum(-1) for each in p) / 3
    return (F.nll_loss(p[0].log(), batch[1], reduction="none") + spread).mean()


def sharpness(model: nn.Module, batch: Batch) -> Tensor:
    """The labels of confident answers only, by FixMatch: a threshold that each example passes by itself."""
    weak = model(batch[0]).detach().softmax(-1)
    confidence, label = weak.max(-1)
    strong = F.cross_entropy(model(batch[0] + 0.3), label, reduction="none")
    return F.cross_entropy(model(batch[0]), batch[1]) + (strong * (confidence >= 0.4).float()).mean()


class Episode(nn.Module):
    """A prototypical network: every record is an episode of its own, with shots and a query."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8, 6)

    def forward(self, shots: Tensor, query: Tensor) -> Tensor:
        centres = self.net(shots).mean(dim=2)
        return -((self.net(query)[:, None] - centres) ** 2).sum(-1)


def episodes(size: int, generator: torch.Generator) -> Batch:
    draw = partial(torch.randn, generator=generator)
    return draw(size, 3, 4, 8), draw(size, 8), classes(size, 3, generator)


class Inner(nn.Module):
    """MAML: every record is a task; a step of gradient descent on its shots, then the loss of its query."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b, self.net = nn.Parameter(torch.randn(3, 16) * 0.3), nn.Parameter(torch.zeros(3)), mlp(8, 16)

    def forward(self, shots: Tensor, query: Tensor, label: Tensor) -> Tensor:
        losses = []
        for i in range(len(query)):
            w, b = self.w, self.b
            inner = F.cross_entropy(F.linear(self.net(shots[i].flatten(0, 1)), w, b),
                                    torch.arange(3).repeat_interleave(4))  # fmt: skip
            dw, db = torch.autograd.grad(inner, (w, b), create_graph=True)
            losses.append(F.cross_entropy(F.linear(self.net(query[i]), w - 0.5 * dw, b - 0.5 * db), label[i]))
        return torch.stack(losses).mean()


stranger("two-views-and-teacher")(lambda: Case(Views(), rows, lambda m, b: m(b[0])))
stranger("feature-distillation")(lambda: Case(Student(), rows, own))
stranger("jensen-views")(lambda: Case(mlp(), rows, jensen))
stranger("fix-match")(lambda: Case(mlp(), rows, sharpness))
stranger("prototypes")(lambda: Case(Episode(), episodes, classify))
stranger("inner-loop")(lambda: Case(Inner(), episodes, own))
