"""How a sum over records is carried out in floating point, and what that can add to its sensitivity.

The argument is in docs/finite-precision.md; this module holds its numbers. A record is limited to S by its weight, so
the exact sum moves by at most S when a record joins. The computed sum moves by more, because every rounding after the
new record may fall another way. That is bounded for any order a kernel adds in, and for all other records:

* one *call* of a kernel sees few records (`per_call`), the sums of calls are added in blocks of `BLOCKS` records, and
  the sums of batches in float64 (`tacit.training.sums`). A record has a slot; one record more fills one more slot and
  changes the occupant of at most one other, so that only the calls and blocks of two slots are computed anew, in two
  data sets: four times the error of one. How many records the lot has does not matter.
* what a record's own terms do to it in a call of its own is part of its norm (`own_rounding`), not of S.

Premise: what a kernel makes of one record's row (its activations, gradients and norm) is a function of that record
alone, not of its place, of the other rows or of their number. Nothing here bounds what happens where that fails.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tacit._compiled import kernels
from tacit._threads import threads
from tacit.gradients.float32_settings import coarse

UNIT = 2.0**-24
"""The unit roundoff u of float32, the coarsest type in which anything is summed."""

CALLS = (192, 16, 8, 4, 2, 1)
"""How many records one call of a kernel may sum: the first for records of one term each, the others for more.

(MKL cuts its products at 192 terms by itself: such calls cost no more than one product of all.)
"""

BLOCKS = (128, 1024, 2048)
"""Sums of calls are added in float32 up to so many records, these sums up to so many, and so on.

Large calls are added up to the last of these directly, since they are few.
"""

LARGEST_BATCH = BLOCKS[-1]
"""Records that are summed in float32 at all; the sums of several such batches are added in float64."""

LARGEST_LOT = 8192
"""Records whose sum may be rounded from float64 to float32 before noise is added.

Lots of half as many on average are: that one has more than this is less likely than 10^-600 (`released_in`).
"""

MOST_POSITIONS = 1 << 20
"""Terms that one record may have in one parameter; more are refused."""

LEAST_CLIP_NORM = 1e-9
"""Smaller clip norms are refused: products too small for the type would no longer be small beside them."""

SHARE = 0.005
"""The amount that calls of one size may add to the sensitivity."""

NORM_SHARE = 2.0**-11
"""How much a measured norm may lie below the true one, once for all norms and once more for terms that cancel in part.

That is part of the margin, so that ordinary norms are used as they are; beyond it a norm is enlarged
(`bounded_squares`).
"""

MARGIN = 0.02
"""By how much of itself the sensitivity of a clipped sum grows by rounding, at most; see `margin`."""

TOGETHER = 16
"""Records whose parts one call may sum where several uses of a parameter meet; the calls are added in float64."""


def released_in(dtype: torch.dtype, lot_size: float) -> torch.dtype:
    """The type in which a sum over a lot is released: decided by the expected size, which is public."""
    return dtype if lot_size <= LARGEST_LOT / 2 else torch.float64


def spread(positions: int) -> float:
    """ρ: the terms of a record that is summed with others are at most ρ times its norm in size (`cancelled`)."""
    return math.sqrt(max(64.0, 4.0 * positions)) if positions > 1 else 1.0


def call_error(records: int, positions: int) -> float:
    """Bound the error of one call, in units of u·S: Lemma 2.

    A term is a product of three numbers: two roundings. Each of n terms passes through at most n additions, in an
    order that may be another for every entry of the matrix. Not all terms of an entry through as many: the additions
    are a binary tree, whose n leaves are deepest, all together, where one follows the other (depths 1, …, n-1, n-1).
    With one term a record that counts, by the Cauchy-Schwarz inequality.
    """
    if positions > 1:
        return (records * positions + 2) * records * spread(positions)
    depths = [*range(1, records), records - 1]
    return math.sqrt(records * sum((depth + 2) ** 2 for depth in depths))


def per_call(positions: int) -> int:
    """How many records with so many terms each one call may sum."""
    if positions <= 1:
        return CALLS[0]
    for records in CALLS[1:-1]:
        if 4 * UNIT * call_error(records, positions) <= SHARE:
            return records
    return CALLS[-1]


def chain_error(block: int, records: int) -> float:
    """Adding sums over `block` records up to one over `records`, in units of u·S: every partial sum is rounded."""
    return sum(min(done, records) for done in range(block, records + block, block))


def margin() -> float:
    """A bound of what rounding adds to the sensitivity of a clipped sum, as a fraction of S.

    Calls of different sizes serve different parameters, whose errors are orthogonal. A call of one record has no
    share: what it computes depends on that record alone and is in its norm. Additions of blocks come on top: those
    from calls of one record, which round every record more often than those from other small calls, and those of large
    calls, in other parameters; so do three more additions of whole batches (records whose terms cancel,
    tables, several uses), the sum over a lot rounded to float32 in either data set, and roundings of weights, 8u.
    `NORM_SHARE` bounds by how much norms may be too small.
    """
    calls = math.hypot(4 * UNIT * call_error(CALLS[0], 1), *(SHARE for _ in CALLS[1:-1]))
    sizes = (1, *BLOCKS)
    small = sum(chain_error(block, records) for block, records in itertools.pairwise(sizes))
    chains = 4 * UNIT * math.hypot(small, chain_error(CALLS[0], LARGEST_BATCH))
    others = 4 * UNIT * 3 * LARGEST_BATCH + 2 * UNIT * LARGEST_LOT + 8 * UNIT
    return (calls + chains + others + 2 * NORM_SHARE) * (1 + 2.0**-7)


def own_rounding(positions: int, formed: bool) -> float:
    """η: the error of forming a record's gradient from its terms, relative to their size M.

    Once in the call that sums it, and once more where its norm was measured from a gradient formed before.
    """
    steps = (positions + 4) * UNIT
    return (2 if formed else 1) * steps / (1 - steps)


def check_clip_norm(clip_norm: float) -> None:
    if not clip_norm >= LEAST_CLIP_NORM:
        raise ValueError(
            f"gradients are clipped to {clip_norm:g}, for which no sensitivity is proved; use a clip norm of at least "
            f"{LEAST_CLIP_NORM:g}, or multiply the loss."
        )


def check_positions(positions: int) -> None:
    if positions > MOST_POSITIONS:
        raise ValueError(
            f"a parameter is used at more than {MOST_POSITIONS} positions of a record, for which no sensitivity is "
            "proved; cut the records into shorter ones."
        )


def pieces(batch: int, size: int, lo: int = 0) -> Iterator[tuple[int, int]]:
    """lo … batch cut into pieces of `size`, the incomplete one last: one record more leaves all others as they were."""
    for at in range(lo, batch, size):
        yield at, min(at + size, batch)


Call = Callable[[int, int], Tensor]
"""Σ_i w_i·G_i over lo ≤ i < hi, by one call of a kernel."""

Chain = Callable[[Tensor, int, int], None]
"""out = Σ_i w_i·G_i over lo ≤ i < hi: calls, each added to the sum of those before in one addition."""


def one_by_one(call: Call, records: int) -> Chain:
    """Calls of at most so many records, added up one after the other."""

    def chain(out: Tensor, lo: int, hi: int) -> None:
        for start, end in pieces(hi, records, lo):
            if start == lo:
                out.copy_(call(start, end))
            else:
                out += call(start, end)

    return chain


def gather(out: Tensor, lo: int, hi: int, records: int, chain: Chain) -> None:
    """out = Σ_i w_i·G_i over lo ≤ i < hi: calls of so many records, chained up to `BLOCKS`, and these chained again."""
    blocks = [size for size in BLOCKS if size < hi - lo] if records < BLOCKS[0] else []
    _gather(out, lo, hi, blocks, chain)


def _gather(out: Tensor, lo: int, hi: int, sizes: list[int], chain: Chain) -> None:
    while sizes and hi - lo <= sizes[-1]:
        sizes = sizes[:-1]
    if not sizes:
        chain(out, lo, hi)
        return
    for start, end in pieces(hi, sizes[-1], lo):
        if start == lo:
            _gather(out, start, end, sizes, chain)
        else:
            block = torch.empty_like(out)
            _gather(block, start, end, sizes, chain)
            out += block


@functools.cache
def adds_once(outputs: int, inputs: int, terms: int, dtype: torch.dtype, device: torch.device, threads: int) -> bool:
    """Return whether a matrix product that is added to a matrix sums its own terms first and is added in one addition.

    Found by trying, on a matrix of these dimensions: with 2^30 in the matrix and terms of a fraction of its last place,
    each addition to the matrix rounds another way, and only one addition, at the end, gives the rounded exact result.
    The result is taken to hold for all matrices of these dimensions. (A small one would show too little.)
    """
    if max(outputs, inputs) < 32 or dtype != torch.float32:
        return False
    start = 2.0**30
    found = torch.full((outputs, inputs), start, dtype=dtype, device=device)
    left, right = torch.ones(terms, outputs, device=device), torch.ones(terms, inputs, device=device)
    longer = left if outputs >= 32 else right
    each = torch.arange(longer.shape[1], device=device, dtype=dtype).mul_(37).remainder_(509).add_(3).div_(8)
    longer.copy_(each.expand_as(longer))
    found.addmm_(left.t(), right)
    expected = (each.double() * terms + start).to(dtype)
    return bool((found == (expected.unsqueeze(1) if longer is left else expected)).all())


_AS_IT_IS = nullcontext()
_SMALLEST = sys.float_info.min


@functools.cache
def _smallest(count: int) -> Tensor:
    return torch.full((count,), 2.0**-126, dtype=torch.float32, device="cpu")


def _threads_flush() -> bool:
    """Return True if another thread that works for this one takes denormal numbers for zero.

    Asked each time: threads come and go, and each has threads of its own.
    """
    count = threads()
    found = kernels.flushes(count) if kernels is not None and count > 1 else None
    if found is not None:
        return found
    return count > 1 and not bool((_smallest(count << 15) * 0.5 * 2).min() > 0)  # so many that all have a part


def check_precision(device: torch.device) -> None:
    """Refuse settings that let float32 be computed with in a coarser way: nothing here holds for them."""
    if _SMALLEST * 0.5 == 0 or _threads_flush():  # the processor flushes float32 and float64 alike
        raise ValueError(
            "numbers below 2^-126 are flushed to zero (torch.set_flush_denormal), for which no sensitivity is proved; "
            "call torch.set_flush_denormal(False) before anything else is computed: threads that were started before "
            "go on as they began, and need a new process."
        )
    needed = coarse(device)
    if needed:
        raise ValueError(
            "float32 products may be rounded to fewer bits, for which no sensitivity is proved; make them exact: "
            f"{'; '.join(needed)}."
        )


def unmixed(device: torch.device) -> AbstractContextManager[Any]:
    """No `torch.autocast` within: norms and sums may be taken, or backward called, where it is on.

    It would round factors to bfloat16 before they are multiplied, of which no bound of an error here knows.
    """
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else _AS_IT_IS
