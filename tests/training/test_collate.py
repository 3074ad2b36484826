"""A record's row does not depend on its neighbours, or the run says so and names the remedy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence, pad_sequence

from tacit.data import pad_to

COLLATE = "collate_fn"
"""The name of the argument of `make_private`."""


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the run has warned of; the engine has warnings of its own."""
    return [record.message for record in caplog.records if record.name == "tacit"]


class Sentences:
    """Records of different lengths, which are counted as they are read."""

    def __init__(self, changing: bool = False) -> None:
        self.read: list[int] = []
        self.changing = changing

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.append(index)
        generator = torch.Generator().manual_seed(index)
        row = torch.randn(2 + index % 9, 2, generator=generator) + 1
        return row + torch.rand(()) if self.changing else row, index % 3


def padded(examples: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    rows, labels = zip(*examples, strict=True)
    lengths = torch.tensor([len(row) for row in rows])
    return pad_sequence(list(rows), batch_first=True), lengths, torch.tensor(labels)


class Reader(nn.Module):
    """The last state of a recurrent layer, or a mean over what a mask leaves, which padding does not change."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.lstm, self.head, self.masked = nn.LSTM(2, 3, batch_first=True), nn.Linear(2, 3), masked

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if not self.masked:
            return self.lstm(x)[0][:, -1]  # type: ignore[no-any-return]
        mask = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
        return (self.head(x) * mask.unsqueeze(2)).sum(1) / lengths.unsqueeze(1)  # type: ignore[no-any-return]


def read(make: Any, collate: Any, *, masked: bool = False, dataset: Any = None, **settings: Any) -> Any:
    model, optimizer, run = make(
        Reader(masked), None, dataset or Sentences(), **{"lot_size": 30, "steps": 2, COLLATE: collate, **settings}
    )
    for x, lengths, y in run.batches():
        F.cross_entropy(model(x, lengths), y).backward()
        optimizer.step()
    return run


def test_padding_to_the_longest_is_refused_and_the_remedy_named(make: Any) -> None:
    with pytest.raises(ValueError, match=r"collate function gives a record different rows.*pad_to\(length\)"):
        read(make, padded)


def test_padding_that_the_model_masks_is_reported_and_trained(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read(make, padded, masked=True).step == 2
    assert len(told(caplog)) == 1 and "row that depends on the other records" in caplog.text


def test_a_fixed_length_is_accepted(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    fixed = pad_to(12)
    with caplog.at_level(logging.WARNING):
        assert read(make, lambda rows: fixed([(row, len(row), label) for row, label in rows])).step == 2
    assert not told(caplog)


class Packed(nn.Module):
    """Reads packed sequences, and multiplies its outputs by `factor` of their `batch_sizes`."""

    def __init__(self, factor: Callable[[Tensor], Any] = lambda sizes: 1) -> None:
        super().__init__()
        self.lstm, self.factor = nn.LSTM(2, 3), factor

    def forward(self, packed: Any) -> Any:
        return self.lstm(packed)[1][0][0] * self.factor(packed.batch_sizes)


def train_packed(make: Any, module: nn.Module) -> Any:
    def collate(examples: list[Any]) -> Any:
        rows, labels = zip(*examples, strict=True)
        return pack_sequence(list(rows), enforce_sorted=False), torch.tensor(labels)

    model, optimizer, run = make(module, None, Sentences(), lot_size=30, steps=2, **{COLLATE: collate})
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return run


def test_packed_sequences_are_accepted(make: Any) -> None:
    assert train_packed(make, Packed()).step == 2


READINGS: dict[str, Callable[[Tensor], Any]] = {
    "values": lambda sizes: sizes.float().mean(),
    "a list": lambda sizes: sum(sizes.tolist()),
    "how many": len,
}


@pytest.mark.parametrize("name", READINGS)
def test_the_trial_refuses_models_that_read_batch_sizes_of_packed_inputs(make: Any, name: str) -> None:
    with pytest.raises(ValueError, match="changed with the other examples in the first lot"):
        train_packed(make, Packed(READINGS[name]))


def test_a_random_collate_is_reported_and_its_rows_are_compared_as_they_are(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def hiding(examples: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.stack([row[:2] for row, _ in examples])
        kept = torch.bernoulli(torch.full(rows.shape, 0.5))
        return rows * kept, torch.full((len(rows),), 2), torch.tensor([label for _, label in examples])

    with caplog.at_level(logging.WARNING):
        assert read(make, hiding).step == 2
    assert len(told(caplog)) == 1 and "collate function is random" in caplog.text


@pytest.mark.parametrize("changing", [False, True])
def test_every_record_of_a_lot_is_read_once(make: Any, changing: bool) -> None:
    dataset = Sentences(changing)
    run = read(make, padded, masked=True, dataset=dataset, lot_size=60, steps=1, sampling="fixed-size")
    assert run.step == 1 and sorted(dataset.read) == list(range(60))


def test_examples_that_collate_changes_are_not_changed_for_the_lot(make: Any) -> None:
    class Rows(Sentences):
        def __getitem__(self, index: int) -> Any:
            row, label = super().__getitem__(index)
            return {"row": row, "labels": label}

    def popping(examples: list[Any]) -> Any:
        labels = torch.tensor([example.pop("labels") for example in examples])
        for example in examples:
            example["row"] *= 0.5
        return *padded([(example["row"], 0) for example in examples])[:2], labels

    assert read(make, popping, masked=True, dataset=Rows()).step == 2


def test_reading_in_workers_is_tried_too(make: Any) -> None:
    with pytest.raises(ValueError, match="collate function gives a record different rows"):
        read(make, padded, num_workers=1)
