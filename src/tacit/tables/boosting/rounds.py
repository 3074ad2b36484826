"""Private boosting: shapes of binned columns, and of pairs of them, from noisy sums of residuals.

The idea is that of DP-EBM (Nori et al. 2021): go round the columns, and for each release the sum of the residuals in
every bin. The differences here:

* Every record takes part in every look, and there are few looks: they add up to one Gaussian mechanism, whose noise is
  shared out by fixed weights. A look's update is a whole (Newton) step, not a small fraction of one.
* Residuals are clipped to a norm that follows from a noisy histogram of their norms, which is paid for: as the model
  gets better, residuals get smaller, and so does the noise.
* A shape is the posterior mean under a prior of smoothness whose scale is fitted to the noisy sums
  (`tacit.tables.smoothing`), from all looks at it so far, older ones counting less: free, as it is post-processing.
* Pairs of columns are chosen by one look at the residuals in coarse cells of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.ledger import Everyone, Ledger, Receipt, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Source
from tacit.tables.boosting.cells import Cells, add_sums, merged
from tacit.tables.boosting.loss import Array, Loss
from tacit.tables.boosting.shapes import Term, alone
from tacit.tables.boosting.smoothing import Prior, bends, evidence, neighbours, of_pair, settled_counts, smoothed
from tacit.tables.encoding import UNKNOWN

_COLUMNS_PAIRED = 16
_COARSE = 8
_KEPT = 0.85
"""The weight of older looks at a shape, each round."""
_NORMS = np.concatenate([[0.0], np.geomspace(1e-3, 1.5, 31)])
"""Edges of the histogram of residuals' norms, as shares of the loss's reach."""


@dataclass
class Fitted:
    """A term with what is known of it: counts of its cells, its prior, its shape, and all looks at it so far."""

    term: Term
    counts: Array
    bend: Array
    """The second derivative of each cell as a multiple of the mean one."""
    priors: list[Prior]
    shape: Array
    seen: NDArray[np.bool_]
    """False for a cell that may have no records: its sums are noise, and only its neighbours say what it adds."""
    measured: Array = field(init=False)
    """The weighted mean of what the looks say the shape is."""
    looks: float = 0.0
    """One over the variance of the noise on a sum that the weighted looks together are worth."""

    def __post_init__(self) -> None:
        self.measured = np.zeros_like(self.shape)

    def look(self, latest: Array, noise_std: float) -> None:
        """Take the mean with what one more look says, whose sums have noise of ``noise_std``."""
        before, new = _KEPT * self.looks, noise_std**-2
        self.looks = before + new
        self.measured = (self.measured * before + latest * new) / self.looks

    def strength(self) -> float:
        """Return the spread of what it adds to the score, over the records."""
        shares = self.counts[:, None] / self.counts.sum()
        mean = (shares * self.shape).sum(axis=0)
        return math.sqrt(float((shares * (self.shape - mean) ** 2).sum()))


class Boosting:
    """The records' cells and scores, and the looks at them."""

    def __init__(self, cells: Cells, loss: Loss, noise: dict[str, float], ledger: Ledger, source: Source) -> None:
        self.cells, self.loss, self.noise, self.ledger, self.source = cells, loss, noise, ledger, source
        self.records = float(len(cells))
        """The number of records; with weights, the sum of their weights, from released counts."""
        self.scores = np.zeros((len(cells), loss.outputs), dtype=np.float32)

    def look(self, kind: str, sensitivities: Sequence[tuple[str, float]]) -> tuple[Receipt, list[SumQuery]]:
        """Charge a look that answers several sums, each of its own sensitivity, with noise in proportion to it."""
        loud = self.noise[kind] * math.sqrt(len(sensitivities)) * (1 + 1e-9)
        queries = [SumQuery(group=name, clip_norm=most, noise_std=loud * most) for name, most in sensitivities]
        step = Step(Everyone(unit=self.ledger.header.unit), tuple(query.event() for query in queries))
        receipt = self.ledger.record(step, secure=self.source.secure)
        receipt.draw()
        return receipt, queries

    def answer(self, receipt: Receipt, query: SumQuery, sums: Array) -> Array:
        """Return sums, of which one record adds no more than the query's clip norm, with the recorded noise."""
        total = query.total(sums.shape)
        total.add_bounded(torch.from_numpy(sums))
        noisy: Array = total.release(receipt, self.source).numpy()
        return noisy

    def begin(self) -> tuple[Array, list[Fitted]]:
        """Release the counts of all columns' cells and the target's sums; return the intercept and flat shapes."""
        columns = self.cells.axes
        asked = [("target", 1.0), *((f"counts/{axis.name}", 1.0) for axis in columns)]
        receipt, (first, *others) = self.look("counts", asked)
        sums = self.answer(receipt, first, np.sum([self.first(here) for here, _ in self.cells.chunks()], axis=0))
        terms = [alone(place, axis.size) for place, axis in enumerate(columns)]
        counted = [self.answer(receipt, query, self.count(term)) for term, query in zip(terms, others, strict=True)]
        if self.cells.weights is not None:
            self.records = min(max(float(counted[0].sum()), 1.0), self.records)
        intercept = self.loss.start(sums, self.records, first.noise_std)
        self.scores += intercept.astype(np.float32)
        fitted = []
        for term, query, noisy in zip(terms, others, counted, strict=True):
            even = np.full(term.cells, self.records / term.cells)
            fitted.append(self.fresh(term, query, noisy, even))
        return intercept, fitted

    def first(self, here: slice) -> Array:
        """Return what the intercept is made from, of some records: a whole column of doubles would fill the memory."""
        weights = self.cells.weights
        return self.loss.first(self.cells.targets[here], None if weights is None else weights[here])

    def priors(self, term: Term) -> list[Prior]:
        """Return the priors of a term's shape, of which the likeliest counts; none for the values of one category."""
        columns = [self.cells.axes[place] for place in term.places]
        if len(columns) == 1 and not columns[0].ordered:
            return []
        sides = [
            neighbours(size, ordered=column.ordered, missing=column.missing)
            for column, size in zip(columns, term.sizes, strict=True)
        ]
        if len(sides) > 1:
            return [Prior(of_pair(*sides))]
        return [Prior(sides[0]), bends(term.cells, missing=columns[0].missing)]

    def fresh(self, term: Term, query: SumQuery, noisy: Array, expected: Array) -> Fitted:
        """Return a flat term, its noisy counts drawn to the ``expected`` ones."""
        std = query.noise_std * math.sqrt(self.loss.classes)
        counts = settled_counts(noisy.sum(axis=1), expected, std, self.records)
        bend = self.loss.bend(noisy, counts, query.noise_std)
        # A pair's cells are expected to have records where both columns' cells do; most are below the noise one by one.
        seen = (noisy.sum(axis=1) > 2 * std) | (counts > 0.2 * expected)
        return Fitted(term, counts, bend, self.priors(term), np.zeros((term.cells, self.loss.outputs)), seen)

    def count(self, term: Term) -> Array:
        """Return how many records of each class are in each cell: one record adds 1 to one number at most."""
        classes = self.loss.classes
        found = np.zeros(term.cells * classes)
        for here, codes in self.cells.chunks(*term.places):
            flat = term.flat(codes) * classes
            weights = self.cells.weighted(here, np.ones(len(flat)))
            if classes > 1:
                own = self.cells.targets[here]
                flat, weights = (flat + own.astype(np.int64))[own != UNKNOWN], weights[own != UNKNOWN]
            found += np.bincount(flat, weights=weights, minlength=len(found))
        return found.reshape(-1, classes)

    def clip_norm(self, loud: float, cells: float) -> tuple[float, float, float]:
        """Return a clip norm, and the mean and the mean square of the residuals' norms, from a noisy histogram.

        The clip norm is the one with the smallest sum of squares of two errors in a cell's sum: the noise, and what
        clipping takes away if residuals all had one sign.
        """
        receipt, (query,) = self.look("norms", [("norms", 1.0)])
        edges, bins = _NORMS * self.loss.reach, np.zeros(len(_NORMS) - 1)
        for here, _ in self.cells.chunks():
            norms = np.linalg.norm(self.residuals(here), axis=1)
            bins += np.histogram(np.minimum(norms, edges[-2]), edges)[0]
        noisy = np.maximum(self.answer(receipt, query, bins), 0.0)
        height = 2 * query.noise_std
        noisy = np.where(noisy > height, noisy, 0.0) if noisy.max() > height else noisy + 1e-9
        middles = (edges[1:] + edges[:-1]) / 2
        choices = edges[1:][edges[1:] <= self.loss.reach]
        lost = (noisy * np.maximum(middles - choices[:, None], 0.0)).sum(axis=1) / cells
        best = float(choices[int(np.argmin((loud * choices) ** 2 + lost**2))])
        shares = noisy / noisy.sum()
        return best, float((shares * middles).sum()), float((shares * middles**2).sum())

    def residuals(self, here: slice) -> Array:
        return self.loss.residuals(self.scores[here], self.cells.targets[here])

    def clipped(self, here: slice, clip_norm: float) -> Array:
        """Return residuals of L2 norm at most ``clip_norm``, then weighted; the margin covers rounding."""
        left = self.residuals(here)
        norms = np.linalg.norm(left, axis=1, keepdims=True)
        kept: Array = left * np.minimum(1.0, clip_norm * (1 - 1e-9) / np.maximum(norms, 1e-300))
        return self.cells.weighted(here, np.where(np.isfinite(kept), kept, 0.0))

    def sums(self, term: Term, clip_norm: float) -> Array:
        found = np.zeros((term.cells, self.loss.outputs))
        for here, codes in self.cells.chunks(*term.places):
            add_sums(found, term.flat(codes), self.clipped(here, clip_norm))
        return found

    def cycle(self, kind: str, fitted: Sequence[Fitted], cells: float, told: Callable[[], None]) -> None:
        """Go round the terms once: one look whose sums are asked one after the other, each after the update before."""
        loud = self.noise[kind] * math.sqrt(len(fitted))
        clip_norm, mean, square = self.clip_norm(loud, cells)
        curvature = self.loss.curvature(mean, square)
        names = [f"shape/{one.term.name(self.cells.axes)}" for one in fitted]
        receipt, queries = self.look(kind, [(name, clip_norm) for name in names])
        for one, query in zip(fitted, queries, strict=True):
            noisy = self.answer(receipt, query, self.sums(one.term, clip_norm))
            slopes = one.counts * one.bend * curvature
            spread = self.loss.variance(mean, square) / curvature
            step = np.clip(noisy / slopes[:, None], -self.loss.stride, self.loss.stride) * one.seen[:, None]
            before = one.shape
            one.look(before + step, query.noise_std)
            # Looks have noise of their own, and the same records: a mean of looks has less of the one only.
            precision = 1 / (1 / (one.looks * slopes**2) + self.loss.lasting * spread / slopes)
            one.shape = smoothed(one.measured, precision, one.priors)
            self.add(one.term, one.shape - before)
            told()

    def add(self, term: Term, change: Array) -> None:
        """Add what changed in a shape to the records' scores."""
        for here, codes in self.cells.chunks(*term.places):
            self.scores[here] += change.astype(np.float32)[term.flat(codes)]

    def pairs(self, fitted: Sequence[Fitted], finest: int, most: int) -> list[Fitted]:
        """Choose pairs of columns by their residuals in coarse cells, and release the counts of their finer cells.

        There are at most ``most`` pairs, and ``finest`` cells a column.
        """
        columns = self.cells.axes
        strongest = sorted(range(len(fitted)), key=lambda place: -fitted[place].strength())
        used = sorted(strongest[:_COLUMNS_PAIRED])
        coarse, fine = (
            {place: merged(columns[place], fitted[place].counts, size) for place in used} for size in (_COARSE, finest)
        )
        terms = [Term(places=pair, groups=(coarse[pair[0]], coarse[pair[1]])) for pair in combinations(used, 2)]
        loud = self.noise["pairs"] * math.sqrt(len(terms))
        clip_norm, mean, square = self.clip_norm(loud, _COARSE**2)
        # A record adds its clipped residual to one cell of each pair: a vector of norm sqrt(pairs) times the clip norm.
        receipt, (query,) = self.look("pairs", [("pairs", clip_norm * math.sqrt(len(terms)))])
        found = [np.zeros((term.cells, self.loss.outputs)) for term in terms]
        for here, codes in self.cells.chunks(*used):
            left, at = self.clipped(here, clip_norm), dict(zip(used, codes, strict=True))
            for term, sums in zip(terms, found, strict=True):
                add_sums(sums, term.flat([at[place] for place in term.places]), left)
        noisy = self.answer(receipt, query, np.concatenate(found))
        curvature = self.loss.curvature(mean, square)
        variance = self.loss.variance(mean, square)
        gains, first = [], 0
        for term in terms:
            expected = self.expected(term, fitted)
            gains.append(
                evidence(
                    noisy[first : first + term.cells],
                    query.noise_std**2 + expected * variance,
                    np.maximum(expected * curvature, 1e-9),
                    term.sizes,
                )
            )
            first += term.cells
        best = sorted(range(len(terms)), key=lambda place: -gains[place])[:most]
        chosen = [terms[place].places for place in best if gains[place] > self.loss.least_evidence]
        if not chosen:
            return []
        found_terms = [Term(places=pair, groups=(fine[pair[0]], fine[pair[1]])) for pair in chosen]
        receipt, queries = self.look("pair counts", [(f"counts/{term.name(columns)}", 1.0) for term in found_terms])
        paired = []
        for term, asked in zip(found_terms, queries, strict=True):
            noisy = self.answer(receipt, asked, self.count(term))
            paired.append(self.fresh(term, asked, noisy, self.expected(term, fitted)))
        return paired

    def expected(self, term: Term, fitted: Sequence[Fitted]) -> Array:
        """Return the counts of a pair's cells if its columns had nothing to do with each other."""
        sides = [
            np.bincount(group, weights=fitted[place].counts, minlength=size)
            for place, group, size in zip(term.places, term.groups, term.sizes, strict=True)
        ]
        return np.outer(*sides).reshape(-1) / self.records
