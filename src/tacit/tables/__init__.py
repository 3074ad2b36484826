"""Private models of tables.

model = tacit.tables.load_model("runs/people")   # the directory of a run of `tacit train FILE`
model.predict(frame)                             # pandas, polars, pyarrow, or a mapping from names to arrays
model.probabilities(frame)                       # a column for each of model.classes
model.encoding.schema.to_json()                  # what the model knows of the columns
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.tables.model import TableModel


def load_model(directory: str | os.PathLike[str]) -> TableModel:
    """Return the model of a run of ``tacit train`` on a table. It needs nothing else to predict."""
    from tacit.tables.model import TableModel  # torch is imported when it is needed

    return TableModel.load(Path(directory))


__all__ = ["load_model"]
