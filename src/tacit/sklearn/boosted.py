"""Private boosting for the estimators: bins of the features, released or declared by bounds, and the shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tacit.mechanisms import SumQuery
from tacit.sklearn.account import Purse
from tacit.sklearn.inputs import Numbers, declared
from tacit.tables.boosting import BoostSettings, Cells, Shapes, boost, boost_settings
from tacit.tables.boosting.cells import Axis
from tacit.tables.histograms import CELLS, COUNTS, EDGES, cell_edges, counts, quantile_knots, tree_counts

_BINS = 0.25  # of epsilon, if it were all
_EVEN = 8
MARGIN = 1.0005
"""More noise than is planned for as one look: cut into many, it must still fit after rounding."""


class Bins:
    """The looks that find the features' bins: quantiles, and before them bounds where none are declared.

    Formal guarantee: the record is a row of d features. For each it adds one to one bin of a histogram (bounds), and
    one to a cell and one to the cell's group (quantiles): sensitivities 1 and √2.
    """

    def __init__(self, width: int, bounds: Any, purse: Purse) -> None:
        self.width, self.bounds, self.purse = width, bounds, purse
        shares = 1 if bounds is not None else 2
        std = purse.once(_BINS) * math.sqrt(shares * width)
        self._ranges = [
            SumQuery(group=f"bounds/{place}", clip_norm=1.0, noise_std=std)
            for place in range(width if bounds is None else 0)
        ]
        root = math.sqrt(2)
        self._quantiles = [
            SumQuery(group=f"quantiles/{place}", clip_norm=root, noise_std=std * root) for place in range(width)
        ]

    @property
    def queries(self) -> list[SumQuery]:
        """All queries that will be asked."""
        return [*self._ranges, *self._quantiles]

    def release(self, rows: Numbers, most: int) -> list[Numbers]:
        """Charge the looks and return the inner edges of every feature's bins."""
        cells = self._cells(rows)
        receipt = self.purse.look(self._quantiles)
        found = []
        for place, (query, edges) in enumerate(zip(self._quantiles, cells, strict=True)):
            total = query.total((COUNTS,))
            total.add_bounded(torch.from_numpy(tree_counts(rows[:, place], edges)))
            noisy = total.release(receipt, self.purse.source).numpy()
            knots = np.array(quantile_knots(noisy, edges, std=query.noise_std, most=most, rough=True))
            even = np.linspace(edges[0], edges[-1], _EVEN + 1)[1:-1]
            found.append(np.unique((knots[1:] + knots[:-1]) / 2) if len(knots) else even)
        return found

    def _cells(self, rows: Numbers) -> list[Numbers]:
        """Return the edges of the cells of every feature."""
        if self.bounds is not None:
            low, high = declared(self.bounds, self.width)
            return [np.linspace(low[place], high[place], CELLS + 1) for place in range(self.width)]
        receipt = self.purse.look(self._ranges)
        found = []
        for place, query in enumerate(self._ranges):
            total = query.total((len(EDGES) - 1,))
            total.add_bounded(torch.from_numpy(counts(rows[:, place])))
            found.append(cell_edges(total.release(receipt, self.purse.source).numpy(), query.noise_std))
        return found


def chosen_for(rows: Numbers, classes: int, purse: Purse) -> BoostSettings:
    """Return the settings of the rule."""
    return boost_settings(records=len(rows), columns=rows.shape[1], epsilon=purse.epsilon, classes=classes)


def fit_shapes(
    rows: Numbers,
    targets: torch.Tensor,
    classes: int,
    *,
    noise: float,
    bins: Bins,
    purse: Purse,
    weights: Numbers | None = None,
) -> tuple[Shapes, list[Numbers]]:
    """Return the boosted model and the edges of the features' bins; ``weights`` are from 0 to 1."""
    chosen = chosen_for(rows, classes, purse)
    edges = bins.release(rows, chosen.bins)
    columns = [
        Axis(name=str(place), size=len(inner) + 1, ordered=True, missing=False) for place, inner in enumerate(edges)
    ]
    cells = Cells(columns, len(rows), [(codes(rows, edges), targets.numpy())], weights)
    shapes = boost(cells, classes, noise_multiplier=noise, chosen=chosen, ledger=purse.ledger, source=purse.source)
    return shapes, edges


def codes(rows: Numbers, edges: list[Numbers]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bin of every entry."""
    return np.stack([np.searchsorted(inner, rows[:, at], side="right") for at, inner in enumerate(edges)], axis=1)


def importances(shapes: Shapes, width: int) -> Numbers:
    """Return each feature's share of the spread of the score: its own shape, and half of each pair it is in."""
    found = np.zeros(width)
    for term, strength in zip(shapes.terms, shapes.get_buffer("strength").tolist(), strict=True):
        for place in term.places:
            found[place] += strength / len(term.places)
    return found / found.sum() if found.sum() > 0 else found
