"""Losses and training loops that people write around a model: pairs, ranks, counts, segments, policies, trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from zoo_models.cases import Batch, Case, classes, lengths, own_loss, padded_words, without_dropout
from zoo_models.plain import classify, mlp, rows, sequences, series
from zoo_models.stranger_nets import stranger


def smoothed(model: nn.Module, batch: Batch) -> Tensor:
    """Label smoothing by hand, as fastai's lesson."""
    log = model(batch[0]).log_softmax(dim=-1)
    nll = -log.gather(dim=-1, index=batch[1].unsqueeze(1)).squeeze(1)
    return (0.9 * nll - 0.1 * log.mean(dim=-1)).mean()


def focal(model: nn.Module, batch: Batch) -> Tensor:
    ce = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    weight = torch.tensor([0.2, 0.3, 0.5])[batch[1]]
    return (weight * (1 - torch.exp(-ce)) ** 2 * ce).mean()


def triplets(size: int, generator: torch.Generator) -> Batch:
    return tuple(torch.randn(size, 8, generator=generator) for _ in range(3))


def within_record(model: nn.Module, batch: Batch) -> Tensor:
    """A triplet is one record."""
    anchor, near, far = (F.normalize(model(x), dim=1) for x in batch)
    return F.relu((anchor - near).pow(2).sum(1) - (anchor - far).pow(2).sum(1) + 0.2).mean()


def siamese(model: nn.Module, batch: Batch) -> Tensor:
    """Hadsell's contrastive loss over a pair that is one record; both halves in one pass."""
    a, b, mark = batch[0], batch[1], (batch[2][:, 0] > 0).float()
    both = model(torch.cat([a, b], dim=0))
    found = torch.split(both, len(a))
    far = F.pairwise_distance(found[0], found[1])
    return torch.mean((1 - mark) * far.pow(2) + mark * torch.clamp(1.0 - far, min=0.0).pow(2))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp(8, 8), nn.ModuleDict({"kind": nn.Linear(8, 3), "size": nn.Linear(8, 1)})
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.body(x))
        return {name: head(h) for name, head in self.heads.items()}


def tasks(model: Any, batch: Batch) -> Tensor:
    """Two tasks, of which the second has no label for some records."""
    out, there = model(batch[0]), (batch[1] != 0).float()
    kind = F.cross_entropy(out["kind"], batch[1], reduction="none")
    size = F.smooth_l1_loss(out["size"].squeeze(1), batch[0].sum(1), reduction="none") * there
    both = torch.stack([kind, size], dim=1)
    return (torch.exp(-model.log_vars) * both + model.log_vars).sum(dim=1).mean()


def hurdle(model: nn.Module, batch: Batch) -> Tensor:
    """Zero-inflated Poisson counts."""
    zero, rate = model(batch[0]).unbind(1)[:2]
    count, rate = batch[1].float(), F.softplus(rate) + 1e-3
    poisson = rate - count * rate.log() + torch.lgamma(count + 1)
    none = -torch.logaddexp(F.logsigmoid(zero), F.logsigmoid(-zero) - rate)
    return torch.where(count == 0, none, poisson - F.logsigmoid(-zero)).mean()


def evidential(model: nn.Module, batch: Batch) -> Tensor:
    """Normal-inverse-gamma regression."""
    mean, raw = model(batch[0])[:, 0], F.softplus(model(batch[0])[:, 1:]) + 1e-2
    nu, alpha, beta, y = raw[:, 0], raw[:, 1] + 1, raw[:, 2], batch[0].sum(1)
    omega = 2 * beta * (1 + nu)
    nll = 0.5 * torch.log(torch.pi / nu) - alpha * omega.log() + (alpha + 0.5) * ((y - mean) ** 2 * nu + omega).log()
    nll = nll + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
    return (nll + 0.01 * (y - mean).abs() * (2 * nu + alpha)).mean()


def ordinal(model: nn.Module, batch: Batch) -> Tensor:
    """Cumulative links: the last two outputs are ordered thresholds of every record."""
    out = model(batch[0])
    cuts = torch.cumsum(torch.cat([out[:, 1:2], F.softplus(out[:, 2:])], 1), 1)
    below = torch.sigmoid(cuts - out[:, :1])
    p = torch.cat([below[:, :1], below[:, 1:] - below[:, :-1], 1 - below[:, -1:]], dim=1)
    return F.nll_loss(p.clamp_min(1e-8).log(), batch[1])


def pinball(model: nn.Module, batch: Batch) -> Tensor:
    error = batch[0].sum(1, keepdim=True) - model(batch[0])
    q = torch.tensor([0.1, 0.5, 0.9])
    return torch.max(q * error, (q - 1) * error).sum(1).mean()


def clipped_policy(model: nn.Module, batch: Batch) -> Tensor:
    """PPO with advantages that come with the data, an entropy bonus and a clipped value."""
    out = model(batch[0])
    policy = torch.distributions.Categorical(logits=out[:, :3])
    ratio = torch.exp(policy.log_prob(batch[1]) - batch[0][:, 0])
    advantage, before = batch[0][:, 1], batch[0][:, 2]
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    value = before + (out[:, 3] - before).clamp(-0.2, 0.2)
    worst = torch.max((out[:, 3] - batch[0][:, 3]) ** 2, (value - batch[0][:, 3]) ** 2)
    return -surrogate.mean() + 0.5 * worst.mean() - 0.01 * policy.entropy().mean()


class Forecaster(nn.Module):
    """DeepAR: an LSTM with negative-binomial outputs and a scale of each series' own."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.LSTM(1, 8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + x.abs().mean(dim=1, keepdim=True)
        mean, spread = F.softplus(self.head(self.net(x / scale)[0])).chunk(2, -1)
        mean, spread = mean * scale + 1e-3, spread / scale.sqrt() + 1e-3
        y = x.abs().round()
        return -torch.distributions.NegativeBinomial(1 / spread, logits=(mean * spread).log()).log_prob(y).mean((1, 2))


class Sentences(nn.Module):
    """Hierarchical attention over words of sentences and sentences of a text, packed by length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.sentences = nn.GRU(8, 4, batch_first=True, bidirectional=True), nn.GRU(8, 6, batch_first=True)
        self.context, self.head = nn.Linear(8, 1, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        h = self.words(x.reshape(len(x) * 3, 3, 8))[0]
        h = (h * torch.softmax(self.context(torch.tanh(h)), 1)).sum(1).view(len(x), 3, 8)
        packed = pack_padded_sequence(h, ((long + 2) // 3).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.sentences(packed)[1][0])


class Lightning(nn.Module):
    """A training step in the manner of Lightning, with an accuracy beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.logged = mlp(), []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Batch, index: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        self.logged = [float(loss.detach()), (logits.argmax(1) == batch[1]).float().mean().item()]
        return {"loss": loss, "progress": loss.detach()}


def bert(**options: Any) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, num_labels=3, **options,
    )  # fmt: skip
    return transformers.AutoModelForSequenceClassification.from_config(without_dropout(config))


def sorted_words(size: int, generator: torch.Generator) -> Batch:
    return padded_words(size, generator) | {"labels": classes(size, 3, generator)}


def trainer_smoothing(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The Trainer's `label_smoothing_factor`."""
    from transformers.trainer_pt_utils import LabelSmoother

    given = dict(batch)
    labels = given.pop("labels")
    return LabelSmoother(0.1)({"logits": model(**given).logits}, labels)


def trainer_weights(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """A `compute_loss` of one's own, with a weight for each class, scaled to their mean over all classes."""
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], return_dict=False)[0]
    weight = torch.tensor([1.0, 2.0, 3.0])[batch["labels"]]
    return (weight * F.cross_entropy(out, batch["labels"], reduction="none")).mean()


class Pooled(nn.Module):
    """Sentence-transformers' mean pooling in front of a head, and a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.head = bert().bert, nn.Linear(16, 3)
        for p in self.bert.embeddings.parameters():
            p.requires_grad = False

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).expand(h.size()).float()
        pooled = torch.sum(h * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
        logits = self.head(F.normalize(pooled, p=2, dim=1))
        return F.cross_entropy(logits, labels), logits


def layers_at_rates(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """All hidden states, weighted; the attention of the last layer as a penalty on each example."""
    out = model(**batch, output_hidden_states=True, output_attentions=True)
    spread = torch.stack(out.hidden_states).mean(0).square().mean((1, 2))
    far = out.attentions[-1].amax(-1).mean((1, 2))
    return out.loss + (0.01 * spread + 0.1 * far).mean()


def counted(size: int, generator: torch.Generator) -> Batch:
    x, y = rows(size, generator)
    return x, y + lengths(size, 4, 0, generator)


stranger("smoothing-by-hand")(lambda: Case(mlp(), rows, smoothed))
stranger("focal-with-class-weights")(lambda: Case(mlp(), rows, focal))
stranger("triplet-in-a-record")(lambda: Case(mlp(8, 4), triplets, within_record))
stranger("siamese-in-one-pass")(lambda: Case(mlp(8, 4), triplets, siamese))
stranger("tasks-with-missing-labels")(lambda: Case(Several(), rows, tasks))
stranger("zero-inflated")(lambda: Case(mlp(), counted, hurdle))
stranger("evidential")(lambda: Case(mlp(8, 4), rows, evidential))
stranger("cumulative-links")(lambda: Case(mlp(), rows, ordinal))
stranger("pinball")(lambda: Case(mlp(), rows, pinball))
stranger("clipped-policy")(lambda: Case(mlp(8, 4), rows, clipped_policy))
stranger("deep-ar")(lambda: Case(Forecaster(), lambda n, g: series(n, g)[:1], lambda m, b: m(b[0]).mean()))
stranger("hierarchical-attention")(lambda: Case(Sentences(), sequences, classify))
stranger("lightning-step")(lambda: Case(Lightning(), rows, lambda m, b: m.training_step(b, 0)["loss"]))
stranger("trainer-smoothing")(lambda: Case(bert(), sorted_words, trainer_smoothing, options={"reduction": "mean"}))
stranger("trainer-class-weights")(lambda: Case(bert(), sorted_words, trainer_weights))
stranger("mean-pooling")(lambda: Case(Pooled(), sorted_words, lambda m, b: m(**b)[0]))
stranger("all-hidden-states")(lambda: Case(bert(attn_implementation="eager"), sorted_words, layers_at_rates))
stranger("bert-in-halves")(lambda: Case(bert(chunk_size_feed_forward=5), sorted_words, own_loss))
