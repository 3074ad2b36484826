"""Sequence models as tutorials write them: attention with teacher forcing, CRF, pointers, memories, word vectors."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.plain import classify, series, texts

tutorial = partial(entry, "tutorial")


def pairs(size: int, generator: torch.Generator) -> Batch:
    """Draw padded sources and targets of words."""
    source, long, _ = texts(size, generator)
    target, other, _ = texts(size, generator)
    return source, long, target, other


class Translator(nn.Module):
    """An encoder, and a decoder that attends to it word by word with the right word as its next input."""

    def __init__(self, forced: bool) -> None:
        super().__init__()
        self.forced = forced
        self.words = nn.Embedding(30, 8, padding_idx=0)
        self.encoder, self.cell = nn.GRU(8, 8, batch_first=True), nn.GRUCell(16, 8)
        self.query, self.key, self.score = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.out = nn.Linear(16, 30)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.encoder(self.words(source))
        hidden, step, logits = last[0], torch.full_like(target[:, 0], 1), []
        for t in range(target.shape[1]):
            energy = self.score(torch.tanh(self.query(hidden)[:, None] + self.key(states))).squeeze(2)
            weights = F.softmax(energy.masked_fill(source == 0, -1e9), 1)
            context = torch.bmm(weights[:, None], states).squeeze(1)
            hidden = self.cell(torch.cat([self.words(step), context], 1), hidden)
            logits.append(self.out(torch.cat([hidden, context], 1)))
            step = target[:, t] if self.forced else logits[-1].argmax(1).detach()
        return torch.stack(logits, 1)


def translation(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch[0], batch[2])
    return F.cross_entropy(logits.transpose(1, 2), batch[2], ignore_index=0)


def flat_translation(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch[0], batch[2])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[2].reshape(-1), ignore_index=0)


tutorial("attention-forced", token_mean=True)(lambda: Case(Translator(True), pairs, translation))
tutorial("attention-greedy", token_mean=True)(lambda: Case(Translator(False), pairs, flat_translation))


class CRF(nn.Module):
    """A tagger with a linear-chain conditional random field."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(30, 8), nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(8, 4)
        self.transitions = nn.Parameter(torch.randn(4, 4))
        self.start, self.end = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, words: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        emissions = self.emit(self.lstm(self.words(words))[0])
        return (self.normaliser(emissions, mask) - self.score(emissions, tags, mask)).mean()

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        rows = torch.arange(len(tags))
        score = self.start[tags[:, 0]] + emissions[rows, 0, tags[:, 0]]
        for t in range(1, tags.shape[1]):
            step = self.transitions[tags[:, t - 1], tags[:, t]] + emissions[rows, t, tags[:, t]]
            score = score + step * mask[:, t]
        last = tags.gather(1, mask.long().sum(1, keepdim=True) - 1).squeeze(1)
        return score + self.end[last]

    def normaliser(self, emissions: Tensor, mask: Tensor) -> Tensor:
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            moved = alpha[:, :, None] + self.transitions[None] + emissions[:, t, None]
            alpha = torch.where(mask[:, t, None], torch.logsumexp(moved, 1), alpha)
        return torch.logsumexp(alpha + self.end, 1)


@tutorial("crf-tagger")
def crf() -> Case:
    def batch(size: int, generator: torch.Generator) -> Batch:
        words, long, _ = texts(size, generator)
        tags = torch.randint(0, 4, (size, 9), generator=generator)
        return words, tags, torch.arange(9)[None] < long[:, None]

    return Case(CRF(), batch, lambda m, b: m(*b))


@tutorial("pointer-network")
def pointer() -> Case:
    """Point at the positions of the input in sorted order; a visited position is masked."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.cell = nn.LSTM(1, 8, batch_first=True), nn.LSTMCell(8, 8)
            self.a, self.b, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1, bias=False)
            self.begin = nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor, order: Tensor) -> Tensor:
            states, (h, c) = self.encoder(x)
            h, c, step, seen = h[0], c[0], self.begin.expand(len(x), 8), torch.zeros(x.shape[:2], dtype=torch.bool)
            loss = torch.zeros(len(x))
            for t in range(x.shape[1]):
                h, c = self.cell(step, (h, c))
                score = self.v(torch.tanh(self.a(states) + self.b(h)[:, None])).squeeze(2).masked_fill(seen, -1e9)
                loss = loss + F.cross_entropy(score, order[:, t], reduction="none")
                seen = seen.scatter(1, order[:, t, None], True)
                step = states[torch.arange(len(x)), order[:, t]]
            return loss

    def batch(size: int, generator: torch.Generator) -> Batch:
        x = torch.rand(size, 5, 1, generator=generator)
        return x, x.squeeze(2).argsort(1)

    return Case(Model(), batch, lambda m, b: m(*b).mean())


@tutorial("word2vec")
def skip_grams() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.Embedding(30, 8, sparse=False), nn.Embedding(30, 8)

        def forward(self, centre: Tensor, context: Tensor, negative: Tensor) -> Tensor:
            v, u, n = self.inside(centre), self.outside(context), self.outside(negative)
            right = F.logsigmoid((v * u).sum(1))
            wrong = F.logsigmoid(-torch.bmm(n, v.unsqueeze(2)).squeeze()).sum(-1)
            return -(right + wrong).mean()

    def batch(size: int, generator: torch.Generator) -> Batch:
        return classes(size, 30, generator), classes(size, 30, generator), torch.randint(0, 30, (size, 5))

    return Case(Model(), batch, lambda m, b: m(*b))


class Position(nn.Module):
    """The sinusoids of PyTorch's tutorial, with the batch in the second dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        place, rate = torch.arange(32).unsqueeze(1), torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        table = torch.zeros(32, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.size(0)]


@tutorial("transformer-tutorial", token_mean=True)
def language() -> Case:
    """PyTorch's own tutorial: [time, batch], a causal mask, the loss over the flattened words."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position, self.words = Position(8), nn.Embedding(30, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            self.encoder, self.decoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 30)

        def forward(self, words: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(len(words))
            return self.decoder(self.encoder(self.position(self.words(words) * math.sqrt(8)), mask))

    def batch(size: int, generator: torch.Generator) -> Batch:
        text = torch.randint(0, 30, (8, size), generator=generator)
        return text[:-1], text[1:]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]).view(-1, 30), batch[1].reshape(-1))

    return Case(Model(), batch, loss, take=lambda b, rows: tuple(t[:, rows] for t in b), options={"batch_dim": 1})


@tutorial("decoder-only-tied", token_mean=True)
def tied_language() -> Case:
    """A GPT by hand: fused qkv, a registered triangular mask, tied output weights, a loss on flattened views."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(8), nn.LayerNorm(8)
            self.qkv, self.proj = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)
            self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
            self.register_buffer("tril", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

        def forward(self, x: Tensor) -> Tensor:
            B, T, C = x.size()
            q, k, v = self.qkv(self.one(x)).split(C, dim=2)
            q, k, v = (part.view(B, T, 2, C // 2).transpose(1, 2) for part in (q, k, v))
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
            y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C)
            x = x + self.proj(y)
            return x + self.mlp(self.two(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30, 8), nn.Embedding(16, 8)
            self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(8)
            self.head = nn.Linear(8, 30, bias=False)
            self.words.weight = self.head.weight

        def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
            pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
            logits = self.head(self.norm(self.blocks(self.words(idx) + self.places(pos))))
            if targets is None:
                return logits, None
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def batch(size: int, generator: torch.Generator) -> Batch:
        text = torch.randint(0, 30, (size, 9), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return Case(Model(), batch, lambda m, b: m(*b)[1])


@tutorial("memory-network")
def memory() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(30, 8) for _ in range(3))
            self.time = nn.Parameter(torch.randn(4, 8))
            self.out = nn.Linear(8, 3)

        def forward(self, story: Tensor, question: Tensor) -> Tensor:
            state = self.tables[0](question).sum(1)
            for key, value in zip(self.tables, self.tables[1:]):
                keys, values = key(story).sum(2) + self.time, value(story).sum(2)
                weights = torch.softmax(torch.einsum("bsd,bd->bs", keys, state), 1)
                state = state + (weights.unsqueeze(-1) * values).sum(1)
            return self.out(state)

    def batch(size: int, generator: torch.Generator) -> Batch:
        story = torch.randint(0, 30, (size, 4, 6), generator=generator)
        return story, torch.randint(0, 30, (size, 5), generator=generator), classes(size, 3, generator)

    return Case(Model(), batch, classify)


@tutorial("learned-initial-state")
def learned_start() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h, self.c = nn.Parameter(torch.zeros(2, 1, 8)), nn.Parameter(torch.zeros(2, 1, 8))
            self.lstm, self.out = nn.LSTM(1, 8, num_layers=2, batch_first=True), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            n = x.size(0)
            state = self.h.expand(-1, n, -1).contiguous(), self.c.expand(-1, n, -1).contiguous()
            return self.out(self.lstm(x, state)[0])

    return Case(Model(), series, lambda m, b: F.mse_loss(m(b[0]), b[1]))


@tutorial("masked-gru-steps")
def masked_steps() -> Case:
    """A cell in a loop that keeps the state of sequences that are over."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell, self.out = nn.Embedding(30, 8), nn.GRUCell(8, 8), nn.Linear(8, 3)

        def forward(self, words: Tensor, long: Tensor) -> Tensor:
            x = self.words(words)
            h = x.new_zeros(len(words), 8)
            for t in range(words.size(1)):
                alive = (t < long).float().unsqueeze(1)
                h = alive * self.cell(x[:, t], h) + (1 - alive) * h
            return self.out(h)

    return Case(Model(), texts, classify)
