"""All uses of one parameter together: norms with their cross terms, and sums."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from tacit._transfer import sent
from tacit.gradients.factors.contribution import (
    Contribution,
    Dense,
    Rounding,
    added,
    chunks,
    precise,
    precise_dtype,
    row_rounding,
    row_squares,
)
from tacit.gradients.factors.outer import Outer, concatenated
from tacit.gradients.factors.parameter_uses import Part
from tacit.gradients.factors.sparse import Rows, together
from tacit.gradients.precision import UNIT, check_positions, own_rounding, per_call


class Uses:
    """All uses of one parameter: each example's contributions, measured and summed over the uses together."""

    def __init__(self, parts: list[Part], shape: torch.Size) -> None:
        self.parts, self.shape = parts if len(parts) == 1 else _merge(parts), shape
        self.separate = len(self.parts) == 1 or _disjoint(self.parts, shape)
        """True if no two uses meet in an entry of the parameter."""
        self.positions = 0
        for part in self.parts:
            self.positions += part.contribution.positions
        if self.positions > 1:
            check_positions(self.positions)
        self.apart: list[int] = []
        """Examples whose terms cancel; their gradients are formed by themselves (see `cancelled`)."""
        self.relative = 0.0
        """Relative error of `cancellation.bounded_squares`."""
        self.unit = UNIT
        """The unit roundoff of the type in which it was measured."""

    def measured(self) -> tuple[Tensor, Tensor, Rounding]:
        """|Σ_parts G_i|² up to rounding, the squared sizes of what is summed, and errors (`bounded_squares`).

        The same tensor twice where the G_i themselves are summed, formed one by one.
        """
        if len(self.parts) == 1:
            contribution = self.parts[0].contribution
            found, sizes = contribution.measured()
            rounding = contribution.rounding()
        else:
            found, sizes, rounding = self._several_measured()
        if found.dtype is not torch.float32:
            self.unit = torch.finfo(precise_dtype(found)).eps / 2
        formed = row_rounding(self.shape.numel()) if sizes is not found else 0.0
        self.relative = max(rounding.relative, formed) * self.unit
        return found, sizes, rounding

    def _several_measured(self) -> tuple[Tensor, Tensor, Rounding]:
        """Squared norms, cross terms between several uses included, the squared sizes of what is summed, and errors."""
        parts = [p.contribution for p in self.parts]
        errors = [p.rounding() for p in parts]
        each = [p.measured() for p in parts]
        rounding = Rounding(
            relative=max(e.relative for e in errors), gram=max(e.gram for e in errors), own=max(e.own for e in errors)
        )
        if self.separate:
            return added(n for n, _ in each), added(m for _, m in each), rounding
        sizes = added([m.sqrt() for _, m in each]).square_()
        crossed = _crossed(self.parts)
        if crossed is None:
            several = chunks(parts[0].batch, self.shape.numel() * 4 * len(parts))
            formed = torch.cat([row_squares(instantiate(self.parts, self.shape, lo, hi)) for lo, hi in several])
            return formed, sizes, Rounding(own=own_rounding(self.positions + len(parts), formed=True) / UNIT)
        total = added(n for n, _ in each) + 2 * crossed
        inner = self.shape.numel() // max(1, self.shape[0]) + self.positions + len(parts)
        lookups = added(p.lookups() for p in parts if isinstance(p, Rows))
        gram = lookups * 2.0 + (rounding.gram + rounding.relative + 2 * rounding.own + 2 * inner + 16)
        own = own_rounding(self.positions + len(parts), formed=False) / UNIT
        return total, sizes, Rounding(gram=gram, own=own)

    def assign(self, total: Tensor, weights: Tensor) -> None:
        """total = Σ_i weights[i]·G_i over all uses, whatever it held."""
        together = weights
        if self.apart:
            together = weights.index_fill(0, sent(torch.tensor(self.apart, device="cpu"), weights.device), 0)
        if not self.separate:
            self._assign_wide(total, weights, together)
            return
        if len(self.parts) == 1 and self.parts[0].region is None and not self.apart:
            self.parts[0].contribution.assign(total, weights, self.positions)
            return
        if len(self.parts) > 1 or self.parts[0].region is not None:
            total.zero_()
        for part in self.parts:
            if part.region is None:
                part.contribution.assign(total, together, self.positions)
            elif total.is_contiguous():
                part.contribution.assign(part.region.of(total), together, self.positions)
            else:
                fresh = torch.zeros(total.shape, dtype=total.dtype, device=total.device)
                part.contribution.assign(part.region.of(fresh), together, self.positions)
                total += fresh
        if self.apart:
            wide = torch.zeros(total.shape, dtype=torch.float64, device=total.device)
            self._add_apart(wide, weights)
            total += wide.to(total.dtype)

    def _assign_wide(self, total: Tensor, weights: Tensor, together: Tensor) -> None:
        """The uses may cancel each other, so that their sums are added in float64."""
        wide = torch.zeros(total.shape, dtype=torch.float64, device=total.device)
        first = per_call(max(2, self.positions))
        for part in self.parts:
            part.contribution.widen(wide if part.region is None else part.region.of(wide), together, first)
        self._add_apart(wide, weights)
        total.copy_(wide)

    def _add_apart(self, wide: Tensor, weights: Tensor) -> None:
        for i in self.apart:
            wide += instantiate(self.parts, self.shape, i, i + 1)[0] * weights[i]

    def without(self, bad: Tensor) -> Uses:
        """The same with nothing from the examples where `bad`."""
        kept = copy(self)
        kept.parts = [Part(p.contribution.without(bad), p.region) for p in self.parts]
        return kept


def _crossed(parts: list[Part]) -> Tensor | None:
    """Σ⟨G_p, G_q⟩ over pairs of uses where every pair has a cheap inner product: |ΣG|² = Σ|G_p|² + 2·Σ⟨G_p, G_q⟩."""
    if any(p.region is not None for p in parts):
        return None
    crossed = []
    for i, p in enumerate(parts):
        for q in parts[i + 1 :]:
            found = inner_product(p.contribution, q.contribution)
            if found is None:
                return None
            crossed.append(found)
    return added(crossed)


def inner_product(a: Contribution, b: Contribution) -> Tensor | None:
    """⟨A_i, B_i⟩ for every example, for a table that is also used as a matrix (tied embeddings)."""
    if isinstance(b, Rows):
        a, b = b, a
    if not isinstance(a, Rows):
        return None
    rows = precise(a.grads)
    if isinstance(b, Dense):
        each = (precise(b.grads)[a.owner, a.index] * rows).sum(1)
    elif type(b) is Outer and b.blocks == 1 and not b.order:
        # Row r of Σ_t g_t ⊗ a_t is Σ_t g_t[r]·a_t; only the rows that were looked up are needed.
        parts = []
        for lo, hi in chunks(a.index.numel(), 8 * b.positions * b.width_in):
            owner = a.owner[lo:hi]
            weights = precise(b.g[owner, 0, :, a.index[lo:hi]])
            parts.append(torch.einsum("rt,rti,ri->r", weights, precise(b.a[owner, 0]), rows[lo:hi]))
        each = torch.cat(parts) if parts else rows.new_zeros(0)
    else:
        return None
    return each.new_zeros(a.batch).index_add_(0, a.owner, each)


def instantiate(parts: list[Part], shape: torch.Size, lo: int, hi: int) -> Tensor:
    """The summed gradients of examples lo..hi-1 with respect to the whole parameter."""
    out: Tensor | None = None
    for part in parts:
        grads = part.contribution.alone(lo) if hi == lo + 1 else part.contribution.instantiate(lo, hi)
        if part.region is not None:
            whole = grads.new_zeros((hi - lo, shape.numel()))
            stride = (shape.numel(), *part.region.stride)
            whole.as_strided((hi - lo, *part.region.size), stride, part.region.offset).copy_(grads)
            grads = whole.view(hi - lo, *shape)
        out = grads if out is None else out + grads
    assert out is not None
    return out


def _merge(parts: list[Part]) -> list[Part]:
    """Uses of the same region by the same kind of operation become one."""
    merged: dict[tuple[Any, ...], list[Part]] = {}
    for i, part in enumerate(parts):
        c = part.contribution
        if type(c) is Outer:
            key: tuple[Any, ...] = (Outer, part.region, c.blocks, c.width_in, c.width_out, c.sizes, c.order)
        elif isinstance(c, Dense):
            key = (Dense, part.region, c.shape)
        elif isinstance(c, Rows) and part.region is None:
            key = (Rows,)
        else:
            key = (i,)
        merged.setdefault(key, []).append(part)
    result = []
    for key, group in merged.items():
        if len(group) > 1 and key[0] is Outer:
            outer = concatenated([p.contribution for p in group if isinstance(p.contribution, Outer)])
            group = [Part(outer.settle(), group[0].region)]
        elif len(group) > 1 and key[0] is Rows:
            group = [Part(together([p.contribution for p in group if isinstance(p.contribution, Rows)]), None)]
        elif len(group) > 1:
            total = sum(p.contribution.instantiate(0, p.contribution.batch) for p in group)
            assert isinstance(total, Tensor)
            group = [Part(Dense(total), group[0].region)]
        result += group
    return result


def _disjoint(parts: list[Part], shape: torch.Size) -> bool:
    if any(p.region is None for p in parts):
        return False
    counts = torch.zeros(shape.numel(), dtype=torch.int32)
    for p in parts:
        assert p.region is not None
        p.region.of(counts).add_(1)
    return int(counts.max()) <= 1
