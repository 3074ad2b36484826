"""Means and sums over examples: the gradient that each example receives, and how the loss was reduced.

A mean over B examples sends 1/B back to each of them in PyTorch. B is how many there are: a gradient that contains it
is rounded another way for everybody when one example joins, and terms that cancelled no longer do. Through a reduction
seen here every example receives what it would receive alone, so that what is captured is its own.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layers.own_means import Share
from tacit.gradients.layers.registry import ALWAYS, bound, layout_of, operation
from tacit.gradients.layout import Layout, Total, uneven
from tacit.gradients.recording import Recording
from tacit.gradients.tap import simple_fraction
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, plain

log = logging.getLogger(__name__)


@operation("mean", ALWAYS)
def mean(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, dim, keepdim, dtype, axis = bound("input dim keepdim dtype axis", args, {**kwargs}, keepdim=False)
    dim = axis if dim is None else dim
    layout = layout_of(recorder, x)
    dims = [d % x.ndim for d in ([dim] if isinstance(dim, int) else dim or range(x.ndim))] if layout else []
    if layout is None or not recorder.batch or layout.dim not in dims:
        return recorder.carry_out(func, args, kwargs)
    if not torch.is_grad_enabled() or not x.requires_grad:
        return recorder.carry_out(func, args, kwargs)
    if uneven(layout, recorder.batch):
        if recorder.reduction == "sum":
            return recorder.carry_out(func, args, kwargs)  # refused
        return mean_of_own_means(recorder, x, layout, dims=tuple(dims), keepdim=bool(keepdim), dtype=dtype)
    return averaged(recorder, x, layout, dims=tuple(dims), keepdim=bool(keepdim), dtype=dtype)


def averaged(
    recorder: Recording,
    x: Tensor,
    layout: Layout,
    *,
    dims: tuple[int, ...] = (),
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    own: int | None = None,
) -> Tensor:
    """The mean over all examples (and more) as PyTorch computes it; back goes to each what its own mean would receive.

    For autograd it is a sum, with the mean's value, and what arrives is divided by `own`: how many entries are averaged
    of one example, or 1 for a sum over the entries of each.
    """
    assert recorder.batch is not None
    data: Tensor = plain(x)
    shares = None
    if own is None:
        if type(x) is Traced and layout.owner is None and not keepdim and len(dims) in (0, x.ndim):
            shares = Share(x, layout, recorder.batch, mean=True)
        own = (math.prod(data.shape[d] for d in dims) if dims else data.numel()) // recorder.batch
    out: Tensor = data.sum(dims, keepdim=keepdim, dtype=dtype)
    if out.dtype not in (torch.float32, torch.float64):  # where the sum itself may overflow
        with torch.no_grad():
            out.detach().copy_(data.detach().sum(dims, keepdim=keepdim, dtype=torch.float32).div_(own * recorder.batch))
    else:
        out.data.div_(own * recorder.batch)
    return _told(recorder, out, x, layout, own, shares)


def mean_of_own_means(
    recorder: Recording,
    x: Tensor,
    layout: Layout,
    *,
    dims: tuple[int, ...] = (),
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The mean over examples of each one's own mean, where they have different numbers of rows.

    PyTorch divides by the number of all rows, which depends on every example. An example without rows has a mean of 0.
    """
    assert recorder.batch is not None and layout.owner is not None
    tell_of_own_means()
    data: Tensor = plain(x)
    counts = torch.bincount(layout.owner, minlength=recorder.batch).clamp_min_(1)[layout.owner]
    beside = math.prod(data.shape[d] for d in dims or range(data.ndim) if d != layout.dim)
    shares = data / (counts * beside).to(data.dtype).view(-1, *(1,) * (data.ndim - layout.dim - 1))
    return averaged(recorder, shares, layout, dims=dims, keepdim=keepdim, dtype=dtype, own=1)


@functools.cache
def tell_of_own_means() -> None:
    log.warning(
        "a loss is a mean over the targets of the whole batch; the mean over examples of each example's own mean is "
        "taken instead, so that no example's weight depends on how many targets the others have"
    )


def mean_of_sum(recorder: Recording, total: Tensor, x: Tensor, layout: Layout, own: int) -> Tensor:
    """The mean over all examples of a sum over the `own` entries of each that was computed from `x`; see `averaged`."""
    total.data.div_(own * (recorder.batch or 1))
    return _told(recorder, total, x, layout, own)


def _told(
    recorder: Recording, mean: Tensor, x: Tensor, layout: Layout, own: int, shares: Share | None = None
) -> Tensor:
    recorder.tag_outputs(mean, Total("mean", shares), [(x, layout)])
    if own > 1:
        with without_subclasses():
            mean.register_hook(lambda grad: grad / own)  # type: ignore[no-untyped-call]
    return mean


def check_reduction(recorder: Recording) -> None:
    """Refuse a loss that is not for certain L = c·Σ_i ℓ_i with c known.

    Where the examples were reduced (a mean or a sum) the engine has seen both the operation and the gradient that came
    back through it. Undeclared, only an unscaled mean or an unscaled sum is accepted; declared, a loss that contradicts
    the declaration is refused.
    """
    batch = recorder.batch or 1
    _read(recorder)
    seeds = [*recorder.inner_seeds, *recorder.seeds]
    if batch > 1 and recorder.divides is None and not recorder.learning:
        recorder.divides = recorder.divided
    kinds, untouched = set[str](), set[str]()
    for kind, seed in seeds:
        kinds.add(kind)
        if _is_one(seed):
            untouched.add(kind)
    declared = recorder.reduction
    if recorder.learned_factors and not _is_as_learned(recorder, seeds, batch):
        raise ValueError(
            "the loss was a sum divided by the number of examples in the first batches, and is divided by something "
            "else now (a count of labels, say), which may depend on all of them; divide by len(x), or take loss.mean()"
        )
    if declared is None and not recorder.learning and not recorder.scales and len(kinds) == len(untouched) == 1:
        return
    if declared is None and _is_scaled_by_constants(recorder, kinds, batch):
        return
    if declared is None:
        changed = bool(recorder.scales) and not scales(recorder) <= recorder.scales
        if batch == 1 or (not changed and ((len(kinds) == 1 and untouched) or _is_told_by_outputs(recorder))):
            return
        if not seeds:
            why = "the loss was not reduced over examples by an operation the engine saw"
        elif len(kinds) > 1:
            why = "one part of the loss is a mean and another a sum over examples"
        else:
            why = (
                f"the {kinds.pop()} over examples was scaled afterwards (gradient accumulation does so; a private loop "
                "has none: lot_size= is how many records a step has, batch_size= how many are in memory)"
            )
        raise ValueError(
            f"the loss's reduction cannot be told for certain: {why}. Declare it: reduction='mean' if the loss is "
            "(1/batch)·Σ of the examples' losses, reduction='sum' if it is their sum."
        )
    wrong = "sum" if declared == "mean" else "mean"
    if batch > 1 and wrong in untouched:
        raise ValueError(f"reduction={declared!r} was declared, but the loss, or a part, is a {wrong} over examples")


def _read(recorder: Recording) -> None:
    """Copy the reductions' gradients to the CPU, all at once: every copy makes the host wait."""
    several = [recorder.inner_seeds, recorder.seeds, recorder.output_seeds]
    away = []
    for seeds in several:
        for _, seed in seeds:
            if not seed.is_cpu:
                away.append(seed)
    if not away:
        return
    together = torch.cat([seed.reshape(-1) for seed in away]).cpu()
    read = torch.split(together, [seed.numel() for seed in away])
    known = {id(seed): here.view(seed.shape) for seed, here in zip(away, read)}
    for seeds in several:
        seeds[:] = [(kind, known.get(id(seed), seed)) for kind, seed in seeds]


def _is_scaled_by_constants(recorder: Recording, kinds: set[str], batch: int) -> bool:
    """Return whether the parts of the loss are all means, or all sums, times constants.

    A scale is known to be constant once batches of several sizes had it, to the last bit, while nothing was counted
    (`Recording.learning`); until then every scale is accepted.
    """
    seeds = [*recorder.inner_seeds, *recorder.seeds]
    scalar = bool(kinds) and all(seed.numel() == 1 for _, seed in seeds)
    found = frozenset((kind, abs(float(seed))) for kind, seed in seeds) if scalar else None
    if recorder.learning:
        recorder.learned.setdefault(batch, set()).add(found)
        return scalar
    known = {scales for several in recorder.learned.values() for scales in several}
    return scalar and len(kinds) == 1 and len(recorder.learned) > 1 and known == {found}


def learned_mean(recorder: Recording) -> frozenset[float] | None:
    """Return the factors of a mean that batches of several sizes have shown: sums divided by the number of examples.

    Its parts may have constant factors, and some may be means as they are: that of a sum, times the number of examples,
    and that of a mean must be the same in every batch. None if they are not, or if nothing was divided.
    """
    meant = set[frozenset[float] | None]()
    for batch, several in recorder.learned.items():
        for found in several:
            if found is None or not any(kind == "sum" for kind, _ in found):
                return None
            meant.add(_factors(found, batch))
    return meant.pop() if len(recorder.learned) > 1 and len(meant) == 1 else None


def _factors(scales: Iterable[tuple[str, float]], batch: int) -> frozenset[float] | None:
    """Return by what the parts of a mean are multiplied; None if one cannot be told from its rounding."""
    eps = torch.finfo(torch.float32).eps
    try:
        return frozenset(simple_fraction(scale * batch if kind == "sum" else scale, eps) for kind, scale in scales)
    except ValueError:
        return None


def _is_as_learned(recorder: Recording, seeds: Sequence[tuple[str, Tensor]], batch: int) -> bool:
    """Return whether sums were divided by how many examples there are, as they were when that was learned."""
    if any(seed.numel() != 1 for _, seed in seeds):
        return False
    found = _factors([(kind, abs(float(seed))) for kind, seed in seeds], batch)
    return found is not None and found <= recorder.learned_factors


def _is_told_by_outputs(recorder: Recording) -> bool:
    """Return whether the loss is one that the model returned, unscaled, and every other part is reduced alike.

    Inside the model its parts may have been scaled, by constants: the comparison of the first batch with its parts has
    shown that their scale does not depend on how many of them there are. In every batch it must be, to the last bit,
    what it was for the few examples of the plan.
    """
    seeds = [*recorder.output_seeds, *recorder.seeds]
    inner = {kind for kind, _ in recorder.inner_seeds}
    kinds = {kind for kind, _ in seeds}
    if not recorder.output_seeds or len(kinds | inner) != 1 or not all(_is_one(seed) for _, seed in seeds):
        return False
    return scales(recorder) <= recorder.scales


def scales(recorder: Recording) -> set[float]:
    """Return the scales of the model's own reductions over examples; NaN for a gradient of several entries."""
    return {abs(float(seed)) if seed.numel() == 1 else math.nan for _, seed in recorder.inner_seeds}


def _is_one(seed: Tensor) -> bool:
    """Return whether a reduction was left unscaled. Its sign says nothing about how many examples there are."""
    return abs(seed.item()) == 1 if seed.numel() == 1 else bool((seed.abs() == 1).all())
