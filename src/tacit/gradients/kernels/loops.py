"""Sums of outer products, and norms, compiled.

Sums are twice as fast as the library's where one factor has few entries, else by little.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from tacit._compiled import LEAST_COLUMNS, kernels
from tacit._threads import threads
from tacit.gradients.torch_internals import foreach_div_

MOST_ROWS = 16


def added_up(narrow: Tensor, wide: Tensor, out: Tensor, records: int) -> bool:
    """out = Σ_i narrow[i] ⊗ wide[i], each of one row, or False, and nothing done, where that is left to the library.

    By the rules of `precision`: so many records a call, in float32, the calls' sums added one after the other. Whether
    it is done here must not depend on how many records there are: one more would change how all are added up.
    """
    rows, columns = narrow.shape[-1], wide.shape[-1]
    if kernels is None or rows > MOST_ROWS or columns < LEAST_COLUMNS or not readable(narrow, wide, out):
        return False
    kernels.outer_sum(narrow, wide, out, rows, records, threads())
    increment_version(out)
    return True


def rows_added_up(rows: Tensor, weights: Tensor, out: Tensor, records: int) -> bool:
    """out = Σ_i weights[i]·rows[i], by the same rules."""
    if kernels is None or out.numel() < LEAST_COLUMNS or not readable(rows, out):
        return False
    weights = weights.to(torch.float32).contiguous()
    kernels.outer_sum(weights, rows, out, 1, records, threads())
    increment_version(out)
    return True


def squares_each(several: Sequence[Tensor]) -> Tensor | None:
    """Return the squared norms of the rows of float32 tensors, [tensors, rows]; or None, and nothing done."""
    if not hasattr(kernels, "squares_each") or not several or not all(map(readable, several)):
        return None  # none are compiled, or they were from older sources
    found = torch.empty(len(several), several[0].shape[0], dtype=torch.float32, device="cpu")
    kernels.squares_each(found, threads(), *several)  # type: ignore[union-attr]
    return found


def add_rows_up(several: Sequence[Tensor], weights: Tensor, out: Sequence[Tensor], records: int) -> None:
    """out[k] = Σ_i weights[i]·several[k][i] for every k, by the same rules, of tensors that `squares_each` can read."""
    each = weights.to(torch.float32).contiguous()
    pairs = itertools.chain.from_iterable(zip(several, out))
    kernels.row_sums(each, records, threads(), *pairs)  # type: ignore[union-attr]
    increment_version(out)


def weighted_sum(left: Tensor, right: Tensor, weights: Tensor, out: Tensor, records: int) -> bool:
    """out = Σ_i left[i] ⊗ weights[i]·right[i], by the same rules, or False, and nothing done.

    Where registers are small the library's own product is faster.
    """
    if kernels is None or not kernels.wide or not readable(left, right, out):
        return False
    if not len(left):
        out.zero_()
        return True
    each = weights.to(torch.float32).contiguous()
    kernels.product_sum(left, right, each, out, records, threads())
    increment_version(out)
    return True


def outer_squares(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
    """|left[i] ⊗ right[i]|² from above, and |right[i]|², for every i; or None, and nothing done.

    From above: squares too small for float32 count as its smallest number, as in `contributions.guarded_squares`.
    """
    if kernels is None or not readable(left, right):
        return None
    found, of_right = left.new_empty(len(left)), left.new_empty(len(left))
    kernels.outer_squares(left, right, found, of_right, threads())
    return found, of_right


def roots(squares: Sequence[Tensor], more: float, factor: float, out: Tensor) -> bool | None:
    """out = (√Σ squares + more)·factor, and whether all of it is finite; or None, and nothing done.

    The squares are added one after the other in float32, as `contributions.added` does.
    """
    if kernels is None or not readable(out, *squares):
        return None
    return kernels.roots(more, factor, out, *squares)


def divide(tensors: Sequence[Tensor], by: float) -> None:
    """Every entry divided, in place."""
    if kernels is None or not readable(*tensors):
        foreach_div_(list(tensors), by)
        return
    kernels.divide(by, threads(), *tensors)
    increment_version(tensors)


def readable(*tensors: Tensor) -> bool:
    """Return whether compiled loops can read the memory of all of them as it is."""
    for t in tensors:
        if t.dtype is not torch.float32 or not t.is_cpu or not t.is_contiguous() or t.is_neg():
            return False
    return True
