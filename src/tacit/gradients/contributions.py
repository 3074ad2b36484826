"""The gradients of one use of one tensor, for every example, in factored form.

Each class answers three questions about G_i, example i's gradient, without (where it can) forming the G_i:
the squared norms |G_i|², a few of the G_i themselves, and the weighted sum Σ_i w_i·G_i.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CHUNK_BYTES = 16 << 20
"""Temporaries of one chunk stay near this size: large enough for full-speed kernels, small enough to stay bounded."""


CANCELLATION = 64.0
"""How far M_i² may lie above |G_i|² in an example that is summed together with others (see `cancelled`)."""


def cancelled(squares: Tensor, sizes: Tensor, positions: int) -> Tensor:
    """Which examples consist of terms that cancel, so that their gradients must be formed before they meet others.

    Let M_i = Σ_t |a_t|·|g_t| be the size of all the terms whose sum is G_i. Summed in factored form, these terms go one
    by one into accumulators that other examples share; an example of ±2^50 terms that cancel exactly has norm zero,
    weight one, and would round everybody else's gradients away. An example with M_i > ρ·|G_i|,
    ρ = max(8, 2·√positions), is therefore kept apart: its G_i is formed by itself, that very tensor is measured, and
    weight·G_i is added: at most S enters, whatever the terms were. (Independent terms have M_i ≈ √positions·|G_i|,
    so ordinary gradients stay in the fast path; where the rule errs, the result is the same and only takes longer.)

    What remains for the others, with u = 2^-24 in float32 (2^-53 in float64): an addition rounds by at most u times the
    partial sum, of which weight·M_i ≤ ρ·S is example i's doing. A term passes through h additions, at most `positions`
    of them before the example is complete, so the excess over S is at most h·u·ρ·S: 2^-14·S for 64 positions and
    2^-10·S for 400 even if every rounding went the same way, and about √h·u·ρ·S when they do not. That kernels sum in
    blocks only makes h smaller. Measured norms carry rounding too, relative to M_i²; they are enlarged by 2u·M_i².
    (Additions of the other examples may also round another way when one more is present; that is common to all sums in
    float32, u times the sum for each, whoever the additional example is.)
    """
    return (squares * max(CANCELLATION, 4.0 * positions) < sizes) & torch.isfinite(sizes)


def precise(x: Tensor) -> Tensor:
    """`x` in float32 or better: norms and sums are never taken in half precision."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def precise_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def chunks(batch: int, bytes_per_example: int) -> Iterator[tuple[int, int]]:
    step = max(1, CHUNK_BYTES // max(1, bytes_per_example))
    for lo in range(0, batch, step):
        yield lo, min(batch, lo + step)


def row_squares(x: Tensor) -> Tensor:
    """Squared norms of x[i], for every i, without a temporary of the size of x where a view allows it."""
    flat = x.reshape(x.shape[0], -1)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
    return norms.square_()


def guarded_squares(x: Tensor, dim: tuple[int, ...] | int) -> Tensor:
    """Sums of squares from above: squares too small for the type count as its smallest number, not as zero.

    Needed where the sum is a factor: the other factor may be large enough to make up for what was lost.
    """
    entries = math.prod(x.shape[d] for d in ([dim] if isinstance(dim, int) else dim))
    norms: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return norms.square_().add_(entries * torch.finfo(x.dtype).tiny)


class Contribution(ABC):
    """Gradients with respect to a tensor of `shape`, one for each of `batch` examples."""

    shape: torch.Size
    batch: int
    positions: int = 1
    """How many terms add up to one example's gradient when it is summed together with others."""

    @abstractmethod
    def squares(self) -> Tensor:
        """|G_i|² for every example."""

    def measured(self) -> tuple[Tensor, Tensor]:
        """|G_i|², and an upper bound of M_i², the size of the terms that are summed in place of G_i.

        The same tensor twice where `accumulate` adds the G_i themselves, formed one by one.
        """
        squares = self.squares()
        return squares, squares

    @abstractmethod
    def instantiate(self, lo: int, hi: int) -> Tensor:
        """G_lo … G_{hi-1} as one tensor [hi - lo, *shape]."""

    @abstractmethod
    def accumulate(self, total: Tensor, weights: Tensor) -> None:
        """total += Σ_i weights[i]·G_i."""

    def assign(self, total: Tensor, weights: Tensor) -> None:
        """total = Σ_i weights[i]·G_i, whatever it held."""
        self.accumulate(total.zero_(), weights)

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

    def accumulate(self, total: Tensor, weights: Tensor) -> None:
        grads = precise(self.grads).reshape(self.batch, -1)
        if total.is_contiguous():
            total.view(-1).addmv_(grads.t(), weights.to(grads.dtype))
        else:
            total += torch.mv(grads.t(), weights.to(grads.dtype)).view(self.shape)

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
        """Keep the G_i where they are what the norm needs and no larger than twice the factors they replace."""
        if self.positions > 1 and not self.gram_is_cheaper() and self.batch * self.size <= 2 * self.factor_numel():
            if self.batch * self.size * 4 <= CHUNK_BYTES:
                return Dense(self.instantiate(0, self.batch))
            grads: Tensor | None = None
            for lo, hi in self.chunks():
                part = self.instantiate(lo, hi)
                grads = part.new_empty((self.batch, *self.shape)) if grads is None else grads
                grads[lo:hi] = part
            assert grads is not None
            return Dense(grads)
        return self

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
                found = guarded_squares(a.reshape(self.batch, -1), 1).mul_(of_g)
            else:
                found = (guarded_squares(a, (2, 3)) * guarded_squares(g, (2, 3))).sum(1)
            return found, found
        if not self.gram_is_cheaper():
            parts = [row_squares(self.product(*self.factors(lo, hi))) for lo, hi in self.chunks()]
            return torch.cat(parts) if len(parts) != 1 else parts[0], self.term_sizes()
        each = self.blocks * self.positions * (2 * self.positions + self.width_in)
        pairs = [self.gram_squares(lo, hi) for lo, hi in chunks(self.batch, each * 4)]
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])

    def term_sizes(self) -> Tensor:
        """M_i² ≤ Σ_t |a_t|² · Σ_t |g_t|² (Cauchy-Schwarz), added over blocks."""
        a, g = self.factors(0, self.batch)
        return (guarded_squares(a, (2, 3)) * guarded_squares(g, (2, 3))).sum(1)

    def gram_squares(self, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        """|Σ_t g_t ⊗ a_t|² = Σ_{t,s} (a_t·a_s)(g_t·g_s), and (Σ_t |a_t||g_t|)² from the diagonal.

        Rounding is relative to the latter. Where that is far above the result the example is redone from its gradient,
        so that a clipped norm never rests on cancelled digits.
        """
        a, g = self.factors(lo, hi)
        a, g = a.flatten(0, 1), g.flatten(0, 1)
        gram_a, gram_g = torch.bmm(a, a.transpose(1, 2)), torch.bmm(g, g.transpose(1, 2))
        tiny = torch.finfo(a.dtype).tiny
        of_a = gram_a.diagonal(dim1=1, dim2=2).clamp_min(0).add_(self.width_in * tiny)
        of_g = gram_g.diagonal(dim1=1, dim2=2).clamp_min(0).add_(self.width_out * tiny)
        sizes = of_a.mul_(of_g).sqrt_().sum(1).square_().view(hi - lo, -1).sum(1)
        squares = gram_a.mul_(gram_g).view(hi - lo, -1).sum(1)
        for i in cancelled(squares, sizes, self.positions).nonzero().flatten().tolist():
            squares[i] = row_squares(self.instantiate(lo + i, lo + i + 1))[0]
        return squares, sizes

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

    def accumulate(self, total: Tensor, weights: Tensor) -> None:
        self._contract(total, weights, 1)

    def assign(self, total: Tensor, weights: Tensor) -> None:
        self._contract(total, weights, 0)

    def _contract(self, total: Tensor, weights: Tensor, beta: int) -> None:
        """total = beta·total + Σ_i weights[i]·G_i, in one matrix product where the shapes allow it."""
        a, g = self.factors(0, self.batch)
        weights = weights.to(a.dtype).view(-1, 1, 1, 1)
        if self.width_in < self.width_out:
            a = a * weights
        else:
            g = g * weights
        if self.blocks == 1:
            a, g = a.reshape(-1, self.width_in), g.reshape(-1, self.width_out)
            if not self.order and total.is_contiguous() and total.dtype == a.dtype:
                total.view(self.width_out, self.width_in).addmm_(g.t(), a, beta=beta)
                return
            canonical = torch.mm(g.t(), a).unsqueeze(0)
        else:
            a = a.transpose(0, 1).reshape(self.blocks, -1, self.width_in)
            g = g.transpose(0, 1).reshape(self.blocks, -1, self.width_out)
            canonical = torch.bmm(g.transpose(1, 2), a)
        if beta:
            total += self.shaped(canonical)
        else:
            total.copy_(self.shaped(canonical))

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
