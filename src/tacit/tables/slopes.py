"""Straight lines for a linear model of numbers with knots: features that help training and are gone afterwards.

Among knots a number is shared out to the two beside it, so that a linear model's effect of it has a bend at every knot.
Most effects are nearly straight, and noise falls on every knot alike. With one more feature, the number's place on the
straight line from its first knot to its last, descent finds the line with one parameter instead of many. The line is a
sum of what the knots say, so its weight is added to theirs afterwards, and the model stays what it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.tables.columns import Number
from tacit.tables.descent import descend
from tacit.tables.encoding import Encoding
from tacit.tables.model import TableModel, zeroed
from tacit.tables.records import Records


class Sloped(nn.Module):
    """A linear layer that starts at zero and reads straight lines beside the features.

    ``lines`` has a row a feature and a column a line: each line is a fixed sum of a row's own features.
    """

    def __init__(self, lines: NDArray[np.float32], outputs: int) -> None:
        super().__init__()
        self.register_buffer("lines", torch.from_numpy(lines))
        self.layer = zeroed(nn.Linear(sum(lines.shape), outputs))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the scores of a batch of features."""
        found: Tensor = self.layer(torch.cat([rows, rows @ self.get_buffer("lines")], dim=1))
        return found

    def put_in(self, layer: nn.Linear) -> None:
        """Set ``layer`` to the same function of the features alone."""
        lines = self.get_buffer("lines")
        own, slopes = torch.split(self.layer.weight, list(lines.shape), dim=1)
        with torch.no_grad():
            layer.weight.copy_(own + slopes @ lines.T)
            layer.bias.copy_(self.layer.bias)


def descend_with_slopes(model: TableModel, train: Records, **settings: Any) -> int:
    """Train ``model`` as `descend` does and return the steps; a linear model is given straight lines on the way."""
    lines = straight_lines(model.encoding)
    if not isinstance(model.network, nn.Linear) or not lines.shape[1]:
        return descend(model.network, train, **settings)
    wider = Sloped(lines, model.network.out_features)
    steps = descend(wider, train, **settings)
    wider.put_in(model.network)
    return steps


def trained_size(model: TableModel) -> int:
    """Return how many parameters are trained: those of the model, and those of its straight lines."""
    lines = straight_lines(model.encoding).shape[1] if isinstance(model.network, nn.Linear) else 0
    return model.size + lines * max(len(model.classes), 1)


def straight_lines(encoding: Encoding) -> NDArray[np.float32]:
    """Return what each feature adds to each number's straight line, from -1 at its first knot to 1 at its last."""
    found, start = [], 0
    for name, column in encoding.schema.features.items():
        width = encoding.widths[name]
        if isinstance(column, Number) and column.knots and not column.bins:
            line, knots = np.zeros(encoding.width, dtype=np.float32), np.array(column.knots)
            line[start : start + len(knots)] = 2 * (knots - knots[0]) / (knots[-1] - knots[0]) - 1
            found.append(line)
        start += width
    return np.stack(found, axis=1) if found else np.zeros((encoding.width, 0), dtype=np.float32)
