"""The gradients of one use of one tensor, for every example, in factored form.

Each class answers three questions about G_i, example i's gradient, without (where it can) forming the G_i:
the squared norms |G_i|², a few of the G_i themselves, and the weighted sum Σ_i w_i·G_i.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.gradients.precision import CALLS, TOGETHER, UNIT, Call, adds_once, gather, own_rounding, per_call, pieces

CHUNK_BYTES = 16 << 20
"""Temporaries of one chunk stay near this size: large enough for full-speed kernels, small enough to stay bounded."""


WIDE = 4096
"""Rows with more entries have their norms taken in pieces: roundings then grow with the root of the length."""


def cancelled(squares: Tensor, sizes: Tensor, positions: int) -> Tensor:
    """Which examples consist of terms that cancel, so that their gradients must be formed before they meet others.

    Let M_i = Σ_t |a_t|·|g_t| be the size of all the terms whose sum is G_i. Summed in factored form, these terms go one
    by one into accumulators that other examples share; an example of ±2^50 terms that cancel exactly has norm zero,
    weight one, and would round everybody else's gradients away. An example with M_i > ρ·|G_i|,
    ρ = max(8, 2·√positions), is therefore kept apart: its G_i is formed by itself, that very tensor is measured, and
    weight·G_i is added: at most S enters, whatever the terms were. (Independent terms have M_i ≈ √positions·|G_i|,
    so ordinary gradients stay in the fast path; where the rule errs, the result is the same and only takes longer.)

    For the others weight·M_i ≤ ρ·S, from which `precision` bounds what rounding adds to the sensitivity.
    """
    return (squares * max(64.0, 4.0 * positions) < sizes) & torch.isfinite(sizes)


def precise(x: Tensor) -> Tensor:
    """`x` in float32 or better: norms and sums are never taken in half precision."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def precise_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def chunks(batch: int, bytes_per_example: int) -> Iterator[tuple[int, int]]:
    return pieces(batch, max(1, CHUNK_BYTES // max(1, bytes_per_example)))


def row_squares(x: Tensor) -> Tensor:
    """Squared norms of x[i], for every i, without a temporary of the size of x where a view allows it."""
    flat = x.reshape(x.shape[0], -1)
    wide = flat.shape[1] // WIDE * WIDE
    if not wide:
        return _norms(flat, 1).square_()
    parts = _norms(flat[:, :wide].unflatten(1, (-1, WIDE)), 2)  # type: ignore[no-untyped-call]
    squares = _norms(parts, 1).square_()
    return squares if wide == flat.shape[1] else squares + _norms(flat[:, wide:], 1).square_()


def row_rounding(entries: int) -> int:
    """The relative error of `row_squares`, in units of u: one rounding for each addition and a few more."""
    return min(entries, WIDE) + 2 * (entries // WIDE) + 8


def _norms(x: Tensor, dim: tuple[int, ...] | int) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return found


def guarded_squares(x: Tensor) -> Tensor:
    """`row_squares` from above: squares too small for the type count as its smallest number, not as zero.

    Needed where the sum is a factor: the other factor may be large enough to make up for what was lost.
    """
    return row_squares(x).add_(x[:1].numel() * torch.finfo(x.dtype).tiny)


@dataclass(frozen=True, slots=True)
class Rounding:
    """Bounds of errors in units of u, for terms of size M: |G|² is off by relative·|G|² + gram·M², and G by own·M.

    They are public, or (a tensor) each example's own: never what some example made of them for all.
    """

    relative: float = 0.0
    gram: float | Tensor = 0.0
    own: float = 0.0


class Contribution(ABC):
    """Gradients with respect to a tensor of `shape`, one for each of `batch` examples."""

    shape: torch.Size
    batch: int
    positions: int = 1
    """How many terms add up to one example's gradient when it is summed together with others."""

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
        return Rounding(relative=row_rounding(math.prod(self.shape)))

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

    def chunked_squares(self) -> Tensor:
        size = math.prod(self.shape) * 8
        parts = [row_squares(self.instantiate(lo, hi)) for lo, hi in chunks(self.batch, size)]
        return torch.cat(parts) if len(parts) != 1 else parts[0]


def cleared(x: Tensor, bad: Tensor) -> Tensor:
    return x.masked_fill(bad.view(-1, *(1,) * (x.ndim - 1)), 0)


class Dense(Contribution):
    """The G_i themselves: for small tensors (biases, norm scales, positions)."""

    def __init__(self, grads: Tensor) -> None:
        self.grads = grads
        self.batch, self.shape = grads.shape[0], grads.shape[1:]
        self._squares: Tensor | None = None

    def squares(self) -> Tensor:
        if self._squares is None:
            self._squares = row_squares(precise(self.grads))
        return self._squares

    def instantiate(self, lo: int, hi: int) -> Tensor:
        return precise(self.grads[lo:hi])

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        total.copy_(self._sum(weights, CALLS[0]).view(self.shape))

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        total += self._sum(weights, first).view(self.shape)

    def _sum(self, weights: Tensor, size: int) -> Tensor:
        """Σ_i weights[i]·G_i, flat: `size` examples a call, the calls' sums added in float64."""
        grads = precise(self.grads).reshape(self.batch, -1)
        weights = weights.to(grads.dtype)
        if self.batch <= size:
            return torch.mv(grads.t(), weights)
        full = self.batch // size * size
        each = torch.bmm(weights[:full].view(-1, 1, size), grads[:full].view(-1, size, grads.shape[1]))
        total = each.sum((0, 1), dtype=torch.float64)
        return total.add_(torch.mv(grads[full:].t(), weights[full:])) if full < self.batch else total

    def without(self, bad: Tensor) -> Dense:
        return Dense(cleared(self.grads, bad))


class Outer(Contribution):
    """G_i = Σ_t g[i,k,t,:] ⊗ a[i,k,t,:] for each of k blocks: linear maps, with t the positions in a sequence.

    The tensor's own shape is permuted by `order` from the canonical [blocks, out, in] (or its expansion `sizes`).
    With one position per example, `output` may hold g itself, whose norms a bias needs too.
    """

    def __init__(
        self,
        a: Tensor,
        g: Tensor,
        shape: Sequence[int],
        sizes: Sequence[int] = (),
        order: Sequence[int] = (),
        output: Dense | None = None,
    ) -> None:
        self.a, self.g = a, g
        self.output = output
        self.batch, self.blocks, self.positions, self.width_in = a.shape
        self.width_out = g.shape[-1]
        self.shape = torch.Size(shape)
        self.sizes, self.order = tuple(sizes), tuple(order)

    def factors(self, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        return precise(self.a[lo:hi]), precise(self.g[lo:hi])

    @property
    def size(self) -> int:
        return self.blocks * self.width_in * self.width_out

    def gram_is_cheaper(self) -> bool:
        t, i, o = self.positions, self.width_in, self.width_out
        return t * (i + o) < i * o

    def factor_numel(self) -> int:
        return self.a.numel() + self.g.numel()

    def settle(self) -> Contribution:
        """Keep the G_i where they are no larger than twice the factors: formed once, they serve norm and sum."""
        if self.positions > 1 and self.batch * self.size <= 2 * self.factor_numel():
            formed = Dense(self.formed())
            if self.alike():
                return formed
            apart = cancelled(formed.squares(), self.term_sizes(), self.positions)
            if bool(apart.any()):
                for i in apart.nonzero().flatten().tolist():
                    formed.grads[i] = self.alone(i)[0]
                return Dense(formed.grads)
            return formed
        return self

    def alike(self) -> bool:
        """Whether the matrices of all examples begin at like places in memory, in lines of 64 bytes."""
        t, i, o = self.positions, self.width_in, self.width_out
        return not any(entries % 16 for entries in (t * i, t * o, i * o))

    def formed(self) -> Tensor:
        if self.batch * self.size * 4 <= CHUNK_BYTES:
            return self.instantiate(0, self.batch)
        grads: Tensor | None = None
        for lo, hi in self.chunks():
            part = self.instantiate(lo, hi)
            grads = part.new_empty((self.batch, *self.shape)) if grads is None else grads
            grads[lo:hi] = part
        assert grads is not None
        return grads

    def alone(self, i: int) -> Tensor:
        """From copies: a batched product may round by where in memory a matrix begins."""
        a, g = self.factors(i, i + 1)
        return self.shaped(self.product(a.clone(), g.clone()))

    def chunks(self) -> Iterator[tuple[int, int]]:
        each = self.blocks * self.positions * (self.width_in + self.width_out) + self.size
        return chunks(self.batch, each * 4)

    def squares(self) -> Tensor:
        return self.measured()[0]

    def measured(self) -> tuple[Tensor, Tensor]:
        if self.positions == 1:
            a, g = self.factors(0, self.batch)
            if self.output is not None:
                of_g = self.output.squares() + self.width_out * torch.finfo(g.dtype).tiny
                found = guarded_squares(a).mul_(of_g)
            else:
                found = self.over_blocks(a.flatten(0, 1), g.flatten(0, 1))
            return found, found
        if not self.gram_is_cheaper():
            parts = [row_squares(self.product(*self.factors(lo, hi))) for lo, hi in self.chunks()]
            return torch.cat(parts) if len(parts) != 1 else parts[0], self.term_sizes()
        each = self.blocks * self.positions * (2 * self.positions + self.width_in)
        pairs = [self.gram_squares(lo, hi) for lo, hi in chunks(self.batch, each * 4)]
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])

    def rounding(self) -> Rounding:
        if self.positions == 1:
            return Rounding(relative=row_rounding(self.width_in) + row_rounding(self.width_out) + self.blocks)
        own = own_rounding(self.positions, formed=not self.gram_is_cheaper()) / UNIT
        if not self.gram_is_cheaper():
            return Rounding(relative=row_rounding(self.size), own=own)
        return Rounding(gram=self.width_in + self.width_out + (1 + self.blocks) * self.positions + 12, own=own)

    def term_sizes(self) -> Tensor:
        """M_i² ≤ Σ_t |a_t|² · Σ_t |g_t|² (Cauchy-Schwarz), added over blocks."""
        a, g = self.factors(0, self.batch)
        return self.over_blocks(a.flatten(0, 1), g.flatten(0, 1))

    def over_blocks(self, a: Tensor, g: Tensor) -> Tensor:
        """|a|²·|g|², one row for each block of each example, added over the blocks."""
        found = guarded_squares(a).mul_(guarded_squares(g))
        return found if self.blocks == 1 else found.view(self.batch, self.blocks).sum(1)

    def gram_squares(self, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        """|Σ_t g_t ⊗ a_t|² = Σ_{t,s} (a_t·a_s)(g_t·g_s), and (Σ_t |a_t||g_t|)² from the diagonal.

        Rounding is relative to the latter; where that is far above the result, see `cancelled`.
        """
        a, g = self.factors(lo, hi)
        a, g = a.flatten(0, 1), g.flatten(0, 1)
        gram_a, gram_g = torch.bmm(a, a.transpose(1, 2)), torch.bmm(g, g.transpose(1, 2))
        tiny = torch.finfo(a.dtype).tiny
        of_a = gram_a.diagonal(dim1=1, dim2=2).clamp_min(0).add_(self.width_in * tiny)
        of_g = gram_g.diagonal(dim1=1, dim2=2).clamp_min(0).add_(self.width_out * tiny)
        sizes = of_a.mul_(of_g).sqrt_().sum(1).square_().view(hi - lo, -1).sum(1)
        sizes.mul_(1 + 4 * UNIT * (self.width_in + self.width_out + self.positions))  # what their own rounding lost
        return gram_a.mul_(gram_g).sum(2).view(hi - lo, -1).sum(1), sizes

    def product(self, a: Tensor, g: Tensor) -> Tensor:
        n = a.shape[0]
        return torch.bmm(g.flatten(0, 1).transpose(1, 2), a.flatten(0, 1)).view(
            n, self.blocks, self.width_out, self.width_in
        )

    def shaped(self, canonical: Tensor) -> Tensor:
        lead = canonical.ndim - 3
        if not self.order:
            return canonical.reshape(*canonical.shape[:lead], *self.shape)
        spread = canonical.reshape(*canonical.shape[:lead], *self.sizes)
        return spread.permute(*range(lead), *(lead + d for d in self.order)).reshape(
            *canonical.shape[:lead], *self.shape
        )

    def instantiate(self, lo: int, hi: int) -> Tensor:
        return self.shaped(self.product(*self.factors(lo, hi)))

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        first = per_call(positions)
        adds = total.is_contiguous() and self.adds_once(first, total.dtype)
        gather(total, 0, self.batch, first, self.contraction(weights), adds=adds)

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        call = self.contraction(weights)
        part = torch.empty(self.shape, dtype=self.dtype, device=total.device)
        for lo, hi in pieces(self.batch, min(first, TOGETHER)):
            call(part, lo, hi, False)
            total += part

    @property
    def dtype(self) -> torch.dtype:
        return precise_dtype(self.a)

    def adds_once(self, records: int, dtype: torch.dtype) -> bool:
        """Whether a call of so many records may add to the sums of other calls."""
        if self.blocks != 1 or self.order or self.batch <= records or dtype != self.dtype:
            return False
        sizes = self.width_out, self.width_in, records * self.positions
        return adds_once(*sizes, dtype, self.a.device, torch.get_num_threads())

    def contraction(self, weights: Tensor) -> Call:
        """Σ_i weights[i]·G_i over a range of examples, one matrix product a call."""
        a, g = self.factors(0, self.batch)
        weights = weights.to(a.dtype).view(-1, 1, 1, 1)
        if self.width_in < self.width_out:
            a = a * weights
        else:
            g = g * weights
        if self.blocks == 1:
            a, g = a.reshape(-1, self.width_in), g.reshape(-1, self.width_out)

        def call(out: Tensor, lo: int, hi: int, add: bool) -> None:
            if self.blocks != 1:
                left = a[lo:hi].transpose(0, 1).reshape(self.blocks, -1, self.width_in)
                right = g[lo:hi].transpose(0, 1).reshape(self.blocks, -1, self.width_out)
                out.copy_(self.shaped(torch.bmm(right.transpose(1, 2), left)))
                return
            left, right = a[lo * self.positions : hi * self.positions], g[lo * self.positions : hi * self.positions]
            if not self.order and out.is_contiguous() and out.dtype == left.dtype:
                out.view(self.width_out, self.width_in).addmm_(right.t(), left, beta=int(add))
            else:
                out.copy_(self.shaped(torch.mm(right.t(), left).unsqueeze(0)))

        return call

    def without(self, bad: Tensor) -> Outer:
        return Outer(cleared(self.a, bad), cleared(self.g, bad), self.shape, self.sizes, self.order)

    def transposed(self) -> Outer:
        """The same gradients for the transposed matrix."""
        return Outer(self.g, self.a, (self.width_in, self.width_out))


def concatenated(parts: Sequence[Outer]) -> Outer:
    """Several uses of one matrix are one use at more positions: the cross terms are then in the Gram matrices."""
    first = parts[0]
    return Outer(
        torch.cat([precise(p.a) for p in parts], 2),
        torch.cat([precise(p.g) for p in parts], 2),
        first.shape,
        first.sizes,
        first.order,
    )
