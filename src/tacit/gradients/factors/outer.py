"""Gradients of linear maps, for every example, as sums of outer products g_t ⊗ a_t."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tacit._compiled import LEAST_COLUMNS
from tacit.gradients.factors import gram
from tacit.gradients.factors.contribution import (
    Contribution,
    Dense,
    Rounding,
    cancelled,
    chunks,
    cleared,
    guarded_squares,
    largest_mass,
    precise,
    precise_dtype,
    row_squares,
)
from tacit.gradients.factors.matrix_sums import MatrixSums
from tacit.gradients.kernels.loops import MOST_ROWS, added_up, outer_squares, weighted_sum
from tacit.gradients.precision import CALLS, TOGETHER, Call, gather, one_by_one, per_call, pieces

AT_ONCE = 1 << 17
"""Gradients that take so few bytes each are formed for all examples at once; not by how many examples there are."""

NARROW, NARROW_SUM = 32, 128
"""Matrices with at most so many columns, and twice as many rows, are formed transposed: up to five times as fast."""


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
        self.a, self.g = a.contiguous(), g.contiguous()  # each example's factors together, as `alike` counts on
        self.output = output
        self.batch, self.blocks, self.positions, self.width_in = a.shape
        self.width_out = g.shape[-1]
        self.shape = shape if type(shape) is torch.Size else torch.Size(shape)
        self.sizes, self.order = tuple(sizes), tuple(order)
        self.unsettled = self.positions > 1

    def factors(self, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        if hi - lo == self.batch:
            if self.a.dtype is torch.float32 is self.g.dtype:
                return self.a, self.g
            return precise(self.a), precise(self.g)
        return precise(self.a[lo:hi]), precise(self.g[lo:hi])

    @property
    def sample(self) -> Tensor:
        """A tensor with the device and type of the factors."""
        return self.a

    @property
    def size(self) -> int:
        return self.blocks * self.width_in * self.width_out

    def gram_is_cheaper(self) -> bool:
        return gram.is_cheaper(self.positions, self.width_in, self.width_out)

    def factor_numel(self) -> int:
        return self.a.numel() + self.g.numel()

    def settle(self) -> Contribution:
        """Keep the G_i where they are no larger than twice the factors: formed once, they serve norm and sum."""
        if self.positions > 1 and self.batch * self.size <= 2 * self.factor_numel():
            alike = self.alike()
            if not alike and not self.sample.is_cpu:
                return self  # whose terms cancel is asked for all parameters at once, so that the host waits once
            formed = Dense(self.formed())
            if alike:
                return formed
            apart = cancelled(formed.squares(), self.term_sizes(), largest_mass(self.positions))
            if bool(apart.any()):
                for i in apart.nonzero().flatten().tolist():
                    formed.grads[i] = self.alone(i)[0]
                return Dense(formed.grads)
            return formed
        return self

    def alike(self) -> bool:
        """Return whether the matrices of all examples begin at like places in memory, in lines of 64 bytes."""
        t, i, o = self.positions, self.width_in, self.width_out
        return not any(entries % 16 for entries in (t * i, t * o, i * o))

    def formed(self) -> Tensor:
        if self.bytes_each <= AT_ONCE:
            return self.instantiate(0, self.batch)
        found: Tensor | None = None
        for lo, hi in self.chunks():
            a, g = self.factors(lo, hi)
            if found is None:
                found = a.new_empty((self.batch, self.blocks, *self.sides(NARROW)))
            self.product(a, g, out=found[lo:hi])
        assert found is not None
        return self.shaped(self.canonical(found))

    def alone(self, i: int) -> Tensor:
        """From copies: a batched product may round by where in memory a matrix begins."""
        a, g = self.factors(i, i + 1)
        return self.shaped(self.canonical(self.product(a.clone(), g.clone())))

    def chunks(self) -> Iterator[tuple[int, int]]:
        return chunks(self.batch, self.bytes_each)

    @property
    def bytes_each(self) -> int:
        """Return the cost of forming one example's gradient, its windows included."""
        return 4 * (self.blocks * self.positions * (self.width_in + self.width_out) + self.size)

    def squares(self) -> Tensor:
        return self.measured()[0]

    def measured(self) -> tuple[Tensor, Tensor]:
        if self.positions == 1:
            a, g = self.factors(0, self.batch)
            pair = outer_squares(a, g) if self.blocks == 1 else None
            if pair is not None:
                found, of_g = pair
                if self.output is not None:
                    self.output.known = of_g
            elif self.output is not None:
                of_g = self.output.squares() + self.width_out * torch.finfo(g.dtype).tiny
                found = guarded_squares(a).mul_(of_g)
            else:
                found = self.over_blocks(a.flatten(0, 1), g.flatten(0, 1))
            return found, found
        if not self.gram_is_cheaper():
            parts = [row_squares(self.product(*self.factors(lo, hi))) for lo, hi in self.chunks()]
            return torch.cat(parts) if len(parts) != 1 else parts[0], self.term_sizes()
        each = self.blocks * self.positions * (2 * self.positions + self.width_in)
        pieces = self.in_pieces()
        pairs = [gram.squares(*self.factors(lo, hi), pieces) for lo, hi in chunks(self.batch, each * 4)]
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])

    def rounding(self) -> Rounding:
        pieces = self.positions > 1 and self.in_pieces()
        return gram.rounding(self.blocks, self.positions, self.width_in, self.width_out, pieces)

    def in_pieces(self) -> bool:
        return gram.in_pieces(self.positions, self.width_in, self.width_out, self.sample)

    def term_sizes(self) -> Tensor:
        """M_i² ≤ Σ_t |a_t|² · Σ_t |g_t|² (Cauchy-Schwarz), added over blocks."""
        a, g = self.factors(0, self.batch)
        return self.over_blocks(a.flatten(0, 1), g.flatten(0, 1))

    def over_blocks(self, a: Tensor, g: Tensor) -> Tensor:
        """|a|²·|g|², one row for each block of each example, added over the blocks."""
        found = guarded_squares(a).mul_(guarded_squares(g))
        return found if self.blocks == 1 else found.view(self.batch, self.blocks).sum(1)

    def turned(self, narrow: int) -> bool:
        return self.width_in <= narrow and 2 * self.width_in <= self.width_out

    def sides(self, narrow: int) -> tuple[int, int]:
        return (self.width_in, self.width_out) if self.turned(narrow) else (self.width_out, self.width_in)

    def product(self, a: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
        """G_i for every block of every example, or their transposes (see `canonical`)."""
        left, right = (a, g) if self.turned(NARROW) else (g, a)
        each = None if out is None else out.flatten(0, 1)
        found = torch.bmm(left.flatten(0, 1).transpose(1, 2), right.flatten(0, 1), out=each)
        return found.view(a.shape[0], self.blocks, *self.sides(NARROW))

    def canonical(self, product: Tensor) -> Tensor:
        return product.transpose(2, 3) if self.turned(NARROW) else product

    def shaped(self, canonical: Tensor) -> Tensor:
        lead = canonical.ndim - 3
        if not self.order:
            return canonical.reshape(*canonical.shape[:lead], *self.shape)
        spread = canonical.reshape(*canonical.shape[:lead], *self.sizes)
        return spread.permute(*range(lead), *(lead + d for d in self.order)).reshape(
            *canonical.shape[:lead], *self.shape
        )

    def instantiate(self, lo: int, hi: int) -> Tensor:
        return self.shaped(self.canonical(self.product(*self.factors(lo, hi))))

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        records = CALLS[0] if positions <= 1 else per_call(positions)
        # Smaller calls, for a parameter that other uses have more terms in, are not chained without blocks (`gather`).
        simple = records == CALLS[0] and self.positions == 1 and self.blocks == 1 and not self.order
        if simple and self.add_up(total, weights, records):
            return
        if total.is_contiguous() and self.adds_by_itself(records, total.dtype):
            chain = self.matrix_sums().chain(*self.factors(0, self.batch), weights, records)
        else:
            chain = one_by_one(self.contraction(weights), records)
        gather(total, 0, self.batch, records, chain)

    def add_up(self, total: Tensor, weights: Tensor, records: int) -> bool:
        """`assign` for one term an example where a compiled sum serves."""
        a, g = self.factors(0, self.batch)
        narrow_side, wide_side = sorted((self.width_in, self.width_out))
        if narrow_side > MOST_ROWS or wide_side < LEAST_COLUMNS:
            return weighted_sum(g, a, weights, total, records)
        turned = self.width_in < self.width_out
        narrow, wide = (a, g) if turned else (g, a)
        weighted = narrow * weights.to(a.dtype).view(-1, 1, 1, 1)
        out = total.new_empty(self.width_in, self.width_out) if turned else total
        done = added_up(weighted, wide, out, records)
        if done and turned:
            total.copy_(out.t().view(self.shape))
        return done

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        call = self.contraction(weights)
        for lo, hi in pieces(self.batch, min(first, TOGETHER)):
            total += call(lo, hi)

    def adds_by_itself(self, records: int, dtype: torch.dtype) -> bool:
        """Return True if a matrix product may write calls of so many records in place, and add them up there."""
        if self.blocks != 1 or self.order or dtype != precise_dtype(self.a):
            return False
        return self.batch <= records or self.matrix_sums().adds_once(records * self.positions, self.a)

    def matrix_sums(self) -> MatrixSums:
        return MatrixSums(self.positions, *self.sides(NARROW_SUM), self.turned(NARROW_SUM))

    def weighted(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The factors, the narrower one multiplied by the weights."""
        a, g = self.factors(0, self.batch)
        weights = weights.to(a.dtype).view(-1, 1, 1, 1)
        return (a * weights, g) if self.width_in < self.width_out else (a, g * weights)

    def contraction(self, weights: Tensor) -> Call:
        """One call: Σ_i weights[i]·G_i over a range of examples."""
        a, g = self.weighted(weights)

        def call(lo: int, hi: int) -> Tensor:
            left = a[lo:hi].transpose(0, 1).reshape(self.blocks, -1, self.width_in)
            right = g[lo:hi].transpose(0, 1).reshape(self.blocks, -1, self.width_out)
            if self.blocks == 1:
                turned = self.turned(NARROW_SUM)
                total = torch.mm(left[0].t(), right[0]).t() if turned else torch.mm(right[0].t(), left[0])
                return self.shaped(total.unsqueeze(0))
            return self.shaped(torch.bmm(right.transpose(1, 2), left))

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
