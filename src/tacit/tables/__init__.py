"""Private models of tables.

    model = tacit.tables.load_model("runs/people")   # needs the directory alone
    model.predict(frame)                             # pandas, polars, pyarrow, or a mapping from names to arrays
    model.probabilities(frame)                       # a column for each of model.classes
    model.schema.to_json()                           # what the model knows of the columns
    model.provenance["age"]["origin"]                # where that is from: declared, discovered and charged, dropped
    tacit.tables.load_dataset("people.csv", "schema.json")   # a PyTorch data set of (features, target)

The directory is that of a run of ``tacit train FILE``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

    from tacit.tables.model import TableModel
    from tacit.tables.schema import Schema


def load_model(directory: str | os.PathLike[str]) -> TableModel:
    """Return the model of a run of ``tacit train`` on a table. It needs nothing else to predict."""
    from tacit.tables.model import TableModel  # torch is imported when it is needed

    return TableModel.load(Path(directory))


def load_dataset(path: str | os.PathLike[str], schema: str | os.PathLike[str] | Schema) -> TensorDataset:
    """Return the rows of a table as a PyTorch data set of (features, target), encoded by its schema."""
    from tacit.tables.dataset import load_dataset as load

    return load(path, schema)


__all__ = ["load_dataset", "load_model"]
