"""Vector groups: vectors that are clipped together, their norm and their charge.

The words are those of McMahan, Andrew et al. 2019, section 2: a *vector* is one or more parameters whose joint norm the
gradient engine reports; a *group* is one or more vectors released by one Gaussian sum query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from tacit._compiled import kernels
from tacit.ledger.events import CyclicPoisson, GaussianSum, Query, Step
from tacit.mechanisms.allocation import Allocation
from tacit.mechanisms.correlated import Correlated, CorrelatedNoise
from tacit.mechanisms.lattice import add_noise_, charged, gaussian_sum, lattice_of
from tacit.randomness import Source

Shapes = Mapping[str, torch.Size]

MARGIN = {torch.float32: 2.0**-20, torch.float64: 2.0**-40}
"""The margin below the clip norm, by the norm's dtype: it covers the rounding of norm and factor."""


class Spendable(Protocol):
    """The part of a receipt that a mechanism needs: each recorded query, handed out once."""

    def spend(self, group: str, /) -> Query: ...


def positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a finite number above 0.")


@dataclass(frozen=True, kw_only=True)
class Vector:
    """Parameters measured by one norm; ``scale`` is the alpha of joint clipping."""

    names: tuple[str, ...]
    dimension: int
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Group:
    """Vectors clipped together and released by one query.

    ``clip_norm`` bounds one clipped contribution, after each vector is divided by its scale. ``contributions`` is by
    how many times that one record can move the sum: 1 unless the record is part of a microbatch or brings several
    examples. ``margin`` is what the rounding of the sum adds to that, as a fraction of the clip norm; the engine
    that computes the sum states it. With ``stability`` the contribution is normalised, v / (|v| + stability),
    instead of clipped.
    """

    name: str
    vectors: tuple[Vector, ...]
    clip_norm: float
    contributions: int = 1
    stability: float | None = None
    margin: float = 0.0

    @property
    def dimension(self) -> int:
        return sum(vector.dimension for vector in self.vectors)

    @property
    def sensitivity(self) -> float:
        """Return the sensitivity that the ledger records: the most one record moves the sum, in L2 norm."""
        return self.contributions * self.clip_norm * (1 + self.margin)


class Clipping:
    """A strategy applied to the parameters of one model, for the gradient engine and the ledger.

    Formal guarantee: for every record, and every group g, the contribution (w_j v_j / scale_j) over the vectors j of g
    has L2 norm at most S_g = `Group.clip_norm`, where w are the `weights`, whatever v is; a record with a norm that is
    not finite has weight zero everywhere (the engine must then drop its gradient, not multiply it). Adding or removing
    a record therefore moves the scaled sum by at most `Group.sensitivity`, the margin for its rounding included, and by
    Equation 1 of the paper all groups together are one Gaussian sum query with z = ``Step.noise_multiplier``.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)
        self._bounds: _Bounds | None = None  # of the groups when last used

    @property
    def groups(self) -> tuple[Group, ...]:
        return self._groups

    def partition(self, shapes: Shapes) -> tuple[tuple[str, ...], ...]:
        """The names of the parameters of each joint norm, in the order of the columns of `weights`."""
        vectors = tuple(vector.names for group in self.groups for vector in group.vectors)
        known = [name for names in vectors for name in names]
        if sorted(known) != sorted(shapes):
            odd = sorted(set(known) ^ set(shapes))
            raise ValueError(f"the parameters differ from those the clipping was made for: {odd}; bind it again.")
        return vectors

    def joint(self, norms: torch.Tensor) -> torch.Tensor:
        """The norm of each group of each record, its vectors scaled: (batch, groups) from (batch, vectors)."""
        bound = self._bound(norms)
        scaled = norms.to(torch.float64) / bound.scales
        if len(bound.owners) == len(bound.groups):
            return scaled
        return scaled.new_zeros(len(norms), len(bound.groups)).index_add_(1, bound.owner, scaled.square_()).sqrt_()

    def weights(self, norms: torch.Tensor) -> torch.Tensor:
        """Return the factor of each vector of each record: (batch, vectors) from the norms (batch, vectors)."""
        bound = self._bound(norms)
        dtype = norms.dtype if norms.dtype == torch.float64 else torch.float32
        if not bound.simple:
            return self._exact(norms, bound, dtype)
        # Each quotient is rounded by 2^-22 at most (2^-51 in float64), which the margin covers; none is denormal.
        factors, largest = _quotients(bound, norms, dtype)
        if largest < bound.largest:
            return factors
        # A record's own norm decides if its factor is a plain quotient; the others in the batch have no influence.
        plain = (norms < bound.largest).all(dim=1, keepdim=True)
        return torch.where(plain, factors, self._exact(norms, bound, dtype))

    def _exact(self, norms: torch.Tensor, bound: _Bounds, dtype: torch.dtype) -> torch.Tensor:
        """The factors by float64 arithmetic, rounded down."""
        joint, most = self.joint(norms), bound.norms(dtype)
        factors = (most / joint).clamp_(max=1.0)
        for index, group in enumerate(bound.groups):
            if group.stability is not None:
                factors[:, index] = most[index] / (joint[:, index] + group.stability)
        exact = factors[:, bound.owner]
        exact = torch.where(torch.isfinite(norms).all(dim=1, keepdim=True), exact, 0.0)
        return _rounded_down(exact, dtype)

    def _bound(self, norms: torch.Tensor) -> _Bounds:
        """The groups as tensors, made anew when they change; the norms must have a column for each vector."""
        groups = self.groups
        if self._bounds is None or self._bounds.groups != groups or self._bounds.owner.device != norms.device:
            self._bounds = _Bounds(groups, norms.device)
        columns = len(self._bounds.owners)
        if norms.ndim != 2 or norms.shape[1] != columns:
            raise ValueError(f"norms have shape (records, {list(norms.shape[1:])}); they must have {columns} columns.")
        return self._bounds

    def queries(self, noise: Allocation) -> tuple[GaussianSum, ...]:
        """Return the event to record for a step."""
        lattices = [lattice_of(noise, group.sensitivity, group.dimension) for group in self.groups]
        bounds = [
            (group.name, charged(group.sensitivity, lattice, group.dimension), group.dimension)
            for group, lattice in zip(self.groups, lattices, strict=True)
        ]
        queries = tuple(
            gaussian_sum(
                group=group.name,
                sensitivity=group.sensitivity,
                noise_std=std,
                lattice=lattice,
                dimension=group.dimension,
            )
            for group, lattice, std in zip(self.groups, lattices, noise.stds(bounds), strict=True)
        )
        return noise.events(queries) if isinstance(noise, Correlated) else queries

    def release_(
        self, receipt: Spendable, sums: Mapping[str, torch.Tensor], source: Source, *, counts: Source | None = None
    ) -> None:
        """Add to the sums, in place, the noise that was recorded: scale_j sigma_g on vector j of group g.

        Noise of whatever is released besides comes from ``counts``, where that is given.
        """
        noisy = self._recorded(receipt, sums, ("gaussian", "discrete"))
        add_noise_(noisy, source)

    def release_correlated_(
        self, receipt: Spendable, sums: Mapping[str, torch.Tensor], noise: CorrelatedNoise, step: Step, position: int
    ) -> None:
        """Add to the sums, in place, the noise of step ``position`` of the block that ``step`` was recorded for."""
        assert isinstance(step.sampling, CyclicPoisson)
        noisy = self._recorded(receipt, sums, ("correlated",))
        query = noisy[0][1]
        noise.add_([(total, scale * each.noise_std) for total, each, scale in noisy], query, step.sampling, position)

    def _recorded(
        self, receipt: Spendable, sums: Mapping[str, torch.Tensor], kinds: Sequence[str]
    ) -> list[tuple[torch.Tensor, GaussianSum, float]]:
        """Spend every group's query; return each sum with its own, and the scale of its vector."""
        self.partition({name: tensor.shape for name, tensor in sums.items()})
        noisy = []
        for group in self.groups:
            query = recorded_gaussian(receipt, group.name, group.sensitivity, group.dimension, kinds)
            noisy += [(sums[name], query, vector.scale) for vector in group.vectors for name in vector.names]
        return noisy

    def widened(self, margin: float) -> Clipping:
        """The same clipping for sums whose rounding adds the fraction ``margin`` to what a record can do to them."""
        return Clipping([replace(g, margin=margin) for g in self.groups])

    def repeated(self, contributions: int) -> Clipping:
        """The same clipping when one record can change this many clipped contributions."""
        return Clipping([replace(g, contributions=g.contributions * contributions) for g in self.groups])


def recorded_gaussian(
    receipt: Spendable, group: str, sensitivity: float, dimension: int, kinds: Sequence[str] = ("gaussian", "discrete")
) -> GaussianSum:
    """The recorded query of ``group``, spent; it must be a Gaussian sum of this sensitivity, rounding charged."""
    query = receipt.spend(group)
    known = isinstance(query, GaussianSum) and query.noise in kinds
    if (
        not isinstance(query, GaussianSum)
        or not known
        or query.clip_norm != charged(sensitivity, query.lattice, dimension)
    ):
        raise ValueError(
            f"the ledger has {query} for group {group!r}, but this is a Gaussian sum to which one record can "
            f"contribute {sensitivity}; record the queries of the mechanism that releases."
        )
    return query


class _Bounds:
    """The owning group and the scale of every vector, and the norm that every group is clipped to."""

    def __init__(self, groups: tuple[Group, ...], device: torch.device) -> None:
        self.groups = groups
        self.owners = [index for index, group in enumerate(groups) for _ in group.vectors]
        self.owner = torch.tensor(self.owners, device=device)
        self.scales = torch.tensor([v.scale for g in groups for v in g.vectors], dtype=torch.float64, device=device)
        self._clip_norms = torch.tensor([g.clip_norm for g in groups], dtype=torch.float64, device=device)
        self.simple = all(len(g.vectors) == 1 and g.stability is None for g in groups)
        """True if every group is one clipped vector: its factor is a quotient."""
        self.largest = 2.0**100 * min([g.clip_norm * g.vectors[0].scale for g in groups], default=0.0)
        self._quotients: dict[torch.dtype, torch.Tensor] = {}
        self.single = float(self.quotient(torch.float32)[0]) if len(groups) == 1 and self.simple else math.nan
        """The number that is divided by the norms of one simple group in float32."""

    def norms(self, dtype: torch.dtype) -> torch.Tensor:
        """Return what to clip to where norms are of this type, in float64."""
        return self._clip_norms * (1 - MARGIN[dtype])

    def quotient(self, dtype: torch.dtype) -> torch.Tensor:
        """Return what to divide by the norms of simple groups."""
        if dtype not in self._quotients:
            self._quotients[dtype] = (self.norms(dtype) * self.scales).to(dtype)
        return self._quotients[dtype]


def _quotients(bound: _Bounds, norms: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Return bound / norm, at most 1, and an upper bound on all norms; NaN if a norm is NaN."""
    usual = norms.dtype == dtype == torch.float32 and norms.is_cpu and norms.is_contiguous()
    if kernels is None or not usual or norms.shape[1] != 1 or norms.requires_grad:
        return (bound.quotient(dtype) / norms).clamp_(max=1.0), float(norms.sum(dtype=dtype))
    factors = norms.new_empty(norms.shape)
    return factors, kernels.quotients(bound.single, norms, factors)


def _rounded_down(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``exact`` (float64, at least 0) in ``dtype``, never larger."""
    if dtype == exact.dtype:
        return exact
    rounded = exact.to(dtype)
    return torch.where(rounded > exact, torch.nextafter(rounded, rounded.new_zeros(())), rounded)
