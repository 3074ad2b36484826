"""A model that can be read: a sum of shapes, one for each column and for some pairs of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.tables.boosting.cells import Axis, Codes, axes
from tacit.tables.boosting.smoothing import Array
from tacit.tables.columns import Number
from tacit.tables.encoding import Encoding
from tacit.tables.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Term:
    """A column, or a pair of them, and how its cells are put together: ``groups`` maps a column's cell to a group."""

    places: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(max(group) + 1 for group in self.groups)

    @property
    def cells(self) -> int:
        return int(np.prod(self.sizes))

    def flat(self, codes: Sequence[Codes]) -> Codes:
        """Return the place in the shape of every record, from its cells in the term's columns."""
        places = np.asarray(self.groups[0])[codes[0]]
        for group, code in zip(self.groups[1:], codes[1:], strict=True):
            places = places * (max(group) + 1) + np.asarray(group)[code]
        return places

    def name(self, columns: Sequence[Axis]) -> str:
        return " × ".join(columns[place].name for place in self.places)


def alone(place: int, size: int) -> Term:
    """Return the term of one column, every cell for itself."""
    return Term(places=(place,), groups=(tuple(range(size)),))


class Shapes(nn.Module):
    """The sum of an intercept and of shapes, as a model of compact rows.

    It has one output for a number and for two classes (how much the second is ahead, in log-odds), one a class for
    more. The rows' numbers must be coded by bins.
    """

    def __init__(self, columns: Sequence[Axis], terms: Sequence[Term], outputs: int) -> None:
        super().__init__()
        self.axes, self.terms, self.outputs = tuple(columns), tuple(terms), outputs
        self.register_buffer("intercept", torch.zeros(outputs))
        self.register_buffer("strength", torch.zeros(len(self.terms)))
        for place, term in enumerate(self.terms):
            self.register_buffer(f"shape_{place}", torch.zeros(term.cells, outputs))

    @classmethod
    def of(cls, schema: Schema, terms: Sequence[Term] | None = None) -> Shapes:
        """Return a model of this schema that says the same of everyone."""
        columns = axes(schema)
        chosen = [alone(place, axis.size) for place, axis in enumerate(columns)] if terms is None else terms
        return cls(columns, chosen, len(schema.classes) if len(schema.classes) > 2 else 1)

    def fill(self, intercept: Array, shapes: Sequence[Array], strength: Sequence[float]) -> None:
        """Set the intercept, the shapes, and how much each varies over the records."""
        self.get_buffer("intercept").copy_(torch.from_numpy(intercept))
        self.get_buffer("strength").copy_(torch.tensor(strength))
        for place, values in enumerate(shapes):
            self.shape(place).copy_(torch.from_numpy(values))

    def shape(self, place: int) -> Tensor:
        found: Tensor = getattr(self, f"shape_{place}")
        return found

    def forward(self, compact: Tensor) -> Tensor:
        intercept: Tensor = self.get_buffer("intercept")
        scores = intercept.repeat(len(compact), 1)
        shifts = torch.tensor([axis.missing for axis in self.axes], dtype=torch.long)
        codes = compact.long() + shifts
        for place, term in enumerate(self.terms):
            flat = torch.zeros(len(compact), dtype=torch.long)
            for column, group in zip(term.places, term.groups, strict=True):
                flat = flat * (max(group) + 1) + torch.tensor(group)[codes[:, column]]
            scores = scores + self.shape(place)[flat]
        return scores

    def structure(self) -> list[dict[str, Any]]:
        """Return the terms as JSON."""
        return [{"columns": list(term.places), "groups": [list(group) for group in term.groups]} for term in self.terms]

    @staticmethod
    def terms_of(structure: Any, columns: Sequence[Axis]) -> list[Term]:
        """Return the terms from JSON; what does not fit the columns is an error."""
        found = []
        for facts in structure if isinstance(structure, list) else [None]:
            if not isinstance(facts, Mapping) or not isinstance(facts.get("columns"), list):
                raise ValueError("the shapes of the model are not a list of columns with groups")
            term = Term(places=tuple(facts["columns"]), groups=tuple(tuple(group) for group in facts["groups"]))
            for place, group in zip(term.places, term.groups, strict=True):
                if not (isinstance(place, int) and 0 <= place < len(columns) and len(group) == columns[place].size):
                    raise ValueError("a shape of the model does not fit its column")
                if not all(isinstance(cell, int) and 0 <= cell < len(group) for cell in group):
                    raise ValueError("a shape of the model has a group that is not there")
            found.append(term)
        return found


def exported(shapes: Shapes, encoding: Encoding) -> dict[str, Any]:
    """Return the model as tables for people and other programs: what every cell of every shape adds to the score."""
    schema = encoding.schema
    labels = cell_labels(encoding)
    # A number is predicted as its place between its bounds, from -1 to 1; people read it in its own unit.
    low, high = (0.0, 0.0) if schema.classes else encoding.unscale(np.array([-1.0, 1.0], dtype=np.float32)).tolist()
    scale, middle = (1.0, 0.0) if schema.classes else ((high - low) / 2, (high + low) / 2)
    target = list(schema.classes) if len(schema.classes) > 2 else [schema.classes[-1] if schema.classes else "number"]
    tables = []
    for place, term in enumerate(shapes.terms):
        cells = [_grouped(labels[column], group) for column, group in zip(term.places, term.groups, strict=True)]
        values = scale * shapes.shape(place).double().reshape(*term.sizes, shapes.outputs)
        tables.append(
            {
                "columns": [shapes.axes[column].name for column in term.places],
                "ordered": [shapes.axes[column].ordered for column in term.places],
                "cells": cells,
                "edges": [
                    _edges(shapes.axes[column], group, schema)
                    for column, group in zip(term.places, term.groups, strict=True)
                ],
                "adds": values.tolist(),
                "strength": scale * float(shapes.get_buffer("strength")[place]),
            }
        )
    unit = "log-odds" if len(schema.classes) == 2 else "log-probability" if schema.classes else schema.target
    facts = {"format": 1, "target": schema.target, "outputs": target, "unit": unit, "terms": tables}
    intercept = middle + scale * shapes.get_buffer("intercept").double()
    return facts | {"intercept": intercept.tolist()}


def _edges(axis: Axis, group: Sequence[int], schema: Schema) -> list[float] | None:
    """Return the edges between the groups of an ordered column's cells; None for categories."""
    column = schema.columns[axis.name]
    if not isinstance(column, Number):
        return None
    inner = group[1:] if axis.missing else group
    return [edge for edge, (low, high) in zip(column.bins, pairwise(inner), strict=True) if low != high]


def cell_labels(encoding: Encoding) -> list[list[str]]:
    """Return the names of every column's cells."""
    found = []
    names = list(encoding.names)
    for axis in axes(encoding.schema):
        here, names = names[: axis.size], names[axis.size :]
        found.append(here)
    return found


def _grouped(labels: Sequence[str], group: Sequence[int]) -> list[str]:
    """Return a name for every group: its first cell, and its last where there are more."""
    members: dict[int, list[str]] = {}
    for label, place in zip(labels, group, strict=True):
        members.setdefault(place, []).append(label)
    return [cells[0] if len(cells) == 1 else f"{cells[0]} … {cells[-1]}" for _, cells in sorted(members.items())]
