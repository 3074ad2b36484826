"""Sums of outer products of which one factor has few entries, compiled: a matrix product takes twice as long."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit._compiled import LEAST_COLUMNS, kernels

MOST_ROWS = 16


def added_up(narrow: Tensor, wide: Tensor, out: Tensor, records: int) -> bool:
    """out = Σ_i narrow[i] ⊗ wide[i], or False, and nothing done, where that is left to the library.

    By the rules of `precision`: so many records a call, in float32, the calls' sums added one after the other. Whether
    it is done here must not depend on how many records there are: one more would change how all are added up.
    """
    rows, columns = narrow.shape[1], wide.shape[1]
    if kernels is None or rows > MOST_ROWS or columns < LEAST_COLUMNS:
        return False
    if not all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in (narrow, wide, out)):
        return False
    kernels.outer_sum(narrow.numpy(), wide.numpy(), out.numpy(), rows, records, torch.get_num_threads())
    return True
