"""The gradients of one use of one tensor, for every example, in factored form.

Each class answers three questions about G_i, example i's gradient, without (where it can) forming the G_i:
the squared norms |G_i|², a few of the G_i themselves, and the weighted sum Σ_i w_i·G_i.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._compiled import kernels
from tacit._threads import threads
from tacit.gradients.kernels.loops import rows_added_up
from tacit.gradients.precision import CALLS, TOGETHER, pieces
from tacit.gradients.torch_internals import foreach_add

CHUNK_BYTES = 16 << 20
"""Temporaries of one chunk stay near this size: large enough for full-speed kernels, small enough to stay bounded."""

WIDE = 4096
"""Rows with more entries have their norms taken in pieces, which are added in float64."""

FEW = 16
"""Gradients of so few entries are summed in float64, which costs less than several calls."""


def largest_mass(positions: int) -> float:
    """ρ²: the largest M_i²/|G_i|² of an example that is summed with others; see `cancelled`."""
    return max(64.0, 4.0 * positions)


def cancelled(squares: Tensor, sizes: Tensor, largest: float | Tensor) -> Tensor:
    """Which examples consist of terms that cancel, so that their gradients must be formed before they meet others.

    Let M_i = Σ_t |a_t|·|g_t| be the size of all the terms whose sum is G_i. Summed in factored form, these terms go one
    by one into accumulators that other examples share; an example of ±2^50 terms that cancel exactly has norm zero,
    weight one, and would round everybody else's gradients away. An example with M_i > ρ·|G_i|,
    ρ = max(8, 2·√positions), is therefore kept apart: its G_i is formed by itself, that very tensor is measured, and
    weight·G_i is added: at most S enters, whatever the terms were. (Independent terms have M_i ≈ √positions·|G_i|,
    so ordinary gradients stay in the fast path; where the rule errs, the result is the same and only takes longer.)

    For the others weight·M_i ≤ ρ·S, from which `precision` bounds what rounding adds to the sensitivity.
    """
    return (squares * largest < sizes) & torch.isfinite(sizes)


def precise(x: Tensor) -> Tensor:
    """`x` in float32 or better: norms and sums are never taken in half precision."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(precise_dtype(x))


def precise_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def chunks(batch: int, bytes_per_example: int) -> Iterator[tuple[int, int]]:
    return pieces(batch, max(1, CHUNK_BYTES // max(1, bytes_per_example)))


def own_sums(x: Tensor, dim: int | tuple[int, ...], *, keepdim: bool = False) -> Tensor:
    """Every example's own sum, in float32 or better, to the last bit the same in every place.

    Made contiguous first: where the entries of an example are not next to each other in memory (sequences stored time
    first) a kernel sums columns that several examples share, and the last few of them in another order, so that an
    example's sum would depend on its place and on how many there are.
    """
    x = x.contiguous()
    if x.dtype is torch.float32 or x.dtype is torch.float64:
        return x.sum(dim, keepdim=keepdim)
    return x.sum(dim, keepdim=keepdim, dtype=precise_dtype(x))


def added(terms: Iterable[Tensor]) -> Tensor:
    """The sum of several tensors entry by entry: a kernel that sums over all at once may round by place.

    Pairs are added, then pairs of these: each addition is that of two entries, and a few kernels serve many tensors.
    """
    left = list(terms)
    while len(left) > 1:
        pairs = len(left) // 2
        left = [*foreach_add(left[:pairs], left[pairs : 2 * pairs]), *left[2 * pairs :]]
    return left[0]


def row_squares(x: Tensor) -> Tensor:
    """Squared norms of x[i], for every i, without a temporary of the size of x where a view allows it."""
    flat = x.contiguous().view(x.shape[0], -1)  # as in `own_sums`
    if _compiled(flat):
        found = flat.new_empty(len(flat))
        kernels.squares(flat, found, threads())  # type: ignore[union-attr]
        return found
    wide = flat.shape[1] // WIDE * WIDE
    if not wide:
        return _norms(flat, 1).square_()
    parts = _norms(flat[:, :wide].unflatten(1, (-1, WIDE)), 2)  # type: ignore[no-untyped-call]
    squares = _norms(parts.double(), 1).square_()
    if wide < flat.shape[1]:
        squares += _norms(flat[:, wide:], 1).double().square_()
    return squares.to(x.dtype)


def _compiled(rows: Tensor) -> bool:
    """Return whether the kernel can read them; it is the one that measures several tensors at once (`squares_each`)."""
    return kernels is not None and rows.dtype == torch.float32 and rows.device.type == "cpu" and not rows.is_neg()


def row_rounding(entries: int) -> int:
    """The relative error of `row_squares`, in units of u: one rounding for each addition within a piece and a few more.

    Pieces are added in float64. There u is 2^-29 of float32's, and where the rows are float64 themselves all of it is
    far below `NORM_SHARE`.
    """
    return min(entries, WIDE) + 12


def _norms(x: Tensor, dim: tuple[int, ...] | int) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return found


def guarded_squares(x: Tensor) -> Tensor:
    """`row_squares` from above: squares too small for the type count as its smallest number, not as zero.

    Needed where the sum is a factor: the other factor may be large enough to make up for what was lost.
    """
    return row_squares(x).add_(math.prod(x.shape[1:]) * torch.finfo(x.dtype).tiny)


@dataclass(frozen=True, slots=True)
class Rounding:
    """Bounds of errors in units of u, for terms of size M: |G|² is off by relative·|G|² + gram·M², and G by own·M.

    They are public, or (a tensor) each example's own: never what some example made of them for all.
    """

    relative: float = 0.0
    gram: float | Tensor = 0.0
    own: float = 0.0


@functools.lru_cache(maxsize=1024)
def formed_rounding(entries: int) -> Rounding:
    """The error of `row_squares` of gradients that were formed."""
    return Rounding(relative=row_rounding(entries))


class Contribution(ABC):
    """Gradients with respect to a tensor of `shape`, one for each of `batch` examples."""

    shape: torch.Size
    batch: int
    positions: int = 1
    """How many terms add up to one example's gradient when it is summed together with others."""
    unsettled: bool = False
    """True if `settle` may give another form."""

    @abstractmethod
    def squares(self) -> Tensor:
        """|G_i|² for every example, up to `rounding`."""

    def measured(self) -> tuple[Tensor, Tensor]:
        """|G_i|², and an upper bound of M_i², the size of the terms that are summed in place of G_i.

        The same tensor twice where `assign` adds the G_i themselves, formed one by one.
        """
        squares = self.squares()
        return squares, squares

    def rounding(self) -> Rounding:
        """How far `measured` may be from the truth."""
        return formed_rounding(self.shape.numel())

    @abstractmethod
    def instantiate(self, lo: int, hi: int) -> Tensor:
        """G_lo … G_{hi-1} as one tensor [hi - lo, *shape]."""

    def alone(self, i: int) -> Tensor:
        """G_i as [1, *shape], formed where nothing else is, so that its last bits do not depend on its place."""
        return self.instantiate(i, i + 1)

    @abstractmethod
    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        """total += Σ_i weights[i]·G_i in float64, at most `first` examples having met in float32 in one call."""

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        """total = Σ_i weights[i]·G_i, whatever it held, by the rules of `precision` for so many terms an example."""
        wide = torch.zeros(self.shape, dtype=torch.float64, device=total.device)
        self.widen(wide, weights)
        total.copy_(wide)

    @abstractmethod
    def without(self, bad: Tensor) -> Contribution:
        """The same with G_i = 0 wherever bad[i]: multiplying by zero would keep a NaN."""

    def settle(self) -> Contribution:
        """The form that is cheapest to keep until the weights are known."""
        return self

    def apart(self) -> Contribution:
        """The same without the parameter's values, whose memory may be gone when the weights are known."""
        return self


def cleared(x: Tensor, bad: Tensor) -> Tensor:
    """A copy with zeros for some examples, laid out as `x` is, so that the others are summed as they would be."""
    return x.clone().masked_fill_(bad.view(-1, *(1,) * (x.ndim - 1)), 0)


class Dense(Contribution):
    """The G_i themselves: for small tensors (biases, norm scales, positions)."""

    def __init__(self, grads: Tensor) -> None:
        # Calls that run over memory by columns would all change with the number of rows.
        self.grads = grads.contiguous()
        self.batch, self.shape = grads.shape[0], grads.shape[1:]
        self.known: Tensor | None = None
        """Their squared norms, once they were measured, perhaps with something else."""

    def squares(self) -> Tensor:
        return self.measured()[0]

    def measured(self) -> tuple[Tensor, Tensor]:
        found = self.known
        if found is None:
            found = self.known = row_squares(precise(self.grads))
        return found, found

    def instantiate(self, lo: int, hi: int) -> Tensor:
        return precise(self.grads[lo:hi])

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        grads = self.grads if self.grads.dtype is torch.float32 else precise(self.grads)
        if rows_added_up(grads, weights, total, CALLS[0]):
            return
        total.copy_(self._sum(weights, CALLS[0]).view(self.shape))

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        total += self._sum(weights, first).view(self.shape)

    def _sum(self, weights: Tensor, size: int) -> Tensor:
        """Σ_i weights[i]·G_i, flat: `size` examples a call, the calls' sums added in float64; or all in float64."""
        grads = self.grads if self.grads.dtype is torch.float32 else precise(self.grads)
        grads = grads.view(self.batch, -1) if self.batch else grads.reshape(0, self.shape.numel())
        if grads.shape[1] <= FEW:  # not by how many examples there are: one more would change every call
            return torch.mv(grads.double().t(), weights.double())
        weights = weights.to(grads.dtype)
        if self.batch <= size:
            return torch.mv(grads.t(), weights)
        full = self.batch // size * size
        each = torch.bmm(weights[:full].view(-1, 1, size), grads[:full].view(-1, size, grads.shape[1]))
        total = each.sum((0, 1), dtype=torch.float64)
        return total.add_(torch.mv(grads[full:].t(), weights[full:])) if full < self.batch else total

    def without(self, bad: Tensor) -> Dense:
        return Dense(cleared(self.grads, bad))


class Piecewise(Contribution):
    """Gradients that are formed a few examples at a time, whenever they are needed.

    They are formed before they are added: what forms them may cancel most of what it receives, and may run in half
    precision, where rounding the sum would let one example change all the others.
    """

    def _pieces(self) -> Iterator[tuple[int, int]]:
        return chunks(self.batch, math.prod(self.shape) * 8)

    def squares(self) -> Tensor:
        return torch.cat([row_squares(self.instantiate(lo, hi)) for lo, hi in self._pieces()])

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        for lo, hi in self._pieces():
            Dense(self.instantiate(lo, hi)).widen(total, weights[lo:hi], first)

    def apart(self) -> Dense:
        return Dense(torch.cat([precise(self.instantiate(lo, hi)) for lo, hi in self._pieces()]))
