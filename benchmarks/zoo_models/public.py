"""Train a model through `tacit.make_private`, as its user would, for two steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo_models.cases import Batch, Entry, take

RECORDS, LOT, STEPS = 12, 6, 2


def alone(batch: Batch) -> Batch:
    """Return the only example of a batch of one, without its batch dimension, as data sets hold examples."""
    if isinstance(batch, Tensor):
        return batch.squeeze(0)
    if isinstance(batch, Mapping):
        return {name: alone(value) for name, value in batch.items()}
    return tuple(alone(value) for value in batch)


class Examples(Dataset[Any]):
    """The examples of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.examples = [alone(take(batch, torch.tensor([i]))) for i in range(RECORDS)]

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


def publicly(entry: Entry) -> dict[str, Any]:
    """Return `accepted`, or the refusal, of an ordinary private training loop."""
    import tacit
    from zoo_models.measure import built, failure

    case = built(entry)
    if case.take is not take or "batch_dim" in case.options:
        return {"outcome": "skipped", "reason": "its examples are not rows of tensors"}
    optimizer = torch.optim.SGD([p for p in case.model.parameters() if p.requires_grad], lr=0.01)
    examples = Examples(case.batch(RECORDS, torch.Generator().manual_seed(7)))
    taken = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = tacit.make_private(
                case.model,
                optimizer,
                examples,
                lot_size=LOT,
                steps=STEPS,
                clipping=tacit.Flat(1.0),
                noise_multiplier=1.0,
            )
        for batch in run.batches():
            case.loss(case.model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    except Exception as error:
        return failure(error) | {"batch": taken}
    return {"outcome": "accepted"}
