"""Histories of items and facts of a graph, as recommenders and embeddings of knowledge train on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.visitor_texts import LONGEST, WORDS, texts


class Interest(nn.Module):
    """DIN: a candidate looks at the history of events."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 6, padding_idx=0)
        self.unit = nn.Sequential(nn.Linear(24, 8), nn.PReLU(), nn.Linear(8, 1))
        self.head = nn.Sequential(nn.Linear(12, 8), nn.PReLU(), nn.Linear(8, 1))

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        h, i = self.table(history), self.table(item)
        wide = i.unsqueeze(1).expand_as(h)
        w = self.unit(torch.cat([h, wide, h - wide, h * wide], -1)).squeeze(-1)
        w = w.masked_fill(history == 0, 0.0)
        return torch.sigmoid(self.head(torch.cat([torch.einsum("bt,btd->bd", w, h), i], 1))).squeeze(1)


@entry("visitor", "deep-interest")
def interest() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        item = torch.randint(1, WORDS, (size,), generator=g)
        return texts(size, g)[0], item, torch.randint(0, 2, (size,), generator=g).float()

    return Case(Interest(), batch, lambda m, b: nn.BCELoss()(m(b[0], b[1]), b[2]))


class SasRec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item, self.place = nn.Embedding(WORDS, 8, padding_idx=0), nn.Embedding(LONGEST, 8)
        self.norm, self.attend = nn.LayerNorm(8), nn.MultiheadAttention(8, 2)
        self.conv1, self.conv2 = nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 1)

    def forward(self, seq: Tensor, pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:
        x = self.item(seq) * 8**0.5 + self.place(torch.arange(seq.shape[1]))
        x = x * (seq != 0).unsqueeze(-1)
        q = self.norm(x.transpose(0, 1))
        future = ~torch.tril(torch.ones((seq.shape[1], seq.shape[1]), dtype=torch.bool))
        x = (q + self.attend(q, x.transpose(0, 1), x.transpose(0, 1), attn_mask=future)[0]).transpose(0, 1)
        x = x + self.conv2(F.relu(self.conv1(x.transpose(-1, -2)))).transpose(-1, -2)
        return (x * self.item(pos)).sum(-1), (x * self.item(neg)).sum(-1)


@entry("visitor", "sasrec-masked-losses", token_mean=True)
def sasrec() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        words, mask = texts(size, g)
        return (
            words,
            torch.randint(1, WORDS, words.shape, generator=g) * mask,
            torch.randint(1, WORDS, words.shape, generator=g) * mask,
        )

    def loss(m: nn.Module, b: Batch) -> Tensor:
        pos, neg = m(*b)
        rows = torch.where(b[1] != 0)
        each = nn.BCEWithLogitsLoss()
        return each(pos[rows], torch.ones_like(pos[rows])) + each(neg[rows], torch.zeros_like(neg[rows]))

    return Case(SasRec(), batch, loss)


class TransE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.things, self.relations = nn.Embedding(WORDS, 8), nn.Embedding(5, 8)

    def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        h, t = F.normalize(self.things(h), 2, -1), F.normalize(self.things(t), 2, -1)
        return torch.norm(h + self.relations(r) - t, p=1, dim=-1)


@entry("visitor", "trans-e")
def trans_e() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        h, t, n = (torch.randint(0, WORDS, (size,), generator=g) for _ in range(3))
        return h, classes(size, 5, g), t, n

    def loss(m: nn.Module, b: Batch) -> Tensor:
        good, bad = m(b[0], b[1], b[2]), m(b[0], b[1], b[3])
        return F.margin_ranking_loss(good, bad, -torch.ones_like(good), margin=4.0)

    return Case(TransE(), batch, loss)


class RotatE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.things = nn.Parameter(torch.randn(WORDS, 8))
        self.relations = nn.Parameter(torch.randn(5, 4))

    def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        h, t = (
            torch.index_select(self.things, 0, h).unsqueeze(1),
            torch.index_select(self.things, 0, t.view(-1)).view(*t.shape, 8),
        )
        phase = torch.index_select(self.relations, 0, r).unsqueeze(1)
        re, im = torch.chunk(h, 2, 2)
        tre, tim = torch.chunk(t, 2, 2)
        a, b = torch.cos(phase), torch.sin(phase)
        d = torch.stack([re * a - im * b - tre, re * b + im * a - tim], 0).norm(dim=0)
        return 6.0 - d.sum(2)


@entry("visitor", "rotat-e-self-adversarial")
def rotat_e() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        return (torch.randint(0, WORDS, (size,), generator=g), classes(size, 5, g),
                torch.randint(0, WORDS, (size, 4), generator=g))  # fmt: skip

    def loss(m: nn.Module, b: Batch) -> Tensor:
        s = m(*b)
        pos, neg = s[:, :1], s[:, 1:]
        neg = (F.softmax(neg * 0.5, dim=1).detach() * F.logsigmoid(-neg)).sum(1)
        return (-neg.mean() - F.logsigmoid(pos).squeeze(1).mean()) / 2

    return Case(RotatE(), batch, loss, options={"reduction": "mean"})
