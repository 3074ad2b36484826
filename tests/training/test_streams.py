"""Streams are refused in one sentence, whose remedy works when it is pasted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data

import tacit


class Stream(data.IterableDataset[dict[str, Any]]):
    """Records one after another."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter({"x": [float(i), 1.0], "y": i % 2} for i in range(40))


def private(dataset: Any, **settings: Any) -> Any:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return tacit.make_private(
        model, optimizer, dataset, lot_size=8, steps=2, clipping=1.0, noise_multiplier=1.0, **settings
    )


def train(run: Any) -> None:
    for batch in run.batches():
        F.cross_entropy(run.model(batch["x"].float()), batch["y"]).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert run.step == 2
    run.close()


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name] for row in rows]) for name in ("x", "y")}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_stream_is_refused_and_a_list_of_it_trains(wrapped: bool) -> None:
    stream = Stream()
    with pytest.raises(ValueError, match=r"\(Stream\) is a stream: .* dataset = list\(stream\)"):
        private(data.DataLoader(stream) if wrapped else stream)
    train(private(list(stream), collate_fn=collate))


def test_a_stream_of_hugging_face_is_refused_and_trains_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed (extra 'hf')")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    stream = datasets.Dataset.from_list(list(Stream())).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"from_generator\(lambda: iter\(stream\)\), which keeps the records on disk"):
        private(stream)
    train(private(datasets.Dataset.from_generator(lambda: iter(stream), cache_dir=str(tmp_path)).with_format("torch")))
