"""Accept data sets and DataLoaders, and refuse those that cannot be sampled privately."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import data

from tacit.sampling import LotReader

log = logging.getLogger("tacit")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A data set with records by number, and how examples are read and put together."""

    dataset: Any
    num_workers: int
    pin_memory: bool
    collate_fn: Callable[[list[Any]], Any] | None

    def in_batches(self, size: int) -> LotReader:
        """Return a reader of lots that holds at most ``size`` examples at once."""
        return LotReader(
            self.dataset,
            batch_size=size,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            collate_fn=self.collate_fn,
        )


def reading(
    dataset: Any,
    *,
    num_workers: int | None,
    pin_memory: bool | None,
    collate_fn: Callable[[list[Any]], Any] | None,
) -> Reading:
    """Return the data set and how to read it. A DataLoader gives its data set, collate_fn, num_workers and pin_memory;
    an argument that is not None is used instead of the loader's.
    """
    inner = getattr(dataset, "_dataloader", None)
    if type(dataset).__name__ == "_FabricDataLoader" and isinstance(inner, data.DataLoader):
        dataset = inner  # of fabric.setup_dataloaders, which moves batches to a device
    if isinstance(dataset, data.DataLoader):
        loader = dataset
        _check_loader(loader)
        log.warning(
            "the DataLoader's %s and batch_size=%s are replaced: lots are drawn at random by make_private (lot_size, "
            "sampling), and batch_size= bounds memory. Iterate over run.batches(), not over the DataLoader.",
            type(loader.sampler).__name__,
            loader.batch_size,
        )
        dataset = loader.dataset
        num_workers = loader.num_workers if num_workers is None else num_workers
        pin_memory = loader.pin_memory if pin_memory is None else pin_memory
        if collate_fn is None and loader.collate_fn is not data.default_collate:
            collate_fn = loader.collate_fn
    _check_dataset(dataset)
    workers = 0 if num_workers is None else num_workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"num_workers is {num_workers!r}; it must be a whole number, at least 0.")
    if collate_fn is not None and not callable(collate_fn):
        raise ValueError(
            f"collate_fn is {collate_fn!r}; give a function that takes a list of examples and returns their batch."
        )
    return Reading(dataset=dataset, num_workers=workers, pin_memory=bool(pin_memory), collate_fn=collate_fn)


_EVEN = (data.RandomSampler, data.SequentialSampler, data.DistributedSampler)
"""Samplers that go through all records of the data set, none more often than another."""


def _check_loader(loader: data.DataLoader[Any]) -> None:
    """Refuse a loader that does more than go through its data set, because a private run would not do it."""
    if isinstance(loader.dataset, data.IterableDataset):
        return  # refused as a data set
    if loader.batch_sampler is None:
        raise ValueError(
            "the DataLoader has batch_size=None, so that its data set returns whole batches; private sampling draws "
            "records one by one: give a data set whose items are single records."
        )
    batch_sampler: Any = loader.batch_sampler
    while _is_of_accelerate(batch_sampler) and hasattr(batch_sampler, "batch_sampler"):
        batch_sampler = batch_sampler.batch_sampler  # which only gives each process its share
    if type(batch_sampler) is not data.BatchSampler:
        raise ValueError(
            f"the DataLoader has a {type(batch_sampler).__name__}, which composes batches by a rule of its own; "
            "private lots are drawn at random: give make_private the data set (loader.dataset) instead."
        )
    check_sampler(batch_sampler.sampler)
    for name in ("worker_init_fn", "multiprocessing_context"):
        if getattr(loader, name) is not None:
            raise ValueError(
                f"the DataLoader has a {name}, which is not taken over; give make_private the data set "
                "(loader.dataset), num_workers= and collate_fn=."
            )


def check_sampler(sampler: Any) -> None:
    """Refuse a sampler that leaves records out, repeats or prefers some, because a private run would not do it."""
    if isinstance(sampler, data.WeightedRandomSampler):
        raise ValueError(
            "the DataLoader has a WeightedRandomSampler; no proof here covers records that are drawn with different "
            "probabilities. Give make_private the data set (loader.dataset) and weight the loss with public class "
            "weights: F.cross_entropy(output, y, weight=weights, reduction='none').mean()."
        )
    if isinstance(sampler, data.SubsetRandomSampler):
        raise ValueError(
            "the DataLoader has a SubsetRandomSampler; make the subset a data set, so that no other record is drawn: "
            "torch.utils.data.Subset(loader.dataset, indices)."
        )
    if type(sampler) not in _EVEN and not (_is_of_accelerate(sampler) and isinstance(sampler, data.RandomSampler)):
        raise ValueError(
            f"the DataLoader has a {type(sampler).__name__}, of which make_private cannot tell which records it "
            "leaves out or repeats; give make_private a data set of the records to train on instead."
        )


def _is_of_accelerate(thing: Any) -> bool:
    """Return True if ``accelerator.prepare`` has put it into a loader."""
    return type(thing).__module__ == "accelerate.data_loader"


def no_records_by_number(stream: Any) -> ValueError:
    """Return the error for a stream, with what makes it map-style: on disk where it is one of Hugging Face."""
    if type(stream).__module__.partition(".")[0] == "datasets":
        remedy = "datasets.Dataset.from_generator(lambda: iter(stream)), which keeps the records on disk"
    else:
        remedy = (
            "dataset = list(stream), or, where that does not fit into memory, "
            "datasets.Dataset.from_generator(lambda: iter(stream)) for records that are dictionaries"
        )
    return ValueError(
        f"the data set ({type(stream).__name__}) is a stream: it has no records by number, which private sampling "
        f"draws; make it map-style: {remedy}."
    )


def _check_dataset(dataset: Any) -> None:
    """Refuse objects that have no records by number, or whose items are not records."""
    kind = type(dataset).__name__
    if isinstance(dataset, type):
        raise ValueError(f"the data set is the class {dataset.__name__}; make an instance of it.")
    if isinstance(dataset, str | bytes):
        raise ValueError(f"the data set is the text {dataset!r}; read the records first, and give those.")
    if isinstance(dataset, data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise no_records_by_number(dataset)
    if isinstance(dataset, Mapping):
        raise ValueError(
            f"the data set is a {kind}, whose items have names and not numbers; give its columns as "
            "torch.utils.data.TensorDataset(x, y)."
        )
    if isinstance(dataset, tuple) and any(isinstance(part, torch.Tensor | np.ndarray) for part in dataset):
        raise ValueError(
            f"the data set is a tuple of {len(dataset)} arrays, of which each would be taken for a record; write "
            "torch.utils.data.TensorDataset(x, y)."
        )
    if hasattr(dataset, "iloc"):
        raise ValueError(
            f"the data set is a {kind}, whose items are columns and not records; give its values as "
            "torch.utils.data.TensorDataset(x, y)."
        )
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        raise ValueError(f"the data set ({kind}) has no records by number; private sampling needs dataset[i].")
