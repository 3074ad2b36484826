"""A privacy loss on a lattice {i · step}: one rounding that can only raise δ, one that can only lower it.

*Pessimistic* (connect the dots; Doroshenko et al. 2022): the mass of each cell moves to the cell's two ends so that
its P-mass and its Q-mass both stay. The result's profile interpolates the true one, a convex function, at the points
e^(i·step): it dominates the pair. What lies above the lattice becomes infinite loss, what lies below moves up.

*Optimistic*: outcomes around a lattice point are merged into one. Merging is post-processing, so the merged pair is
dominated by the true one; a merged loss that is not on the lattice is lowered to it, which lowers
E_P[(1 - e^(ε-ΣL))_+] for any number of compositions. What lies above the lattice moves down to its end, what lies
below is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacit.accounting.losses import Array, Pair

# e^loss must stay a finite double; a single release with a larger loss is treated as a complete loss.
LARGEST_LOSS = 600.0


@dataclass(frozen=True)
class Lattice:
    """Mass ``p[i]`` under P at the loss (first + i) · step, and mass ``infinite`` at infinity."""

    step: float
    first: int
    p: Array
    infinite: float = 0.0

    @cached_property
    def points(self) -> Array:
        return np.arange(self.first, self.first + len(self.p), dtype=np.float64) * self.step

    @cached_property
    def log_p(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.p)


def reach(pair: Pair, tail: float) -> tuple[float, float]:
    """Losses beyond which, on either side, less than ``tail`` of P lies."""
    low, high = -LARGEST_LOSS, LARGEST_LOSS
    probes = np.concatenate([-np.geomspace(LARGEST_LOSS, 1e-9, 400), [0.0], np.geomspace(1e-9, LARGEST_LOSS, 400)])
    for _ in range(2):
        edges = np.concatenate([[-np.inf], probes, [np.inf]])
        p = pair.cells(edges).p
        below, above = np.cumsum(p), np.cumsum(p[::-1])[::-1]
        few_below, few_above = np.flatnonzero(below[:-1] <= tail), np.flatnonzero(above[1:] <= tail)
        i = int(few_below[-1]) if len(few_below) else 0
        j = int(few_above[0]) if len(few_above) else len(probes) - 1
        low, high = float(probes[i]), float(probes[j])
        nearer_low, nearer_high = float(probes[min(i + 1, len(probes) - 1)]), float(probes[max(j - 1, 0)])
        inner = np.linspace(low, nearer_low, 50), np.linspace(nearer_high, high, 50)
        probes = np.unique(np.concatenate([inner[0], [-1e-9, 0.0, 1e-9], inner[1]]))
    return min(low, 0.0), max(high, 0.0)


def spread(pair: Pair) -> float:
    """The standard deviation of the loss under P, roughly (it only chooses the lattice step)."""
    probes = np.concatenate([-np.geomspace(LARGEST_LOSS, 1e-12, 500), [0.0], np.geomspace(1e-12, LARGEST_LOSS, 500)])
    p = pair.cells(probes).p
    middle = (probes[1:] + probes[:-1]) / 2
    mean = float(p @ middle)
    return float(np.sqrt(max(p @ middle**2 - mean**2, 1e-24)))


def _points(step: float, low: float, high: float) -> tuple[int, Array]:
    """First index and points of the lattice that covers [low, high]."""
    first, last = math.floor(low / step) - 1, math.ceil(high / step) + 1
    return first, np.arange(first, last + 1) * step


def pessimistic(pair: Pair, step: float, low: float, high: float) -> Lattice:
    """A lattice distribution that dominates ``pair``."""
    first, points = _points(step, low, high)
    cells = pair.cells(np.concatenate([[-np.inf], points, [np.inf]]))
    inner = np.maximum(cells.p[1:-1], 0.0)
    up = np.clip((cells.rise[1:-1] + cells.slack[1:-1]) / -math.expm1(-step), 0.0, inner)
    p = np.zeros(len(points))
    p[:-1] += inner - up
    p[1:] += up
    p[0] += cells.p[0]
    return Lattice(step, first, p, float(cells.p[-1]))


def optimistic(pair: Pair, step: float, low: float, high: float) -> Lattice:
    """A lattice distribution that ``pair`` dominates.

    The fraction ``share[i]`` of the cell (x_i, x_i+1] goes down to x_i, the rest up to x_i+1. What arrives at x_i is
    merged into one outcome; its loss is at least x_i exactly when

        share[i] · rise_i >= (1 - share[i-1]) · fall_{i-1},      fall = e^(x_i) Q(cell) - P(cell),

    and lowering that loss to x_i is sound. Equality everywhere loses nothing to first order; the recurrence that
    gives it is stable from either tail towards the mode, and where a share would leave [0, 1] more mass goes down.
    """
    first, points = _points(step, low, high)
    cells = pair.cells(np.append(points, np.inf))
    mass = np.maximum(cells.p, 0.0)
    rises = np.maximum(cells.rise - cells.slack, 0.0)
    falls = np.maximum(math.expm1(step) * mass - math.exp(step) * (cells.rise - cells.slack), 0.0)
    share = _shares(rises.tolist(), falls.tolist(), int(np.argmax(mass)))
    p = mass * share
    p[1:] += mass[:-1] * (1 - share[:-1])
    return Lattice(step, first, p)


def _shares(rises: list[float], falls: list[float], mode: int) -> Array:
    """Shares that meet the condition of `optimistic` at every point; the last cell, without upper end, is all down."""
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
