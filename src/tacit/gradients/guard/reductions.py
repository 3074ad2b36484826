"""Tags after sums, means and other operations along dimensions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tacit.gradients.layers.registry import (
    ELSEWHERE,
    Call,
    aligned,
    broadcast,
    in_order,
    mixes,
    removed,
    rule,
    rule_of_one,
)
from tacit.gradients.layout import Layout, Tag, Total, owners, uneven
from tacit.gradients.names import words


def _dims(call: Call, position: int, rank: int) -> list[int]:
    found = call.dims(position, rank) if rank else []
    return list(range(rank)) if found is None else found


@rule_of_one("sum mean")
def _linear_reduction(call: Call) -> Tag:
    x, layout = call.first()
    dims = _dims(call, 1, x.ndim)
    if layout.dim in dims:
        if call.name == "mean" and uneven(layout, call.batch):
            return mixes(
                call, "divides by a number of rows that depends on the examples; use a sum, or a mean per example"
            )
        return Total("mean" if call.name == "mean" else "sum")
    return removed(layout, dims, bool(call.arg(2, "keepdim", default=False)))


_FFT = " ".join(f"fft_{kind}{dims}" for dims in ("", "2", "n") for kind in words("fft ifft rfft irfft hfft ihfft"))

_POSITION = dict.fromkeys(
    words(
        "topk kthvalue diff quantile nanquantile linalg_vector_norm linalg_cross cosine_similarity roll rot90 " + _FFT
    ),
    2,
)
"""Operations whose third argument says along which dimensions they work; that of others is the second."""

_DEFAULT = {"roll": None, "rot90": [0, 1], "cosine_similarity": [1]}
"""The dimensions without that argument; all (None), two for `fft_fft2` and its kind, else the last."""


def _default(name: str, rank: int) -> list[int]:
    if name.startswith("fft_") and name.endswith(("2", "n")):
        return [rank - 2, rank - 1] if name.endswith("2") else list(range(rank))
    found = _DEFAULT.get(name, [rank - 1])
    return list(range(rank)) if found is None else found


@rule(
    """amax amin argmax argmin prod logsumexp any all median nanmedian nansum nanmean count_nonzero max min std var
    aminmax mode std_mean var_mean linalg_vector_norm quantile nanquantile"""
)
def _reduction(call: Call) -> Any:
    if call.name.endswith("quantile") and not isinstance(call.arg(1, "q"), float):
        return mixes(call, "was called in a form the engine does not know")  # several quantiles come first
    if call.name in ("max", "min") and isinstance(call.arg(1, "other"), Tensor):
        return broadcast(call)
    if not call.has_only(call.main()):
        return mixes(call, ELSEWHERE)
    x, layout = call.first()
    dims = _dims(call, _POSITION.get(call.name, 1), x.ndim)
    if layout.dim in dims:
        return mixes(call, "reduces over examples")
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return removed(layout, dims, out.ndim == x.ndim)


@rule(
    """softmax log_softmax cumsum cumprod cummax cummin logcumsumexp sort argsort topk kthvalue glu flip _softmax
    softmin unfold diff roll rot90 cosine_similarity linalg_cross """
    + _FFT
)
def _along(call: Call) -> Any:
    together = aligned(call, call.main().ndim)  # what is put before and after the entries of `diff` too
    if not isinstance(together, Layout):
        return together
    x, layout = call.first()
    position = _POSITION.get(call.name, 1)
    if isinstance(call.arg(position), (bool, Tensor)):
        return mixes(call, "was called in a form the engine does not know")
    dims = call.dims(position, x.ndim, "dims", "dimension") or _default(call.name, x.ndim)
    if layout.dim in dims:
        found = mixes(call, "works across examples")
        if call.name == "sort" and x.ndim == 1:  # each value is still its example's (lengths, before packing)
            ids = owners(layout, call.batch, x.shape[0], x.device)
            return [in_order(0, ids[call.out[1].as_subclass(Tensor)], call.batch), found]
        return found
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return removed(layout, dims, out.ndim >= x.ndim)
