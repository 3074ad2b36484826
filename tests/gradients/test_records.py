"""Records of several rows: augmented copies, or the examples of one user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

RECORDS, ROWS = 5, 3


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(9, 6), nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.words(x))[0][:, -1])


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 3)), torch.randn(RECORDS * ROWS, 4)),
    "wide": lambda: (nn.Linear(40, 40), torch.randn(RECORDS * ROWS, 40)),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        torch.randn(RECORDS * ROWS, 2, 5, 5),
    ),
    "transformer": lambda: (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.Flatten(), nn.Linear(12, 3)),
        torch.randn(RECORDS * ROWS, 3, 4),
    ),
    "words": lambda: (Words(), torch.randint(0, 9, (RECORDS * ROWS, 4))),
}


def one(t: Tensor, i: int) -> Tensor:
    return t[i * ROWS : (i + 1) * ROWS]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", list(MODELS))
def test_against_the_loop_over_records(name: str, reduction: str, naive: Any, compare: Any) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    y = torch.arange(RECORDS * ROWS) % 3
    own = "mean" if reduction == "mean" else "sum"
    each = naive(model, lambda i: F.cross_entropy(model(one(x, i)), one(y, i), reduction=own), RECORDS)
    with gradients.record(model, rows_per_record=ROWS) as tape:
        loss = F.cross_entropy(model(x), y, reduction=reduction)
        loss.backward(torch.ones_like(loss) if reduction == "none" else None)
    assert tape.batch_size == RECORDS
    assert tape.norms().shape == (RECORDS,)
    compare(tape, each)


def test_other_batch_dimensions(naive: Any, compare: Any) -> None:
    model = nn.LSTM(3, 4)
    x = torch.randn(6, RECORDS * ROWS, 3)
    each = naive(model, lambda i: model(x[:, i * ROWS : (i + 1) * ROWS])[0].square().sum((0, 2)).mean(), RECORDS)
    with gradients.record(model, batch_dim=1, rows_per_record=ROWS) as tape:
        model(x)[0].square().sum((0, 2)).mean().backward()
    compare(tape, each)


def test_packed_sequences(naive: Any, compare: Any) -> None:
    model = nn.GRU(3, 4)
    rows = [torch.randn(1 + i % 4, 3) for i in range(RECORDS * ROWS)]

    def loss(part: list[Tensor]) -> Tensor:
        packed = nn.utils.rnn.pack_sequence(part, enforce_sorted=False)
        return model(packed)[1][-1].square().sum(1).sum()

    each = naive(model, lambda i: loss(rows[i * ROWS : (i + 1) * ROWS]), RECORDS)
    with gradients.record(model, rows_per_record=ROWS) as tape:
        loss(rows).backward()
    compare(tape, each)


def test_divergence_with_a_mean_over_rows(naive: Any, compare: Any) -> None:
    model, x = nn.Linear(4, 3), torch.randn(RECORDS * ROWS, 4)
    y = torch.randn(RECORDS * ROWS, 3).softmax(1)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(model(x).log_softmax(1), y, reduction="batchmean")

    with gradients.record(model, rows_per_record=ROWS) as tape:
        loss(x, y).backward()
    compare(tape, naive(model, lambda i: loss(one(x, i), one(y, i)), RECORDS))


def test_records_may_not_be_mixed() -> None:
    model = nn.Linear(4, 3)

    def centred(out: Tensor) -> Tensor:
        return (out - out.mean(0)).square().sum()

    with pytest.raises(ValueError, match="no per-example"), gradients.record(model, rows_per_record=ROWS):
        centred(model(torch.randn(RECORDS * ROWS, 4))).backward()


def test_no_record(flat: Any) -> None:
    model = nn.Linear(4, 3)
    engine = gradients.attach(model, rows_per_record=ROWS)
    F.cross_entropy(model(torch.zeros(0, 4)), torch.zeros(0, dtype=torch.long)).backward()
    assert engine.batch_size == 0
    assert not engine.clipped_sum(flat(1.0))["weight"].any()


def test_rows_that_do_not_divide() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="rows_per_record=3"), gradients.record(model, rows_per_record=3):
        model(torch.randn(7, 4))
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="rows_per_record"):
            gradients.attach(model, rows_per_record=wrong)  # type: ignore[arg-type]


def test_checked_beforehand() -> None:
    gradients.check(nn.Linear(4, 3), torch.randn(6, 4), rows_per_record=3)
