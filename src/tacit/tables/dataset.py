"""A table as a PyTorch data set: features and targets by its schema, record by record."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from tacit.tables.encoding import Encoding
from tacit.tables.reading import read_columns
from tacit.tables.records import encode
from tacit.tables.schema import Schema


def load_dataset(path: str | os.PathLike[str], schema: str | os.PathLike[str] | Schema) -> TensorDataset:
    """Return the rows of a table as a data set of (features, target), in memory.

    Numbers become values in [-1, 1] by the schema's bounds and categories become indicators, so that no row influences
    another's features. Targets are the place of the class, or the number scaled to [-1, 1]. ``schema`` is a file or
    a `Schema` whose columns are all declared: those that are "private" need a budget of their own to be found.
    """
    known = schema if isinstance(schema, Schema) else Schema.load(Path(schema))
    encoding = Encoding(known)
    records = encode(read_columns(Path(path), known.sources(), numbers=known.numbers), encoding)
    rows, targets = next(records.slices(len(records)))
    return TensorDataset(torch.from_numpy(encoding.expand(rows.numpy())), targets)
