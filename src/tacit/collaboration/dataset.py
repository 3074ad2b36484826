"""A participant's records as any PyTorch data set: a length, and ``dataset[i]`` that is (input, ..., target)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from tacit import gradients

Loss = Callable[[Any, Any], Tensor]
"""The mean loss of a batch from the network's outputs and the targets."""

_TRIED = 4  # records


def as_dataset(records: Any) -> Dataset[Any]:
    """Return ``records`` as a data set: it may be one already, or a tuple of tensors with a row for each record."""
    if isinstance(records, tuple) and all(isinstance(part, Tensor) for part in records):
        if len({len(part) for part in records}) != 1:
            raise ValueError(f"the tensors have {[len(part) for part in records]} rows; each record has one in each.")
        records = TensorDataset(*records)
    if not hasattr(records, "__len__") or not hasattr(records, "__getitem__"):
        raise ValueError(
            f"dataset is a {type(records).__name__}; give one with a length and dataset[i], or a tuple of tensors."
        )
    if not len(records):
        raise ValueError("dataset has no records; a participant needs at least one.")
    first = records[0]
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise ValueError(f"dataset[0] is a {type(first).__name__}; a record must be a tuple (input, ..., target).")
    found: Dataset[Any] = records
    return found


def count(dataset: Dataset[Any]) -> int:
    """Return the number of records."""
    return len(dataset)  # type: ignore[arg-type]


def record_shape(dataset: Dataset[Any]) -> tuple[int, ...]:
    """Return the shape of the first input of a record; () for one that is no tensor."""
    return tuple(getattr(dataset[0][0], "shape", ()))


def batch_of(dataset: Dataset[Any], places: Tensor) -> tuple[list[Any], Any]:
    """Return the inputs and the targets of the records at ``places``, as one batch."""
    if isinstance(dataset, TensorDataset):  # a hundred times quicker than one record after the other
        *inputs, target = (tensor[places] for tensor in dataset.tensors)
    else:
        *inputs, target = default_collate([dataset[place] for place in places.tolist()])
    return inputs, target


def check_fits(model: nn.Module, dataset: Dataset[Any], loss: Loss, *, private: bool = False) -> None:
    """Refuse records that the network or the loss cannot take, before anything is charged or sent.

    The first records go through the network once, without training it. The error names shapes and no values. If
    training will be ``private``, a network or a loss without gradients of single examples is refused as well.
    """
    rows = min(count(dataset), _TRIED)
    inputs, target = batch_of(dataset, torch.arange(rows))
    shapes = ", ".join(str(tuple(getattr(part, "shape", ()))[1:]) for part in inputs)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(*inputs)
            value = loss(outputs, target)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the network or the loss does not take these records, whose inputs have the shape {shapes}: {error}. "
            "Nothing was sent; give the network, the data set and the loss that belong together."
        ) from error
    finally:
        model.train(was_training)
    if not isinstance(value, Tensor) or value.ndim:
        raise ValueError(f"the loss returns a {_kind(value)}; it must return the mean of the batch as one number.")
    if private:
        _check_single_gradients(copy.deepcopy(model), [*inputs, target], rows, loss)


def _check_single_gradients(model: nn.Module, batch: list[Any], rows: int, loss: Loss) -> None:
    """Refuse a network or a loss in which examples mix, as the first lot of private training would."""
    model.train()
    engine = gradients.attach(model)
    try:
        with engine.learning():
            *inputs, target = engine.trace(batch, rows)
            torch.autograd.backward(loss(model(*inputs), target))
    finally:
        engine.detach()


def _kind(value: object) -> str:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
