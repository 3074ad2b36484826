"""Texts, pairs of texts, and sequences of events, as tutorials and papers write them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo_models.cases import Batch, Case, classes, entry, lengths

WORDS, LONGEST = 40, 9


def texts(size: int, g: torch.Generator, longest: int = LONGEST, shortest: int = 3) -> tuple[Tensor, Tensor]:
    words = torch.randint(1, WORDS, (size, longest), generator=g)
    mask = torch.arange(longest)[None] < lengths(size, longest, shortest, g)[:, None]
    return words * mask, mask


class Tagger(nn.Module):
    """Characters by a convolution, words by a table, both through an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.chars, self.words = nn.Embedding(20, 6, padding_idx=0), nn.Embedding(WORDS, 8, padding_idx=0)
        self.conv, self.lstm = nn.Conv1d(6, 5, 3, padding=1), nn.LSTM(13, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor, chars: Tensor) -> Tensor:
        b, t, c = chars.shape
        each = self.conv(self.chars(chars.view(b * t, c)).transpose(1, 2)).max(2)[0].view(b, t, -1)
        out, _ = self.lstm(torch.cat([self.words(words), each], 2))
        return self.head(out)


@entry("visitor", "char-word-tagger", token_mean=True)
def tagger() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        words, mask = texts(size, g)
        tags = torch.randint(0, 4, words.shape, generator=g).masked_fill(~mask, -100)
        return words, torch.randint(0, 20, (*words.shape, 5), generator=g), tags

    return Case(Tagger(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]).view(-1, 4), b[2].view(-1)))


class LastState(nn.Module):
    """The state at each text's own end, and a packed pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gru, self.head = nn.Embedding(WORDS, 8), nn.GRU(8, 8, 2), nn.Linear(16, 3)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum(1)
        x = self.table(words.t())
        out, _ = self.gru(x)
        last = out.gather(0, (count - 1).view(1, -1, 1).expand(1, -1, 8)).squeeze(0)
        return self.head(torch.cat([last, out.max(0).values], 1))


@entry("visitor", "last-state-time-first")
def last_state() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        words, mask = texts(size, g)
        return words, mask, classes(size, 3, g)

    return Case(LastState(), batch, lambda m, b: nn.CrossEntropyLoss()(m(b[0], b[1]), b[2]))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.head = nn.Embedding(WORDS, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, words: Tensor, count: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(words), count, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=words.shape[1])
        return self.head(out.sum(1) / count[:, None])


@entry("visitor", "packed-mean-state")
def packed() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        words, mask = texts(size, g)
        return words, mask.sum(1), classes(size, 3, g)

    return Case(Packed(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))


class Inference(nn.Module):
    """ESIM: two texts attend to each other, under their masks."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.encode = nn.Embedding(WORDS, 8), nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.compare, self.head = nn.Linear(48, 10), nn.Sequential(nn.Linear(40, 10), nn.Tanh(), nn.Linear(10, 3))

    def forward(self, a: Tensor, am: Tensor, b: Tensor, bm: Tensor) -> Tensor:
        x, y = self.encode(self.table(a))[0], self.encode(self.table(b))[0]
        e = torch.bmm(x, y.transpose(1, 2))
        xs = torch.bmm(F.softmax(e.masked_fill(~bm[:, None], -1e9), 2), y)
        ys = torch.bmm(F.softmax(e.transpose(1, 2).masked_fill(~am[:, None], -1e9), 2), x)
        p = [torch.relu(self.compare(torch.cat([u, v, u - v, u * v], -1))) for u, v in ((x, xs), (y, ys))]
        pooled = []
        for h, mask in zip(p, (am, bm)):
            pooled += [
                (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
                h.masked_fill(~mask[..., None], -1e7).max(1)[0],
            ]
        return self.head(torch.cat(pooled, 1))


@entry("visitor", "esim")
def esim() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        return *texts(size, g), *texts(size, g, 7), classes(size, 3, g)

    return Case(Inference(), batch, lambda m, b: F.cross_entropy(m(*b[:4]), b[4]))


class Bidaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.w, self.start, self.end = nn.Linear(24, 1, bias=False), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, c: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        c, q = self.table(c), self.table(q)
        n, m = c.size(1), q.size(1)
        cc, qq = c.unsqueeze(2).expand(-1, -1, m, -1), q.unsqueeze(1).expand(-1, n, -1, -1)
        s = self.w(torch.cat((cc, qq, cc * qq), 3)).squeeze(3)
        a = torch.bmm(F.softmax(s, 2), q)
        b = torch.bmm(F.softmax(s.max(2)[0], 1).unsqueeze(1), c).repeat(1, n, 1)
        g = torch.cat((c, a, c * a, c * b), 2)
        return self.start(g).squeeze(-1), self.end(g).squeeze(-1)


@entry("visitor", "bidaf")
def bidaf() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        return texts(size, g)[0], texts(size, g, 5)[0], classes(size, 9, g), classes(size, 9, g)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        start, end = m(b[0], b[1])
        return (F.cross_entropy(start, b[2]) + F.cross_entropy(end, b[3])) / 2

    return Case(Bidaf(), batch, loss, options={"reduction": "mean"})


class LateInteraction(nn.Module):
    """ColBERT with one positive and one negative text in each record."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.project = nn.Embedding(WORDS, 8), nn.Linear(8, 6, bias=False)

    def forward(self, q: Tensor, d: Tensor, mask: Tensor) -> Tensor:
        q, d = (F.normalize(self.project(self.table(t)), p=2, dim=-1) for t in (q, d))
        s = torch.einsum("bqd,bnkd->bnqk", q, d)
        return s.masked_fill(~mask[:, :, None], float("-inf")).max(-1).values.sum(-1)


@entry("visitor", "late-interaction")
def late() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        d, mask = texts(3 * size, g)
        return texts(size, g, 4)[0], d.view(size, 3, -1), mask.view(size, 3, -1)

    def loss(m: nn.Module, b: Batch) -> Tensor:
        scores = m(*b)
        return F.cross_entropy(scores, torch.zeros(scores.size(0), dtype=torch.long))

    return Case(LateInteraction(), batch, loss)


class NanoGPT(nn.Module):
    """A decoder with rotations in complex numbers, and its own loss over shifted words."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(WORDS, 16), nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.n1, self.n2 = nn.RMSNorm(16), nn.LayerNorm(16)
        self.up, self.gate, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)
        angle = torch.outer(torch.arange(16).float(), 1.0 / 100 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("turn", torch.polar(torch.ones_like(angle), angle), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * self.turn[None, : x.shape[1], None]).flatten(3).type_as(x)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(idx)
        b, t, c = x.size()
        q, k, v = self.qkv(self.n1(x)).split(16, dim=2)
        q, k = self.rotate(q.view(b, t, 2, 8)).transpose(1, 2), self.rotate(k.view(b, t, 2, 8)).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        att = att.masked_fill(torch.tril(torch.ones(t, t)).view(1, 1, t, t) == 0, float("-inf")).softmax(-1)
        x = x + self.out((att @ v.view(b, t, 2, 8).transpose(1, 2)).transpose(1, 2).contiguous().view(b, t, c))
        h = self.n2(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        logits = x @ self.table.weight.t()
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


@entry("visitor", "nano-gpt-complex-rotary", token_mean=True)
def nano() -> Case:
    def batch(size: int, g: torch.Generator) -> Batch:
        words, mask = texts(size, g, LONGEST + 1)
        return words[:, :-1].contiguous(), words[:, 1:].masked_fill(~mask[:, 1:], -1)

    return Case(NanoGPT(), batch, lambda m, b: m(*b)[1])
