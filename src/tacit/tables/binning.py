"""Bins for the numbers of a schema: declared ones, or edges between private knots."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from tacit.tables.columns import Number
from tacit.tables.schema import Schema

_EVEN = 8
"""Bins of equal width between the bounds, where quantiles could not be told apart from noise."""


def lacking_bins(schema: Schema) -> dict[str, Number]:
    """Return the declared numbers among the features that have bounds only: their quantiles are to be released."""
    return {
        name: column
        for name, column in schema.features.items()
        if isinstance(column, Number) and not column.private and not column.bins and not column.knots
    }


def binned(schema: Schema) -> Schema:
    """Return the schema with bins for all numbers among the features: the middles between knots are the edges."""
    columns = {
        name: replace(column, bins=_edges(column), knots=())
        if isinstance(column, Number) and name != schema.target
        else column
        for name, column in schema.columns.items()
    }
    return replace(schema, columns=columns)


def _edges(column: Number) -> tuple[float, ...]:
    if column.bins:
        return column.bins
    if column.knots:
        return tuple(sorted({low / 2 + high / 2 for low, high in pairwise(column.knots)}))
    assert column.low is not None and column.high is not None
    return tuple(np.linspace(column.low, column.high, _EVEN + 1)[1:-1].tolist())
