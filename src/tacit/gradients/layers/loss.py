"""Loss functions: their tags, and means over examples taken of the examples' own losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import own_sums
from tacit.gradients.layers.loss_mean import averaged, mean_of_own_means, mean_of_sum, tell_of_own_means
from tacit.gradients.layers.own_means import mean_of_quotients
from tacit.gradients.layers.registry import ALWAYS, Call, bound, layout_of, mixes, operation, pairs, rule
from tacit.gradients.layout import Layout, Mixed, Tag, Total, by_example, owners, uneven
from tacit.gradients.names import canonical
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import mark, opened, plain

LOSSES = {
    "cross_entropy_loss": 3,
    "nll_loss_nd": 3,
    "nll_loss": 3,
    "mse_loss": 2,
    "l1_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
    "kl_div": 2,
    "soft_margin_loss": 2,
    "hinge_embedding_loss": 3,
    "cosine_embedding_loss": 4,
    "margin_ranking_loss": 4,
    "triplet_margin_loss": 7,
    "multi_margin_loss": 5,
    "multilabel_margin_loss": 2,
    "poisson_nll_loss": 5,
}
"""Losses, and the place of the argument that says how they are reduced."""


_FEATURES = {
    "cosine_embedding_loss": 2,
    "triplet_margin_loss": 3,
    "multi_margin_loss": 1,
    "multilabel_margin_loss": 2,
}
"""How many leading arguments have features in their last dimension, over which the loss combines."""

BY_CLASSES = frozenset(["cross_entropy_loss", "nll_loss_nd", "nll_loss"])
"""Losses of [examples, classes, …]."""


@rule(" ".join(LOSSES))
def _loss(call: Call) -> Tag:
    """Every argument's entry for a row must be the same example's: the row's loss is computed from all of them."""
    found = _by_classes(call) if call.name in BY_CLASSES else _by_rows(call)
    reduction = call.arg(LOSSES[call.name], "reduction", default=1)
    if isinstance(found, Mixed) or reduction == 0:
        return found
    if reduction == 1 and uneven(found, call.batch):
        return mixes(call, "takes a mean over a number of rows that depends on the examples; use reduction='sum'")
    return Total("mean" if reduction == 1 else "sum")


def _by_rows(call: Call) -> Layout | Mixed:
    """Losses of entries at the same (broadcast) position, or of rows of features: the unreduced loss's layout."""
    featured = _FEATURES.get(call.name, 0)
    given = [*call.args, *call.kwargs.values()]
    rank = max(t.ndim for t in given if isinstance(t, Tensor)) - (featured > 0)
    leading = [call.arg(i, *names) for i, names in enumerate(_NAMES[:featured])]
    found: Layout | None = None
    for t, layout in call.layouts():
        last = t.ndim - any(t is a for a in leading)
        here = layout.at(rank - last + layout.dim)
        if layout.dim >= last or (found is not None and (found.dim != here.dim or not found.same_order(here))):
            return pairs(call)
        found = here
    assert found is not None
    return found


_NAMES = (("input", "input1", "anchor", "self"), ("target", "input2", "positive"), ("negative",))


def _by_classes(call: Call) -> Layout | Mixed:
    """Losses of [examples, classes, …] against [examples, …] (class numbers) or the same shape (probabilities)."""
    x, target = call.arg(0, "input", "self"), call.arg(1, "target")
    found: Layout | None = None
    for t, layout in call.layouts():
        if t is not x and t is not target:
            return mixes(call, "has class weights that were computed from examples")
        dim = layout.dim
        if t is x or t.is_floating_point():  # the classes come second, or first where there is nothing else
            if dim == (1 if t.ndim > 1 else 0):
                return mixes(call, "expects the examples in the first dimension")
            dim -= dim > 1
        here = layout.at(dim)
        if found is not None and (found.dim != dim or not found.same_order(here)):
            return pairs(call)
        found = here
    assert found is not None
    return found


@rule("ctc_loss")
def _ctc(call: Call) -> Tag:
    x = call.arg(0, "log_probs")
    found: Layout | None = None
    for t, layout in call.layouts():
        if t is call.arg(1, "targets") and t.ndim == 1:
            own = owners(layout, call.batch, t.numel(), t.device)
            if not _is_one_after_the_other(own, call.arg(3, "target_lengths"), call.batch):
                return mixes(call, "was given targets one after the other that are not the examples' own")
            continue
        if (t is x and (t.ndim != 3 or layout.dim != 1)) or (t is not x and layout.dim != 0) or layout.inner != 1:
            return mixes(call, "expects log-probabilities as [time, examples, classes], all else with examples first")
        if found is not None and not found.same_order(layout):
            return pairs(call)
        found = layout.at(0)
    assert found is not None
    reduction = call.arg(5, "reduction", default=1)
    if reduction == 0:
        return found
    if reduction == 1 and uneven(found, call.batch):
        return mixes(call, "takes a mean over a number of rows that depends on the examples; use reduction='sum'")
    return Total("mean" if reduction == 1 else "sum")


def _is_one_after_the_other(owner: Tensor, lengths: Any, batch: int) -> bool:
    """Return whether each example's targets have its length, and come in the order of the examples."""
    counts = torch.as_tensor(plain(lengths), device=owner.device)
    ids = torch.arange(batch, device=owner.device)
    return counts.shape == (batch,) and torch.equal(owner, ids.repeat_interleave(counts))


@operation(" ".join(name for name in LOSSES if name not in BY_CLASSES), ALWAYS)
def reduced(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A mean over examples is taken of the examples' own losses, so that no gradient contains their number."""
    place, given = LOSSES[canonical(func)], list(args)
    if (body := opened(func)) is not None:
        return body(*args, **kwargs)
    if (given[place] if len(given) > place else kwargs.get("reduction", 1)) != 1 or not recorder.batch:
        return recorder.carry_out(func, args, kwargs)
    if len(given) > place:
        given[place] = 0
    each = func(*given, **(kwargs if len(given) > place else {**kwargs, "reduction": 0}))
    layout = layout_of(recorder, each)
    if layout is None or (uneven(layout, recorder.batch) and recorder.reduction == "sum"):
        return recorder.carry_out(func, args, kwargs)  # refused, with the loss's own reason
    if not each.requires_grad:
        return each.mean()
    return (
        mean_of_own_means(recorder, each, layout)
        if uneven(layout, recorder.batch)
        else averaged(recorder, each, layout)
    )


@operation("div true_divide", ALWAYS)
def divide(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A loss divided by a count over the batch is a mean of the examples' own means (see `own_means`)."""
    found = mean_of_quotients(*args) if len(args) == 2 and not kwargs and recorder.reduction != "sum" else None
    if found is None:
        return recorder.carry_out(func, args, kwargs)
    tell_of_own_means()
    return found


@operation("ctc_loss", ALWAYS)
def ctc_loss(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """As `reduced`; the mean of this loss divides each example's by the length of its target first."""
    names = "log_probs targets input_lengths target_lengths blank reduction zero_infinity"
    given = bound(names, args, kwargs, blank=0, reduction=1, zero_infinity=False)
    body = opened(func)
    if body is not None:
        return body(*args, **kwargs)
    if recorder.batch == 0:  # which PyTorch has no such loss for
        return given[0].sum((0, 2)) if given[5] == 0 else given[0].sum()
    if given[5] != 1 or not recorder.batch:
        return recorder.carry_out(func, args, kwargs)
    each = recorder.carry_out(func, (*given[:5], 0, given[6]), {})
    layout = layout_of(recorder, each)
    if layout is None or uneven(layout, recorder.batch):
        return recorder.carry_out(func, args, kwargs)
    lengths = given[3] if isinstance(given[3], Tensor) else torch.tensor(given[3])
    return (each / lengths.to(each.device).clamp_min(1)).mean()


@operation("kl_div", ALWAYS)
def kl_div(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`batchmean` is a mean over examples that PyTorch spells as a sum divided by a number."""
    if func is not torch.nn.functional.kl_div:
        return reduced(recorder, func, args, kwargs)
    body = opened(func)
    assert body is not None
    given = dict(zip(("input", "target", "size_average", "reduce", "reduction", "log_target"), args)) | kwargs
    if given.get("reduction", "mean") != "batchmean":
        return body(*args, **kwargs)
    each = body(**{**given, "reduction": "none"})
    layout = each._tag
    if isinstance(layout, Layout) and layout.dim == 0 and layout.owner is None:
        return each.flatten(1).sum(1).mean() if each.ndim > 1 else each.mean()
    return body(*args, **kwargs)


@operation("cross_entropy_loss nll_loss_nd", ALWAYS)
def cross_entropy(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A mean over the targets that are not ignored divides by a number that depends on other examples.

    It is taken as the mean over examples of each one's own (weighted) mean, which is what one example alone would have,
    and the same whenever every example has as many targets. The decision is the same for every batch, whether or not
    targets are ignored in it. With class weights and one target for each example a mean of its own would lose the
    weights: that is refused unless the mean is declared.
    """
    names = "input target weight reduction ignore_index label_smoothing"
    given = bound(names, args, kwargs, reduction=1, ignore_index=-100, label_smoothing=0.0)
    x, target, weight, reduction, ignore, smoothing = given
    tagged, _ = recorder.scan(args, kwargs)
    layout = layout_of(recorder, x)
    with without_subclasses():
        hard = isinstance(target, Tensor) and not target.is_floating_point()
        targets = target.numel() if hard else 0
    if reduction == 1 and layout is not None and recorder.batch:
        rows = layout.owner is not None and uneven(layout, recorder.batch)
        declared = recorder.reduction == "mean"
        several = hard and targets > recorder.batch
        if (declared and hard) or (recorder.reduction is None and several) or (rows and recorder.reduction != "sum"):
            if several or rows:
                tell_of_own_means()
            ce = func.__name__ == "cross_entropy_loss"
            each = func(x, target, weight, 0, ignore, smoothing) if ce else func(x, target, weight, 0, ignore)
            per_layout = each._tag
            if not isinstance(per_layout, Layout):
                return each.sum()  # refused already
            return _mean_of_own_means(recorder, each, per_layout, plain(target) != ignore, target, weight)
        if rows or (hard and (weight is not None or several)):
            reason = (
                "the mean of this loss divides by the number (or weight) of the targets that count, which depends on "
                "all examples; weight each example's own loss instead: (weight[target] * F.cross_entropy(output, "
                "target, reduction='none')).mean()"
            )
            recorder.problems.add(reason)
            tagged = [(t, Mixed(reason)) for t, _ in tagged]
        elif hard and (total := _summed(recorder, func, given, tagged)) is not None:
            return mean_of_sum(recorder, total, x, layout, targets // recorder.batch)
    if recorder.batch and not any(isinstance(tag, Mixed) for _, tag in tagged):
        return reduced(recorder, func, args, kwargs)
    with without_subclasses():
        out = func(*args, **kwargs)
    return recorder.finish(func.__name__, func, args, kwargs, out, tagged)


def _mean_of_own_means(
    recorder: Recording, each: Tensor, layout: Layout, counted: Tensor, target: Tensor, weight: Tensor | None
) -> Tensor:
    """The mean over examples of each one's own (weighted) mean of its losses where they are counted."""
    assert recorder.batch is not None
    batch, losses = recorder.batch, plain(each)
    valid = counted.to(torch.promote_types(losses.dtype, torch.float32))
    if weight is not None:
        valid = valid * weight[plain(target).clamp(0, weight.numel() - 1)]
    if layout.dim == 0 and layout.owner is None and layout.inner * batch == len(losses):
        counts = own_sums(valid.reshape(batch, -1), 1).clamp_min_(1e-12)
        shares = losses.reshape(batch, -1) * counts.reciprocal_().unsqueeze(1)
    else:
        counts = own_sums(by_example(valid, layout, batch).reshape(batch, -1), 1).clamp_min_(1e-12)
        ids = owners(layout, batch, losses.shape[layout.dim], losses.device)
        shape = [1] * losses.ndim
        shape[layout.dim] = -1
        shares = losses * counts.reciprocal_()[ids].view(shape)
    if shares.requires_grad:
        return averaged(recorder, shares, layout, own=1)
    return mark(shares, recorder, layout).sum() / batch


def _summed(recorder: Recording, func: Any, given: list[Any], tagged: list[tuple[Tensor, Tag]]) -> Tensor | None:
    """The sum of cross-entropies in float32 or better of rows in the order of the examples, or None."""
    x, target, weight, _, ignore, smoothing = given
    call = Call(canonical(func), func, tuple(given), {}, None, recorder.batch or 0, tagged)
    if len(call.layouts()) != len(tagged):
        return None
    with without_subclasses():
        if x.dtype not in (torch.float32, torch.float64) or not x.requires_grad or not torch.is_grad_enabled():
            return None
        layout = _by_classes(call)
        if not isinstance(layout, Layout) or layout.owner is not None:
            return None
        more = (smoothing,) if func.__name__ == "cross_entropy_loss" else ()
        total: Tensor = func(x, target, weight, 2, ignore, *more)
        return total
