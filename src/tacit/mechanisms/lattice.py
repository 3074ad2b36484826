"""Sums on a lattice: rounded to whole steps, with discrete Gaussian noise of whole steps.

Formal guarantee. The record and its bound are those of the sum, and it is *assumed* that one record more or fewer moves
the sum, as it is in memory, by at most S in L2 norm: floating-point addition of the other records may round another way
then (docs/discrete-noise.md says by how much).

Each coordinate is rounded to the nearest multiple of the lattice step h, a power of two: dividing a float64 by it and
rounding are exact, so each of the two sums moves by at most h/2 a coordinate, and with d coordinates the rounded sums
are at most S + h √d apart (`charged`, which the ledger gets). That can be attained: each coordinate can cross one
boundary more than it moves steps. Numbers that do not fit are clamped: no two sums move apart. Where several
processes hold parts of a sum, each rounds its own before they are put together: a record is in one part only.

To the whole numbers N_Z(0, (σ/h)²) is added, exactly (`tacit.mechanisms.discrete`), so what is released is the discrete
Gaussian mechanism of Canonne, Kamath & Steinke 2020 with that sensitivity; `tacit.accounting.discrete` has what it
costs. Whole numbers below 2^53 times a power of two are exact in float64; where the sum is kept in float32 the result
is rounded once more, from the noisy value alone: a post-processing. A sum that is not a number counts as zero.

A vector with a scale α has noise α σ and a lattice step of its own, the largest power of two up to α h: in units of α
its rounding is no coarser than h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit.ledger.events import GaussianSum, Query
from tacit.mechanisms.allocation import Allocation, Sensitivity
from tacit.mechanisms.discrete import LARGEST, draw
from tacit.mechanisms.noise import add_gaussian_
from tacit.randomness import Source

_FINE = 14  # the usual lattice adds less than 2^-14, 0.006 %, to the sensitivity
_PIECE = 1 << 18
_MOST_SUM, _MOST_NOISY = 2.0**51, 2**53

Noisy = Sequence[tuple[torch.Tensor, GaussianSum, float]]
"""Sums, the query that each belongs to, and the scale of its vector."""


@dataclass(frozen=True)
class Discrete:
    """Discrete Gaussian noise, exact to the last bit, shared among the groups as ``share`` says.

    ``lattice`` is the step that sums are rounded to, a power of two; by default, group by group, the largest that adds
    less than 2^-14 to the sensitivity: up to 2^-14 S / √d.
    """

    share: Allocation
    lattice: float | None = None

    def __post_init__(self) -> None:
        check_lattice(self.lattice)

    @property
    def noise_multiplier(self) -> float | None:
        """The noise multiplier of the whole step, if the share has one."""
        return getattr(self.share, "noise_multiplier", None)

    def stds(self, groups: Sequence[Sensitivity]) -> tuple[float, ...]:
        return self.share.stds(groups)

    def after(self, queries: Sequence[Query]) -> Discrete:
        return Discrete(self.share.after(queries), self.lattice)


def usual_lattice(sensitivity: float, dimension: int) -> float:
    """Return the lattice step for a sum of this sensitivity and dimension: public, because both are.

    >>> usual_lattice(1.0, 1), usual_lattice(1.0, 4)
    (6.103515625e-05, 3.0517578125e-05)
    """
    return _power_below(sensitivity / math.sqrt(dimension)) * 2.0**-_FINE


def lattice_of(noise: Allocation, sensitivity: float, dimension: int) -> float | None:
    """The lattice of a sum under this noise; None if the noise is not discrete."""
    if not isinstance(noise, Discrete):
        return None
    return noise.lattice or usual_lattice(sensitivity, dimension)


def charged(sensitivity: float, lattice: float | None, dimension: int) -> float:
    """The sensitivity of the sum after rounding, S + h √d, rounded up; without a lattice S itself.

    >>> charged(1.0, 0.125, 4) - 1.25 < 1e-14
    True
    """
    if lattice is None:
        return sensitivity
    return (sensitivity + lattice * math.sqrt(dimension)) * (1 + 2.0**-50)


def gaussian_sum(
    *, group: str, sensitivity: float, noise_std: float, lattice: float | None, dimension: int
) -> GaussianSum:
    """Return what to record for a sum: on a lattice, rounding is charged."""
    if lattice is None:
        return GaussianSum(group=group, clip_norm=sensitivity, noise_std=noise_std)
    bound = charged(sensitivity, lattice, dimension)
    query = GaussianSum(group=group, clip_norm=bound, noise_std=noise_std, noise="discrete", lattice=lattice)
    if not 1 <= noise_std / lattice <= LARGEST / 2:  # a scaled vector has up to twice as many steps in its noise
        raise ValueError(
            f"the lattice step of {group!r} is {lattice:g} and the noise {noise_std:g}; choose a step of at most the "
            "noise, and at least 2^-43 of it."
        )
    return query


def check_lattice(lattice: float | None) -> None:
    """Refuse a step that is not a power of two."""
    if lattice is None:
        return
    if isinstance(lattice, bool) or not isinstance(lattice, int | float) or not 2.0**-500 <= lattice <= 2.0**500:
        raise ValueError(f"lattice is {lattice!r}; it must be a power of two, for example 2.0**-20.")
    if math.frexp(lattice)[0] != 0.5:
        raise ValueError(f"lattice is {lattice!r}; it must be a power of two, such as {_power_below(lattice)!r}.")


def add_noise_(sums: Noisy, source: Source) -> None:
    """Add to each sum, in place, the noise that its query says, on the lattice if it has one."""
    add_gaussian_([(total, scale * query.noise_std) for total, query, scale in sums if query.lattice is None], source)
    for total, query, scale in sums:
        if query.lattice is not None:
            _add_discrete_(total, query.noise_std, query.lattice, scale, source)


def _add_discrete_(total: torch.Tensor, noise_std: float, lattice: float, scale: float, source: Source) -> None:
    if total.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a sum is {total.dtype}; sums are accumulated and released in float32 or float64.")
    check_lattice(lattice)
    if source.share not in (0.0, 1.0):
        raise ValueError("discrete noise cannot be split among processes; let the first of them add it.")
    step = lattice * _power_below(scale)
    std = noise_std if scale == 1 else math.nextafter(noise_std * scale, math.inf)  # never less than recorded
    with torch.no_grad():
        flat = total.detach().reshape(-1)  # a view where it can be
        for piece in torch.split(flat, _PIECE):
            whole = (piece.to("cpu", torch.float64) / step).round_()
            whole.nan_to_num_(nan=0.0).clamp_(-_MOST_SUM, _MOST_SUM)
            noisy = whole.to(torch.int64)
            if source.share:
                noisy.add_(torch.from_numpy(draw(std / step, piece.numel(), source)))
            if source.join_ is not None:
                source.join_(noisy)
            piece.copy_(noisy.clamp_(-_MOST_NOISY, _MOST_NOISY).to(torch.float64).mul_(step))
        if flat.data_ptr() != total.data_ptr():
            total.copy_(flat.view(total.shape))


def _power_below(value: float) -> float:
    """The largest power of two that is at most ``value``."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)
