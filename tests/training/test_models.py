"""The models and data sets people have: each trains through the run, and its sum equals the naive one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import tacit


class Rows(Dataset[Any]):
    """Dictionaries, read many at once, as Hugging Face data sets are."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns
        self.asked = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        self.asked += 1
        return [self[index] for index in indices]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) * torch.sigmoid(self.right(b))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.out = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.table(tokens))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.table(tokens)).mean(dim=1))


class TiedLanguage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.out = nn.Embedding(11, 4), nn.Linear(4, 4), nn.Linear(4, 11, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.table(tokens)))).mean(dim=1)


class Adapter(nn.Module):
    """A frozen layer with a low-rank update beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4) / 2), nn.Parameter(torch.randn(3, 2) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


def naive(model: nn.Module, inputs: tuple[Tensor, ...], y: Tensor, bound: float) -> dict[str, Tensor]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in named.items()}
    for i in range(len(y)):
        out = model(*(value[i : i + 1] for value in inputs))
        grads = torch.autograd.grad(F.cross_entropy(out, y[i : i + 1]), list(named.values()))
        norm = float(torch.cat([g.flatten() for g in grads]).norm())
        for name, g in zip(named, grads, strict=True):
            sums[name] += g * min(1.0, bound / norm)
    return sums


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "two inputs": (TwoInputs, ("x", "b")),
    "lstm": (Recurrent, ("tokens",)),
    "transformer": (Attention, ("tokens",)),
    "tied weights": (TiedLanguage, ("tokens",)),
    "adapter": (Adapter, ("x",)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_models(make: Any, silence: Any, name: str, workers: int) -> None:
    if workers and name != "two inputs":
        pytest.skip("worker processes are tried with one model")
    build, keys = CASES[name]
    model = build()
    columns = {
        "x": torch.randn(24, 4),
        "b": torch.randn(24, 2),
        "tokens": torch.randint(0, 11, (24, 6)),
        "y": torch.arange(24) % 3,
    }
    dataset = Rows(**{key: columns[key] for key in (*keys, "y")})
    wanted = naive(model, tuple(columns[key] for key in keys), columns["y"], 0.3)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    _, _, run = make(
        model, optimizer, dataset, lot_size=24, batch_size=7, steps=2, clipping=tacit.Flat(0.3), num_workers=workers
    )
    totals: dict[str, Tensor] = {}
    for batch in run.batches():
        F.cross_entropy(model(*(batch[key] for key in keys)), batch["y"]).backward()
        optimizer.step()
        if run.step == 1 and not totals:
            totals = {n: total for n, (total, _, _) in zip(run.engine.shapes, silence.added, strict=True)}
    assert run.step == 2
    assert set(totals) == set(wanted)
    for key, total in totals.items():
        torch.testing.assert_close(total, wanted[key], atol=2e-5, rtol=1e-3)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    assert workers or dataset.asked == 8


@pytest.mark.parametrize("name", CASES)
def test_empty_lots_of_every_model(make: Any, name: str) -> None:
    build, keys = CASES[name]
    model = build()
    columns = {
        "x": torch.randn(24, 4),
        "b": torch.randn(24, 2),
        "tokens": torch.randint(0, 11, (24, 6)),
        "y": torch.arange(24) % 3,
    }
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    _, _, run = make(model, optimizer, Rows(**columns), lot_size=2, batch_size=8, steps=6)
    draw, sizes = run.sampler.draw, iter([3, 0, 0, 5, 2, 0])
    run.sampler.draw = lambda receipt: (draw(receipt), np.arange(next(sizes)))[1]
    empty = 0
    for batch in run.batches():
        F.cross_entropy(model(*(batch[key] for key in keys)), batch["y"]).backward()
        optimizer.step()
        empty += len(batch["y"]) == 0
    assert run.step == 6 and empty == 3
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_names_stay_and_evaluation_is_free(make: Any, train: Any) -> None:
    model = Recurrent()
    names = list(model.state_dict())
    x = torch.randint(0, 11, (24, 6))
    dataset = torch.utils.data.TensorDataset(x, torch.arange(24) % 3)
    _, optimizer, run = make(model, None, dataset, lot_size=8, steps=3)
    for a, b in run.batches():
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        with torch.no_grad():
            model.eval()
            model(x)
            model.train()
        optimizer.step()
        optimizer.zero_grad()
        assert len(a) == 0 or (float(loss) > 0 and float(loss.detach()) == loss.item())
    assert list(model.state_dict()) == names
    assert run.step == len(run.ledger) == 3
