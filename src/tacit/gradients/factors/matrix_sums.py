"""Weighted sums of outer products by matrix products that are added to each other in one addition each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.gradients.factors.contribution import precise_dtype
from tacit.gradients.precision import Chain, adds_once, pieces

ROOM = 1 << 20
"""Bytes of factors that are weighted at a time."""


@dataclass(frozen=True, slots=True)
class MatrixSums:
    """Σ_i w_i·Σ_t g_t ⊗ a_t as matrices of these sides, which are exchanged where they are `turned`."""

    positions: int
    rows: int
    columns: int
    turned: bool

    def adds_once(self, terms: int, like: Tensor) -> bool:
        """Return whether a product of so many terms, of factors like this one, is added in one addition."""
        return adds_once(self.rows, self.columns, terms, precise_dtype(like), like.device, torch.get_num_threads())

    def chain(self, a: Tensor, g: Tensor, weights: Tensor, records: int) -> Chain:
        """Calls of so many records, each a matrix product that is added to the sum of those before in one addition.

        The narrower factors are multiplied by the weights a few calls at a time, in memory that stays in the cache.
        """
        narrow, wide = (a, g) if a.shape[3] < g.shape[3] else (g, a)
        each = weights.to(a.dtype).view(-1, 1, 1, 1)
        at_once = records * max(1, ROOM // max(1, records * narrow[:1].nbytes))
        room = narrow.new_empty((min(at_once, len(a)), *narrow.shape[1:]))

        def chain(out: Tensor, lo: int, hi: int) -> None:
            total = out.new_empty(self.rows, self.columns) if self.turned else out.view(self.rows, self.columns)
            if lo == hi:
                total.zero_()
            for start, end in pieces(hi, at_once, lo):
                torch.mul(narrow[start:end], each[start:end], out=room[: end - start])
                for first, last in pieces(end, records, start):
                    weighted, other = room[first - start : last - start], wide[first:last]
                    left, right = (weighted, other) if (narrow is a) == self.turned else (other, weighted)
                    self._add(total, left, right, records, fresh=first == lo)
            if self.turned:
                out.view(self.columns, self.rows).copy_(total.t())

        return chain

    def _add(self, total: Tensor, left: Tensor, right: Tensor, records: int, *, fresh: bool) -> None:
        """total += Σ left ⊗ right over a few examples in one addition, or total = Σ left ⊗ right if `fresh`.

        Where they are fewer than `records`, zeros come after the terms, up to eighths of a full call: so few sizes are
        soon all tried out.
        """
        left, right = left.flatten(0, 2), right.flatten(0, 2)
        if fresh:
            torch.mm(left.t(), right, out=total)
            return
        full = records * self.positions  # for so many terms it was asked before (`Outer.adds_by_itself`)
        terms = len(left)
        if extra := min(-terms % -(-full // 8), full - terms):
            left, right, terms = F.pad(left, (0, 0, 0, extra)), F.pad(right, (0, 0, 0, extra)), terms + extra
        if terms == full or self.adds_once(terms, left):
            total.addmm_(left.t(), right)
        else:
            total += torch.mm(left.t(), right)
