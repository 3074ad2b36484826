"""Tables in memory, of whatever library: pandas, polars, pyarrow, or a mapping from names to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from importlib.util import find_spec
from typing import Any

import numpy as np

from tacit.tables.arrow import from_arrow, written
from tacit.tables.columns import Columns


def as_columns(data: Any, names: Iterable[str], formats: Mapping[str, str] | None = None) -> Columns:
    """Return the columns ``names`` of a table in memory as arrays, missing entries as NaN or empty text.

    Entries that are dates, not text, are written by the column's format in ``formats``, else as 2024-12-31.

    A frame that speaks Arrow (pandas, polars, pyarrow and others) is read through pyarrow where it is installed; a
    pandas frame also without.
    """
    wanted, formats = tuple(names), formats or {}
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
        return {name: _plain(np.asarray(data[name]), formats.get(name, "iso")) for name in wanted}
    if hasattr(data, "__arrow_c_stream__") and find_spec("pyarrow") is not None:
        import pyarrow

        table = pyarrow.table(data)
        return {
            name: from_arrow(table.column(name).combine_chunks(), name, formats.get(name, "iso")) for name in wanted
        }
    if not hasattr(data, "to_numpy"):
        raise ValueError("reading this table needs pyarrow; install it with: pip install 'tacit[sklearn]'")
    return {name: _plain(data[name].to_numpy(), formats.get(name, "iso")) for name in wanted}


def _plain(values: Any, form: str) -> Any:
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]").astype(object)
    if values.dtype.kind != "O":
        return values
    found = ["" if value is None or value != value else _spelled(value, form) for value in values.tolist()]
    return np.array(found, dtype=object)


def _spelled(value: Any, form: str) -> str:
    return written(value, form) if isinstance(value, date) else str(value)
