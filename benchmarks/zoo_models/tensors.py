"""Models built around one tensor operation: routing, scatters, writes into tensors, casts, padding."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, classes, entry
from zoo_models.plain import classify, mlp, rows, sequences, texts

tensor = partial(entry, "tensors")


class Routed(nn.Module):
    """Each word goes to its two best experts; `mode` says how the words of an expert are gathered."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.embed, self.gate, self.head = nn.Embedding(30, 8), nn.Linear(8, 4), nn.Linear(8, 3)
        self.experts = nn.ModuleList(mlp(8, 8) for _ in range(4))

    def forward(self, words: Tensor, long: Tensor) -> Tensor:
        x = self.embed(words).flatten(0, 1)
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            if self.mode == "index_add":
                out.index_add_(0, row, expert(x[row]) * weight[row, place, None])
            elif self.mode == "index_select":
                out = out.index_add(0, row, expert(x.index_select(0, row)) * weight[row, place].unsqueeze(1))
            elif row.numel():
                out[row] += expert(x[row]) * weight[row, place, None]
        return self.head(out.view(*words.shape, 8).mean(1))


for mode in ("index_add", "index_select", "setitem"):
    tensor(f"experts-{mode}")(lambda mode=mode: Case(Routed(mode), texts, classify))


class DenseRouted(nn.Module):
    """All experts run on all examples, weighted by a softmax gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        each = torch.stack([expert(x) for expert in self.experts], 1)
        return torch.einsum("be,beo->bo", self.gate(x).softmax(1), each)


tensor("experts-dense")(lambda: Case(DenseRouted(), rows, classify))


class Sequences(nn.Module):
    """Padded sequences through a linear layer, an operation of the subclass, and a mean."""

    uses_token = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(8), requires_grad=self.uses_token)

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        return self.head(self.between(self.first(x), long).mean(1))


class SetParameter(Sequences):
    """wav2vec2's masking: a parameter written over the places of a mask."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        h = h.clone()
        h[torch.arange(h.shape[1])[None, :] >= long[:, None]] = self.token
        return h.relu()


class MaskedScatter(Sequences):
    """Values of another sequence of the same example put where a mask says."""

    uses_token = False

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        mask = (torch.arange(h.shape[1]) % 3 == 0)[None, :, None].expand_as(h)
        return h.masked_scatter(mask, h.tanh().flip(1)[:, ::3])


class WhereParameter(Sequences):
    def between(self, h: Tensor, long: Tensor) -> Tensor:
        return torch.where((torch.arange(h.shape[1])[None, :] < long[:, None])[:, :, None], h, self.token).relu()


class TypeAs(Sequences):
    def between(self, h: Tensor, long: Tensor) -> Tensor:
        mask = (torch.arange(h.shape[1])[None, :] < long[:, None]).type_as(h)
        return h * mask[:, :, None] + self.token.type_as(h)


class Padded(Sequences):
    """Shift by one, as RWKV does, with padding along the sequence."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        mix = self.token.sigmoid()
        return h * mix + F.pad(h, (0, 0, 1, -1)) * (1 - mix)


class ClassToken(Sequences):
    """A learned token in front of every sequence."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(h), 1, -1), h], 1).tanh()


class Unfolded(Sequences):
    uses_token = False

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        return h.unfold(1, 3, 1).amax(-1)


class Sorted(Sequences):
    """Values sorted along the sequence, the best three kept."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        return h.sort(dim=1, descending=True)[0][:, :3] * self.token


class Cumulative(Sequences):
    """A linear recurrence by cumulative sums."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        decay = F.logsigmoid(self.token) * torch.arange(h.shape[1])[:, None]
        return (h * (-decay).exp()).cumsum(1) * decay.exp()


class ValuesRead(Sequences):
    """A Python loop as long as the longest sequence, which the model reads."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        state = h.new_zeros(len(h), 8)
        for t in range(int(long.max())):
            inside = (t < long)[:, None]
            state = torch.where(inside, torch.tanh(h[:, t] + state * self.token), state)
        return state[:, None]


class Asserted(Sequences):
    """A check of the inputs, as many models have it."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        assert bool((long > 0).all()), "every sequence must have a word"
        if torch.isnan(h).any():
            raise ValueError("NaN in the hidden states")
        return h.relu() * self.token


class Ragged(Sequences):
    """A Python loop over the examples, each cut to its own length."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        return torch.stack([row[: int(n)].relu().mean(0, keepdim=True) * self.token for row, n in zip(h, long)])


class Selected(Sequences):
    """The words of all sequences in one list, put back by index."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        mask = torch.arange(h.shape[1])[None, :] < long[:, None]
        out = torch.zeros_like(h)
        out[mask] = torch.relu(h[mask]) * self.token
        return out


class Halved(Sequences):
    """A part of the model in lower precision."""

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return (h.double() * self.token.double()).relu().float()


class Relative(Sequences):
    """T5's relative position bias, gathered from a table."""

    uses_token = False

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 1)

    def between(self, h: Tensor, long: Tensor) -> Tensor:
        place = torch.arange(h.shape[1])
        bias = self.table(place[:, None] - place[None, :] + 8).squeeze(2)
        return (h @ h.mT + bias).softmax(-1) @ h


for name, kind in {
    "setitem-parameter": SetParameter, "masked-scatter": MaskedScatter, "where-parameter": WhereParameter,
    "type-as": TypeAs, "pad": Padded, "class-token": ClassToken, "unfold": Unfolded, "sort": Sorted,
    "cumulative": Cumulative, "longest-read": ValuesRead, "asserted": Asserted, "ragged-loop": Ragged,
    "selected-words": Selected, "double-inside": Halved, "relative-bias": Relative,
}.items():  # fmt: skip
    tensor(name)(lambda kind=kind: Case(kind(), sequences, classify))


@tensor("padded-logits", token_mean=True)
def tagging() -> Case:
    """Tagging with `ignore_index`, the logits flattened over the batch, as every tutorial has it."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.net, self.head = nn.Embedding(30, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.net(self.embed(words))[0])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        tags = (batch[0] % 4).masked_fill(batch[0] == 0, -100)
        return F.cross_entropy(model(batch[0]).view(-1, 4), tags.view(-1))

    return Case(Tagger(), texts, loss)


@tensor("masked-mean", token_mean=True)
def masked_mean() -> Case:
    """A hand-written token mean: the sum of masked losses over the sum of the mask."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x)[0])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, long, _ = batch
        mask = (torch.arange(1, x.shape[1])[None, :] < long[:, None]).float()
        error = (model(x)[:, :-1] - x[:, 1:]).square().mean(2)
        return (error * mask).sum() / mask.sum()

    return Case(Forecast(), sequences, loss)


@tensor("lookup-tables")
def tables() -> Case:
    """Categorical columns of a table, each with its own embedding, beside numbers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables, self.body = nn.ModuleList(nn.Embedding(5, 3) for _ in range(3)), mlp(13)

        def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
            looked_up = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
            return self.body(torch.cat([*looked_up, numbers], 1))

    def batch(size: int, generator: torch.Generator) -> Batch:
        kinds = torch.randint(0, 5, (size, 3), generator=generator)
        return torch.randn(size, 4, generator=generator), kinds, classes(size, 3, generator)

    return Case(Model(), batch, classify)
