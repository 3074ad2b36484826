"""Tables in memory, of whatever library: pandas, polars, pyarrow, or a mapping from names to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from tacit.tables.arrow import from_arrow
from tacit.tables.columns import Columns


def as_columns(data: Any, names: Iterable[str]) -> Columns:
    """Return the columns ``names`` of a table in memory as arrays, missing entries as NaN or empty text.

    A frame that speaks Arrow (pandas, polars, pyarrow and others) is read through pyarrow where it is installed; a
    pandas frame also without.
    """
    wanted = tuple(names)
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        raise ValueError(f"the table is a {type(data).__name__}, which is not read yet; give table.collect().")
    held = (
        tuple(data) if isinstance(data, Mapping) else tuple(getattr(data, "column_names", getattr(data, "columns", ())))
    )
    if not held:
        raise ValueError(
            f"the table is a {type(data).__name__}; give a pandas or polars frame, a pyarrow table, or a mapping from "
            "column names to arrays."
        )
    lacking = [name for name in wanted if name not in held]
    if lacking:
        raise ValueError(
            f"the table has no column {', '.join(map(repr, lacking))}; it has {', '.join(map(str, held))}."
        )
    if isinstance(data, Mapping):
        return {name: _plain(np.asarray(data[name])) for name in wanted}
    if hasattr(data, "__arrow_c_stream__") and find_spec("pyarrow") is not None:
        import pyarrow

        table = pyarrow.table(data)
        return {name: from_arrow(table.column(name).combine_chunks(), name) for name in wanted}
    if not hasattr(data, "to_numpy"):
        raise ValueError("reading this table needs pyarrow; install it with: pip install 'tacit[sklearn]'")
    return {name: _plain(data[name].to_numpy()) for name in wanted}


def _plain(values: Any) -> Any:
    if values.dtype.kind != "O":
        return values
    return np.array(["" if value is None or value != value else str(value) for value in values.tolist()], dtype=object)
