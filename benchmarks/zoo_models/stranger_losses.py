"""Loops and losses that the engine was not developed with: pairs, views, matching, inner loops, preferences."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint_sequential

from zoo_models.cases import Batch, Case, Loss, classes, entry, lengths
from zoo_models.plain import classify, mlp, rows

stranger = partial(entry, "stranger")


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


class Sources(nn.Module):
    """Separation of two voices, in whichever order fits better: each example's own permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(1, 8, 4, stride=2), nn.ConvTranspose1d(8, 2, 4, stride=2)

    def forward(self, mixed: Tensor) -> Tensor:
        return self.out(F.relu(self.into(mixed.unsqueeze(1))))


def quality(found: Tensor, wanted: Tensor) -> Tensor:
    found, wanted = found - found.mean(-1, keepdim=True), wanted - wanted.mean(-1, keepdim=True)
    along = (found * wanted).sum(-1, keepdim=True) / ((wanted**2).sum(-1, keepdim=True) + 1e-8) * wanted
    return 10 * torch.log10((along**2).sum(-1) / (((found - along) ** 2).sum(-1) + 1e-8) + 1e-8)


def permuted(model: nn.Module, batch: Batch) -> Tensor:
    found, wanted = model(batch[0]), batch[1]
    orders = torch.stack([-quality(found, wanted[:, list(o)]).mean(1) for o in ((0, 1), (1, 0))], dim=1)
    return orders.min(dim=1).values.mean()


def voices(size: int, generator: torch.Generator) -> Batch:
    clean = torch.randn(size, 2, 24, generator=generator)
    return clean.sum(1), clean


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.net = nn.Sequential(nn.Conv1d(9, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                                 nn.Linear(8, 3))  # fmt: skip

    def forward(self, sound: Tensor) -> Tensor:
        found = torch.stft(sound, 16, 8, window=self.window, return_complex=True)
        return self.net(torch.log(found.abs() ** 2 + 1e-6))


def sounds(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 64, generator=generator), classes(size, 3, generator)


def matched(model: nn.Module, batch: Batch) -> Tensor:
    """DETR: boxes are assigned by the Hungarian method, example by example."""
    from scipy.optimize import linear_sum_assignment

    found = model(batch[0]).view(-1, 4, 4)
    losses = []
    for boxes, wanted in zip(found, batch[1]):
        cost = torch.cdist(boxes, wanted, p=1).detach().cpu().numpy()
        i, j = linear_sum_assignment(cost)
        losses.append(F.l1_loss(boxes[torch.as_tensor(i)], wanted[torch.as_tensor(j)]))
    return torch.stack(losses).mean()


def boxed(size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 8, generator=generator), torch.rand(size, 3, 4, generator=generator)


def chamfer(model: nn.Module, batch: Batch) -> Tensor:
    far = torch.cdist(model(batch[0]).view(-1, 4, 4), batch[1])
    return (far.min(1).values.mean(1) + far.min(2).values.mean(1)).mean()


def transport(model: nn.Module, batch: Batch) -> Tensor:
    """Sinkhorn's iterations between two sets of points, in logarithms."""
    cost = torch.cdist(model(batch[0]).view(-1, 4, 4), batch[1]) ** 2
    f, g = torch.zeros(cost.shape[:2]), torch.zeros(cost.shape[0], 3)
    for _ in range(5):
        f = -0.5 * torch.logsumexp((g[:, None] - cost) / 0.5, dim=2)
        g = -0.5 * torch.logsumexp((f[:, :, None] - cost) / 0.5, dim=1)
    plan = torch.exp((f[:, :, None] + g[:, None] - cost) / 0.5)
    return (plan * cost).sum(dim=(1, 2)).mean()


stranger("permutation-invariant")(lambda: Case(Sources(), voices, permuted))
stranger("spectrum")(lambda: Case(Spectrum(), sounds, classify))
stranger("hungarian-matching")(lambda: Case(inside(mlp(8, 16), matched), boxed, own))
stranger("chamfer")(lambda: Case(mlp(8, 16), boxed, chamfer))
stranger("sinkhorn")(lambda: Case(mlp(8, 16), boxed, transport))


@dataclass
class Inputs:
    """A batch as an object of the user's own class."""

    numbers: Tensor
    label: Tensor


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, given: Inputs) -> Tensor:
        return F.cross_entropy(self.net(given.numbers), given.label)


stranger("dataclass-input")(lambda: Case(Structured(), rows, lambda m, b: m(Inputs(*b))))
stranger("checkpoint-sequential")(lambda: Case(mlp(), rows, lambda m, b: F.cross_entropy(
    checkpoint_sequential(m, 2, b[0], use_reentrant=False), b[1])))  # fmt: skip


def offloaded(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return F.cross_entropy(model(batch[0]), batch[1])


stranger("saved-on-cpu")(lambda: Case(mlp(), rows, offloaded))
