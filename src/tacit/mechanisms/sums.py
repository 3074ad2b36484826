"""Sums over the records of a sample, for anything that is not a gradient: losses, counts, moments, statistics.

    loss = SumQuery(group="loss", clip_norm=5.0, noise_std=100.0)
    receipt = ledger.record(Step(sampler.event(), (loss.event(), ...)))
    total = loss.total()
    for x, y in reader.read(sampler.draw(receipt)):
        total.add(losses(x, y))                                # one row for each record
    mean = total.mean(receipt, source, lot_size=sampler.expected)

A row is one record, a vector of any shape. A record that is not finite counts as zero, and an empty sample is released
like any other. Sums are kept in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from tacit.ledger.events import GaussianSum, LaplaceSum
from tacit.mechanisms.groups import Spendable, positive, recorded_gaussian
from tacit.mechanisms.lattice import add_noise_, check_lattice, gaussian_sum, usual_lattice
from tacit.mechanisms.noise import add_laplace_
from tacit.randomness import Source

_MARGIN = 2.0**-48  # covers the rounding of a norm and of the product in float64


@dataclass(frozen=True, kw_only=True)
class SumQuery:
    """A sum of vectors, each clipped to L2 norm ``clip_norm``, plus Gaussian noise.

    Formal guarantee: one record more or fewer moves the sum by at most ``clip_norm`` in L2 norm, whatever the record
    holds; the noise is the recorded one. It is the Gaussian mechanism for sums with the privacy tuple
    (clip_norm, noise_std).

    With ``noise="discrete"`` the sum is rounded to multiples of ``lattice``, a power of two, and the noise is exact
    (`tacit.mechanisms.lattice`); a vector then has ``dimension`` coordinates, and what rounding adds to the
    sensitivity is recorded with it. Without ``lattice`` a step is chosen that adds less than 2^-14.
    """

    group: str
    clip_norm: float
    noise_std: float
    noise: Literal["gaussian", "discrete"] = "gaussian"
    lattice: float | None = None
    dimension: int = 1

    def __post_init__(self) -> None:
        if self.noise not in ("gaussian", "discrete"):
            raise ValueError(f"noise is {self.noise!r}; choose 'gaussian' or 'discrete'.")
        if self.noise == "gaussian" and self.lattice is not None:
            raise ValueError(f"lattice is {self.lattice!r}; it is for noise='discrete'.")
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, int) or self.dimension < 1:
            raise ValueError(f"dimension is {self.dimension!r}; it must be a whole number, at least 1.")
        check_lattice(self.lattice)
        positive("clip norm", self.clip_norm)
        self.event()

    def event(self) -> GaussianSum:
        """Return the event to record for a step."""
        usual = usual_lattice(self.clip_norm, self.dimension) if self.noise == "discrete" else None
        return gaussian_sum(
            group=self.group,
            sensitivity=self.clip_norm,
            noise_std=self.noise_std,
            lattice=self.lattice or usual,
            dimension=self.dimension,
        )

    def total(self, shape: Sequence[int] = ()) -> Total:
        """An empty sum of vectors of the given shape; with discrete noise it must have ``dimension`` coordinates."""
        if self.noise == "discrete" and math.prod(shape) != self.dimension:
            raise ValueError(f"shape is {tuple(shape)}; rounding is recorded for {self.dimension} coordinates.")
        return Total(self, shape)

    def clip(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of ``values`` in float64, clipped."""
        return _clip(values, self.clip_norm, order=2)

    def release(self, receipt: Spendable, total: torch.Tensor, source: Source) -> torch.Tensor:
        """``total``, a sum of clipped rows, with the recorded noise."""
        query = recorded_gaussian(receipt, self.group, self.clip_norm, total.numel())
        noisy = total.clone()
        add_noise_([(noisy, query, 1.0)], source)
        return noisy


@dataclass(frozen=True, kw_only=True)
class LaplaceQuery:
    """A sum of vectors, each clipped to L1 norm ``clip_norm``, plus Laplace noise.

    Formal guarantee: one record more or fewer moves the sum by at most ``clip_norm`` in L1 norm, so the release is
    (clip_norm / scale)-differentially private by the Laplace mechanism. ``dimension`` is the number of coordinates.
    """

    group: str
    clip_norm: float
    scale: float
    dimension: int = 1

    def __post_init__(self) -> None:
        self.event()

    def event(self) -> LaplaceSum:
        """Return the event to record for a step."""
        return LaplaceSum(group=self.group, clip_norm=self.clip_norm, scale=self.scale, dimension=self.dimension)

    def total(self, shape: Sequence[int] = ()) -> Total:
        """An empty sum of vectors of the given shape, which must have ``dimension`` coordinates."""
        if math.prod(shape) != self.dimension:
            raise ValueError(f"shape is {tuple(shape)}; the query is recorded with {self.dimension} coordinates.")
        return Total(self, shape)

    def clip(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of ``values`` in float64, clipped."""
        return _clip(values, self.clip_norm, order=1)

    def release(self, receipt: Spendable, total: torch.Tensor, source: Source) -> torch.Tensor:
        """``total``, a sum of clipped rows, with the recorded noise."""
        query = receipt.spend(self.group)
        same = isinstance(query, LaplaceSum) and (query.clip_norm, query.dimension) == (self.clip_norm, total.numel())
        if not isinstance(query, LaplaceSum) or not same:
            raise ValueError(
                f"the ledger has {query} for group {self.group!r}, but one record can contribute {self.clip_norm}."
            )
        noisy = total.clone()
        add_laplace_([(noisy, query.scale)], source)
        return noisy


class Total:
    """The clipped sum of a sample as it is added up, batch by batch. A release empties it for the next sample."""

    def __init__(self, query: SumQuery | LaplaceQuery, shape: Sequence[int] = ()) -> None:
        self._query, self._sum = query, torch.zeros(tuple(shape), dtype=torch.float64, device="cpu")

    def add(self, values: torch.Tensor) -> None:
        """Add records, one a row, clipping each."""
        if values.shape[1:] != self._sum.shape:
            raise ValueError(f"rows have shape {tuple(values.shape[1:])}; the sum has {tuple(self._sum.shape)}.")
        self._sum += self._query.clip(values).sum(dim=0).to("cpu")

    def add_bounded(self, partial: torch.Tensor) -> None:
        """Add a sum over records whose every contribution *the caller* has bounded by the query's clip norm."""
        if partial.shape != self._sum.shape:
            raise ValueError(f"the partial sum has shape {tuple(partial.shape)}, not {tuple(self._sum.shape)}.")
        self._sum += partial.detach().to("cpu", torch.float64)

    def release(self, receipt: Spendable, source: Source) -> torch.Tensor:
        """The noisy sum."""
        noisy = self._query.release(receipt, self._sum, source)
        self._sum.zero_()
        return noisy

    def mean(self, receipt: Spendable, source: Source, *, lot_size: float) -> torch.Tensor:
        """The noisy sum divided by the *expected* lot size q n, fixed and public; never by the number of records."""
        positive("expected lot size", lot_size)
        return self.release(receipt, source) / lot_size


@dataclass(frozen=True, kw_only=True)
class WeightedMean:
    """sum_i w_i v_i / sum_i w_i over the sample, with both sums released privately.

    Formal guarantee: ``values`` clips the vectors w_i v_i and ``weights`` the numbers w_i, negative ones counting as
    zero: two Gaussian sums of the same sample, each charged. The quotient is post-processing; its denominator is at
    least ``least``, a public bound, so that noise cannot turn it to nothing.
    """

    values: SumQuery
    weights: SumQuery
    least: float

    def __post_init__(self) -> None:
        positive("least total weight", self.least)
        if self.values.group == self.weights.group:
            raise ValueError(f"both groups are {self.values.group!r}; values and weights need names of their own.")

    def events(self) -> tuple[GaussianSum, GaussianSum]:
        """Return the event to record for a step."""
        return self.values.event(), self.weights.event()

    def total(self, shape: Sequence[int] = ()) -> WeightedTotal:
        """An empty weighted sum of vectors of the given shape."""
        return WeightedTotal(self, shape)


class WeightedTotal:
    """Numerator and denominator of a `WeightedMean` as they are added up."""

    def __init__(self, query: WeightedMean, shape: Sequence[int] = ()) -> None:
        self._least = query.least
        self._values, self._weights = query.values.total(shape), query.weights.total()

    def add(self, values: torch.Tensor, weights: torch.Tensor) -> None:
        """Add records: one row of values and one weight each. A record that is not finite adds to neither sum."""
        if weights.shape != values.shape[:1]:
            raise ValueError("weights do not have the length of values; give one weight for each record.")
        sane = torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None]).all(dim=1)
        bounded = torch.where(sane & torch.isfinite(weights), weights.to(torch.float64), 0.0).clamp(min=0.0)
        clean = torch.where(_rows(sane, values), values.to(torch.float64), 0.0)
        self._values.add(clean * _rows(bounded, values))
        self._weights.add(bounded)

    def release(self, receipt: Spendable, source: Source) -> torch.Tensor:
        """The noisy weighted mean."""
        numerator, denominator = self._values.release(receipt, source), self._weights.release(receipt, source)
        return numerator / denominator.clamp(min=self._least)


def _clip(values: torch.Tensor, bound: float, *, order: int) -> torch.Tensor:
    """Rows of ``values`` with norm at most ``bound``; a row with a value that is not finite becomes zero."""
    values = values.detach().to(torch.float64)
    sane = torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None]).all(dim=1)
    values = torch.where(_rows(sane, values), values, 0.0)
    flat = values.flatten(1) if values.ndim > 1 else values[:, None]
    if not flat.shape[1]:
        return values
    largest = flat.abs().amax(dim=1).clamp(min=1e-290)  # divided by it, no row overflows when squared
    units = values / _rows(largest, values)
    norms = torch.linalg.vector_norm(flat / largest[:, None], ord=order, dim=1).clamp(min=1e-290)
    most = bound * (1 - _MARGIN)
    return torch.where(_rows(largest * norms <= most, values), values, units * _rows(most / norms, values))


def _rows(factors: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return factors.view(-1, *[1] * (values.ndim - 1))
