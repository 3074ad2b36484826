"""Norms of sums of outer products from Gram matrices, and how far they may be from the truth."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Rounding, row_rounding
from tacit.gradients.precision import NORM_SHARE, UNIT, own_rounding

PIECE = 512
"""Entries of a row that one product of a Gram matrix adds up where these are added in float64."""


def is_cheaper(positions: int, width_in: int, width_out: int) -> bool:
    """Return whether Gram matrices take fewer operations than the gradients themselves."""
    return positions * (width_in + width_out) < width_in * width_out


def in_pieces(positions: int, width_in: int, width_out: int, sample: Tensor) -> bool:
    """Return whether Gram matrices are added up from pieces of the widths, in float64.

    Where rows are wide and positions many, the bound of a whole product's rounding, u·width·M², would enlarge norms by
    more than the margin covers: M² is about positions·|G|². Off the CPU every piece is a launch: there the norms are
    enlarged instead. `sample` has the device and type of the factors.
    """
    if max(width_in, width_out) <= PIECE:
        return False
    bound = (width_in + width_out + 2 * positions) * positions * UNIT / 2
    return bound > NORM_SHARE and sample.is_cpu and sample.dtype is not torch.float64


def squares(a: Tensor, g: Tensor, pieces: bool) -> tuple[Tensor, Tensor]:
    """|Σ_t g_t ⊗ a_t|² = Σ_{t,s} (a_t·a_s)(g_t·g_s), and (Σ_t |a_t||g_t|)² from the diagonal, added over blocks.

    Rounding is relative to the latter; where that is far above the result, see `contribution.cancelled`.
    """
    records, positions, widths = len(a), a.shape[2], a.shape[3] + g.shape[3]
    gram_a, gram_g = _gram(a.flatten(0, 1), pieces), _gram(g.flatten(0, 1), pieces)
    tiny = torch.finfo(a.dtype).tiny
    of_a = gram_a.diagonal(dim1=1, dim2=2).clamp_min(0).add_(a.shape[3] * tiny)
    of_g = gram_g.diagonal(dim1=1, dim2=2).clamp_min(0).add_(g.shape[3] * tiny)
    sizes = of_a.mul_(of_g).sqrt_().sum(1).square_().view(records, -1).sum(1)
    sizes.mul_(1 + 4 * UNIT * (widths + positions))  # what their own rounding lost
    return gram_a.mul_(gram_g).sum(2).view(records, -1).sum(1).to(a.dtype), sizes.to(a.dtype)


def _gram(x: Tensor, pieces: bool) -> Tensor:
    if not pieces:
        return torch.bmm(x, x.transpose(1, 2))
    total: Tensor | None = None
    for piece in x.split(PIECE, 2):  # type: ignore[no-untyped-call]
        found = torch.bmm(piece, piece.transpose(1, 2))
        total = found.double() if total is None else total.add_(found)
    assert total is not None
    return total


@functools.lru_cache(maxsize=1024)
def rounding(blocks: int, positions: int, width_in: int, width_out: int, pieces: bool) -> Rounding:
    """How far `Outer.measured` may be from the truth: it follows from dimensions alone."""
    if positions == 1:
        return Rounding(relative=row_rounding(width_in) + row_rounding(width_out) + blocks)
    cheaper = is_cheaper(positions, width_in, width_out)
    own = own_rounding(positions, formed=not cheaper) / UNIT
    if not cheaper:
        return Rounding(relative=row_rounding(blocks * width_in * width_out), own=own)
    if pieces:  # and multiplied and added in float64
        return Rounding(gram=min(width_in, PIECE) + min(width_out, PIECE) + 12, own=own)
    return Rounding(gram=width_in + width_out + (1 + blocks) * positions + 12, own=own)
