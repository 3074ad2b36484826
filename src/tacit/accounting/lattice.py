"""A privacy loss on a lattice {i · step}, by a rounding that can only raise δ.

Connect the dots (Doroshenko et al. 2022): the mass of each cell moves to the cell's two ends so that
its P-mass and its Q-mass both stay. The result's profile interpolates the true one, a convex function, at the points
e^(i·step): it dominates the pair. What lies above the lattice becomes infinite loss, what lies below moves up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacit.accounting.losses import Array, Pair, Plain

# e^loss must stay a finite double; a single release with a larger loss is treated as a complete loss.
LARGEST_LOSS = 600.0


@dataclass(frozen=True)
class Lattice:
    """Mass ``p[i]`` under P at the loss offset + (first + i) · step, and mass ``infinite`` at infinity."""

    step: float
    offset: float
    first: int
    p: Array
    infinite: float = 0.0

    @cached_property
    def points(self) -> Array:
        """The losses less the offset, which sums keep apart: all lattices are multiples of one step."""
        return np.arange(self.first, self.first + len(self.p), dtype=np.float64) * self.step

    @cached_property
    def log_p(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.p)


@dataclass(frozen=True)
class Sketch:
    """A loss distribution in a few hundred cells, fine near its bulk and wide in its tails.

    It chooses tilt, step and extent of the lattice; the bounds do not depend on how well it does so.
    """

    centre: float
    edges: Array
    p: Array
    points: Array

    @cached_property
    def log_p(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.p)

    def without_tails(self, tail: float) -> Sketch:
        """The sketch of what is left when at most ``tail`` of P is cut off at either end."""
        below, above = np.cumsum(self.p), np.cumsum(self.p[::-1])[::-1]
        first = int(np.searchsorted(below, tail, side="right"))
        last = len(self.p) - int(np.searchsorted(above[::-1], tail, side="right"))
        return Sketch(self.centre, self.edges[first : last + 1], self.p[first:last], self.points[first:last])


def sketch(pair: Pair) -> Sketch:
    """Cells in geometric progression around the median loss; each is placed at its merged loss log P/Q."""
    away = np.geomspace(1e-12, LARGEST_LOSS, 240)
    centre = 0.0
    for _ in range(2):
        edges = np.concatenate([centre - away[::-1], [centre], centre + away])
        edges = np.unique(np.append(np.clip(edges, -LARGEST_LOSS, LARGEST_LOSS), 0.0))
        cells = pair.cells(edges)
        centre = float(edges[1:][min(int(np.searchsorted(np.cumsum(cells.p), 0.5)), len(edges) - 2)])
    p, q = np.maximum(cells.p, 0.0), np.maximum(cells.q, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        merged = np.nan_to_num(np.log(p) - np.log(q), nan=0.0, posinf=LARGEST_LOSS, neginf=-LARGEST_LOSS)
    return Sketch(centre, edges, p, np.clip(merged, edges[:-1], edges[1:]))


def _layout(pair: Pair, near: Sketch, step: float) -> tuple[float, int, Array]:
    """Offset, first index and points of the lattice that covers the sketch.

    The offset puts the bulk of the losses on a point: when a record is rarely sampled nearly all of P lies at almost
    one loss, and moving that to a neighbouring point would cost up to a step each time.
    """
    offset = 0.0
    if not isinstance(pair, Plain):
        middle = np.array([near.centre - step / 2, near.centre + step / 2])
        bulk = pair.cells(np.unique(np.append(middle, 0.0)) if middle[0] < 0 < middle[1] else middle)
        mass = float(bulk.p.sum()), float(bulk.q.sum())
        if min(mass) > 0:
            loss = min(max(math.log(mass[0] / mass[1]), middle[0]), middle[1])
            offset = loss - step * round(loss / step)
    first = math.floor((float(near.edges[0]) - offset) / step) - 1
    last = math.ceil((float(near.edges[-1]) - offset) / step) + 1
    return offset, first, offset + step * np.arange(first, last + 1, dtype=np.float64)


def pessimistic(pair: Pair, near: Sketch, step: float) -> Lattice:
    """A lattice distribution that dominates ``pair``."""
    offset, first, points = _layout(pair, near, step)
    cells = pair.cells(np.concatenate([[-np.inf], points, [np.inf]]))
    inner = np.maximum(cells.p[1:-1], 0.0)
    up = np.clip((cells.rise[1:-1] + cells.slack[1:-1]) / -math.expm1(-step), 0.0, inner)
    p = np.zeros(len(points))
    p[:-1] += inner - up
    p[1:] += up
    p[0] += cells.p[0]
    return Lattice(step, offset, first, p, float(cells.p[-1]))


def shares(rises: list[float], falls: list[float], mode: int) -> Array:
    """How much of each cell goes down to its lower end, so that a lattice distribution results that the law dominates.

    The fraction ``share[i]`` of the cell (x_i, x_i+1] goes down to x_i, the rest up to x_i+1. What arrives at x_i is
    merged into one outcome; its loss is at least x_i exactly when

        share[i] · rise_i >= (1 - share[i-1]) · fall_{i-1},      fall = e^(x_i) Q(cell) - P(cell),

    and lowering that loss to x_i is sound. Equality everywhere loses nothing to first order; the recurrence that
    gives it is stable from either tail towards the mode, and where a share would leave [0, 1] more mass goes down. The
    last cell, without upper end, is all down.
    """
    n = len(rises)
    share = [0.0] * n
    share[n - 1] = 1.0
    for i in range(n - 1, mode, -1):
        supply = share[i] * rises[i]
        if supply < falls[i - 1]:
            share[i - 1] = 1.0 - supply / falls[i - 1]
    for i in range(1, mode + 1):
        demand = (1.0 - share[i - 1]) * falls[i - 1]
        if i == mode:
            supply = share[i] * rises[i]
        elif demand <= rises[i]:
            share[i] = demand / rises[i] if rises[i] > 0 else 0.0
            continue
        else:
            share[i], supply = 1.0, rises[i]
        if supply < demand:
            share[i - 1] = 1.0 - supply / falls[i - 1]
    return np.asarray(share)
