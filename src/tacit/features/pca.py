"""Private principal components (Abadi et al. 2016, section 4; Dwork et al. 2014)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.features.front import Projection, Shape, check_dimensions, image_shape, pieces
from tacit.ledger import Everyone, Ledger, Poisson, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import Source
from tacit.sampling import EveryoneSampler, PoissonSampler, Sampler

GROUP = "pca"
_MARGIN = 2.0**-38  # covers the rounding of a norm of up to 2^14 values, of the quotient and of the products in float64


@dataclass(frozen=True, kw_only=True)
class Pca:
    """Pixels in [0, 1] projected to their principal directions, which are learned privately.

    ``noise_multiplier`` is the noise on the second moments of unit-normalised images (σ_p in the paper) and
    ``sampling_rate`` the chance of each record to take part. Only the directions come from normalised images: what is
    projected afterwards are the raw pixels.
    """

    dimensions: int = 60
    noise_multiplier: float = 7.0
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        check_dimensions(self.dimensions)
        self.charges(1)

    def features(self, shape: Shape) -> Shape:
        check_dimensions(self.dimensions, math.prod(shape))
        return (self.dimensions,)

    def charges(self, records: int) -> tuple[Step, ...]:
        return (_step(records, self.noise_multiplier, self.sampling_rate),)

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Projection:
        self.features(image_shape(images))
        directions = private_pca(
            images.flatten(1),
            self.dimensions,
            noise_multiplier=self.noise_multiplier,
            ledger=ledger,
            source=source,
            sampling_rate=self.sampling_rate,
        )
        return Projection(directions)

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Projection:
        return Projection.restored(state, self.dimensions, shape)


def private_pca(
    rows: Tensor,
    dimensions: int,
    *,
    noise_multiplier: float,
    ledger: Ledger,
    source: Source,
    sampling_rate: float = 1.0,
) -> Tensor:
    """The top ``dimensions`` principal directions of ``rows``, one a row, charged to the ledger before the release.

    Formal guarantee: that of `private_moments`; eigenvectors are post-processing.
    """
    if rows.ndim == 2:
        check_dimensions(dimensions, rows.shape[1])
    moments = private_moments(
        rows, noise_multiplier=noise_multiplier, ledger=ledger, source=source, sampling_rate=sampling_rate
    )
    vectors: Tensor = torch.linalg.eigh(moments).eigenvectors  # eigenvalues in ascending order
    return vectors[:, -dimensions:].flip(1).T.contiguous()


def private_moments(
    rows: Tensor, *, noise_multiplier: float, ledger: Ledger, source: Source, sampling_rate: float = 1.0
) -> Tensor:
    """AᵀA with noise, where the rows of A are those of ``rows`` scaled to L2 norm 1: a symmetric matrix.

    Formal guarantee. A record is one row; it contributes a aᵀ, where a is the row scaled to L2 norm 1 (a row that is
    zero or not finite contributes nothing). What is released is the sum over the sample of the vector

        u(a) = (a_i² for all i, √2 a_i a_j for all i < j)

    of d (d + 1) / 2 coordinates, plus independent N(0, σ²) on every one of them, σ = ``noise_multiplier``. Since
    |u(a)|² = Σ_i a_i⁴ + 2 Σ_{i<j} a_i² a_j² = (Σ_i a_i²)² = |a|⁴ ≤ 1, one record more or fewer moves the sum by at most
    1 in L2 norm: a Gaussian sum with S = 1 and noise σ, which is what the ledger gets, with Poisson sampling at
    ``sampling_rate`` or, at 1, everyone. Dividing the coordinates i < j by √2 and writing them on both sides of the
    diagonal is post-processing. The noise on AᵀA is therefore σ on the diagonal and σ / √2 beside it: at the same price
    less than σ on every entry of the upper triangle (Dwork et al. 2014), because the matrix is counted in the norm in
    which a aᵀ has length 1.
    """
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"rows have shape {tuple(rows.shape)}; give a matrix with one record in each row.")
    records, width = rows.shape
    receipt = ledger.record(_step(records, noise_multiplier, sampling_rate), secure=source.secure)
    chosen = torch.from_numpy(_sampler(records, sampling_rate, source).draw(receipt))
    moments = torch.zeros(width, width, dtype=torch.float64)
    for piece in pieces(chosen):
        units = _units(rows[piece.to(rows.device)])
        moments.addmm_(units.T, units)
    above = torch.triu_indices(width, width)
    weights = torch.where(above[0] == above[1], 1.0, math.sqrt(2)).to(torch.float64)
    total = _query(noise_multiplier).total((len(weights),))
    total.add_bounded(moments[above[0], above[1]] * weights)
    noisy = torch.zeros_like(moments)
    noisy[above[0], above[1]] = total.release(receipt, source) / weights
    return noisy + noisy.triu(1).T


def _query(noise_multiplier: float) -> SumQuery:
    return SumQuery(group=GROUP, clip_norm=1.0, noise_std=noise_multiplier)


def _step(records: int, noise_multiplier: float, sampling_rate: float) -> Step:
    event = Everyone() if sampling_rate == 1 else Poisson(rate=sampling_rate, records=records)
    return Step(event, (_query(noise_multiplier).event(),))


def _sampler(records: int, sampling_rate: float, source: Source) -> Sampler:
    if sampling_rate == 1:
        return EveryoneSampler(records)
    return PoissonSampler(records, sampling_rate, source=source)


def _units(rows: Tensor) -> Tensor:
    """The rows in float64, each with norm 1 (a little less, so that rounding does not make it more); bad ones zero."""
    values = rows.detach().to("cpu", torch.float64)
    values = torch.where(torch.isfinite(values).all(dim=1, keepdim=True), values, 0.0)
    largest = values.abs().amax(dim=1, keepdim=True)
    values = torch.where(largest > 0, values / largest, 0.0)  # squares neither overflow nor vanish
    norms = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    return torch.where(norms > 0, values * ((1 - _MARGIN) / norms), 0.0)
