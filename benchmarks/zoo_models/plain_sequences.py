"""Recurrent networks, attention and convolutions over sequences in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes
from zoo_models.plain import classify, plain, sequences, texts


class Recurrent(nn.Module):
    def __init__(self, kind: str, packed: bool, **options: Any) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(8, 12, batch_first=True, **options)
        self.head = nn.Linear(12 * (2 if options.get("bidirectional") else 1), 3)
        self.packed = packed

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        if self.packed:
            packed = nn.utils.rnn.pack_padded_sequence(x, long, batch_first=True, enforce_sorted=False)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.net(packed)[0], batch_first=True, total_length=x.shape[1])
        else:
            h, _ = self.net(x)
        last = (long - 1)[:, None, None].expand(-1, 1, h.shape[2])
        return self.head(h.gather(1, last).squeeze(1))


for kind in ("RNN", "GRU", "LSTM"):
    plain(kind.lower())(lambda kind=kind: Case(Recurrent(kind, False), sequences, classify))
plain("lstm-bidirectional")(
    lambda: Case(Recurrent("LSTM", False, bidirectional=True, num_layers=2), sequences, classify)
)
plain("lstm-packed")(lambda: Case(Recurrent("LSTM", True), sequences, classify))


class Cells(nn.Module):
    """A loop of `LSTMCell`s."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 12)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


plain("lstm-cell")(lambda: Case(Cells(), sequences, classify))


class Words(nn.Module):
    """An encoder of `torch.nn` with a key padding mask and a learned position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(30, 16, padding_idx=0), nn.Parameter(torch.randn(9, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, words: Tensor, long: Tensor) -> Tensor:
        padding = words == 0
        h = self.encoder(self.embed(words) + self.position, src_key_padding_mask=padding)
        h = h.masked_fill(padding[:, :, None], 0.0)
        return self.head(h.sum(1) / long[:, None])


plain("transformer-encoder")(lambda: Case(Words(), texts, classify))


class Translator(nn.Module):
    """`nn.Transformer` with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.net = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.net(self.embed(source), self.embed(target), tgt_mask=causal))


@plain("transformer", token_mean=True)
def translator() -> Case:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0], batch[0][:, :-1])
        return F.cross_entropy(out.reshape(-1, 30), batch[0][:, 1:].reshape(-1), ignore_index=0)

    return Case(Translator(), texts, loss)


@plain("additive-attention")
def additive() -> Case:
    """Bahdanau's attention pooling over a GRU."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.net = nn.Embedding(30, 8), nn.GRU(8, 12, batch_first=True)
            self.score, self.head = nn.Linear(12, 1), nn.Linear(12, 3)

        def forward(self, words: Tensor, long: Tensor) -> Tensor:
            h, _ = self.net(self.embed(words))
            score = self.score(h.tanh()).squeeze(2).masked_fill(words == 0, -1e9)
            return self.head(torch.einsum("bt,btd->bd", score.softmax(1), h))

    return Case(Model(), texts, classify)


@plain("embedding-bag")
def bag() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.EmbeddingBag(30, 8, mode="mean", padding_idx=0), nn.Linear(8, 3)

        def forward(self, words: Tensor, long: Tensor) -> Tensor:
            return self.head(self.embed(words))

    return Case(Model(), texts, classify)


@plain("conv-text")
def conv_text() -> Case:
    """Kim's convolutions over words with max pooling over time."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(30, 8)
            self.convs = nn.ModuleList(nn.Conv1d(8, 6, k) for k in (2, 3))
            self.head = nn.Linear(12, 3)

        def forward(self, words: Tensor, long: Tensor) -> Tensor:
            x = self.embed(words).mT
            return self.head(torch.cat([F.relu(c(x)).amax(2) for c in self.convs], 1))

    return Case(Model(), texts, classify)


@plain("wavenet")
def wavenet() -> Case:
    """Dilated causal convolutions with left padding and gates."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(8, 12, 1)
            self.layers = nn.ModuleList(nn.Conv1d(12, 24, 2, dilation=2**i) for i in range(3))
            self.head = nn.Linear(12, 3)

        def forward(self, x: Tensor, long: Tensor) -> Tensor:
            h = self.first(x.mT)
            for i, layer in enumerate(self.layers):
                a, b = layer(F.pad(h, (2**i, 0))).chunk(2, 1)
                h = h + a.tanh() * b.sigmoid()
            return self.head(h.mean(2))

    return Case(Model(), sequences, classify)


@plain("time-first-gru")
def time_first() -> Case:
    """A recurrent network with the batch in the second dimension, as `nn.GRU` has it by default."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.GRU(8, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x)[0][-1])

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(7, size, 8, generator=generator), classes(size, 3, generator)

    def take(batch: Batch, rows: Tensor) -> Batch:
        return batch[0].index_select(1, rows), batch[1].index_select(0, rows)

    return Case(Model(), batch, classify, take=take, options={"batch_dim": 1})
