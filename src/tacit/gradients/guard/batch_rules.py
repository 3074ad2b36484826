"""How tags pass through operations that have no trainable argument.

A rule sees the finished call and answers with the tag of its output. An operation without a rule is unknown: while the
plan is made, the module around it is isolated; elsewhere it is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from tacit.gradients.guard import leading_rules, reductions, shape_rules
from tacit.gradients.guard.picked_examples import added, of_singles
from tacit.gradients.guard.shape_rules import is_listing
from tacit.gradients.layers.loss import BY_CLASSES, LOSSES
from tacit.gradients.layers.own_means import own_share
from tacit.gradients.layers.registry import BESIDE, RULES, Call, broadcast, mixes, unknown
from tacit.gradients.layout import Layout, Mixed, Only, Tag, Total, same_everywhere
from tacit.gradients.names import POINTWISE, words
from tacit.gradients.nested import tensors
from tacit.gradients.traced import Traced

__all__ = ["leading_rules", "propagate", "reductions", "shape_rules"]
"""Rooms that register batch rules of operations without parameters."""


_LINEAR = words(
    """
    add sub neg positive rsub clone contiguous to type float double half bfloat16 detach cpu cuda type_as sum
    mean reshape view flatten squeeze unsqueeze stack cat transpose permute t T getitem select unbind expand
    alias requires_grad data retain_grad movedim chunk split
    """
)


_SAME_VALUES = frozenset(["to", "clone", "contiguous", "detach", "cpu", "cuda", "long"])


_SCALING = frozenset(["mul", "div", "true_divide"])


def propagate(call: Call) -> Any:
    """The tag (or one tag per output) of a finished call; None for a result that is the same for any batch."""
    foreign = next((tag for _, tag in call.tagged if isinstance(tag, Mixed) and tag.foreign), None)
    if foreign is not None:
        return foreign
    found = _propagate(call)
    if isinstance(found, (Total, Mixed)):
        own = own_share(call)
        found = found if own is found.own else replace(found, own=own)  # tags are distinguished by identity
    for _, tag in call.tagged:
        if tag.by_data:
            found = _ordered(call, found)
            break
    if call.batch != 1:
        return found
    # A batch of one cannot mix: whatever else a rule objects to, every entry belongs to the one example.
    if isinstance(found, list):
        return [_alone(call, tag, out) for tag, out in zip(found, call.out)]
    if isinstance(call.out, (tuple, list)) and not isinstance(found, Layout):
        return [_alone(call, found, out) for out in call.out]
    return _alone(call, found, call.out) if not isinstance(call.out, (tuple, list)) else found


_OWN_RULE = frozenset(["getitem", "setitem", "index_select", "_pack_padded_sequence", "_pad_packed_sequence"])
"""Operations that put rows in order, or undo it: their rules say what becomes of it."""


def _ordered(call: Call, found: Any) -> Any:
    """The tags of an operation on rows that data has put in order: they stay so, and labels beside are refused."""
    if call.name in _OWN_RULE or isinstance(found, Mixed):
        return found
    if call.batch != 1 and _is_beside_constants(call):
        return mixes(call, BESIDE)
    tags = found if isinstance(found, list) else [found]
    by_data: Any = "count" if any(tag.by_data == "count" for _, tag in call.tagged) else "order"
    kept = [replace(t, by_data=by_data) if isinstance(t, Layout) and t.owner is not None else t for t in tags]
    return kept if isinstance(found, list) else kept[0]


def _is_beside_constants(call: Call) -> bool:
    """Return whether an operation on entries, or a loss, sets rows in the order of data beside those of a constant."""
    classes = call.name in BY_CLASSES
    if not classes and ((call.name not in POINTWISE and call.name not in LOSSES) or call.name in ("to", "type_as")):
        return False
    given = call.args[:2] if classes else tensors((call.args[call.name == "copy" :], call.kwargs))
    constants = [t for t in given if isinstance(t, Tensor) and type(t) is not Traced]
    for t, tag in call.layouts():
        for constant in constants if tag.by_data else ():
            place = tag.dim if classes else constant.ndim - t.ndim + tag.dim
            if 0 <= place < constant.ndim and not same_everywhere(constant, place):
                return True
    return False


def _alone(call: Call, tag: Tag | None, out: Any) -> Tag | None:
    if tag is None or isinstance(tag, Only) or not isinstance(out, Tensor):
        return tag
    if isinstance(tag, Layout) and tag.dim < out.ndim:
        return tag
    alike = [own.dim for t, own in call.layouts() if t.ndim == out.ndim and t.shape[own.dim] == out.shape[own.dim]]
    return Layout(alike[0] if alike else 0, 1) if out.ndim else Total("sum")


def _propagate(call: Call) -> Any:
    exempt = call.name in ("index_select", "_pack_padded_sequence", "_pad_packed_sequence", "getitem")
    looped = added(call)
    if looped is not None:
        return looped
    if not exempt:
        for _, tag in call.tagged:
            if isinstance(tag, Mixed):
                return tag if call.name in _SAME_VALUES else Mixed(tag.reason)
    singles = [tag for _, tag in call.tagged if isinstance(tag, Only)]
    if singles:
        return of_singles(call, singles)
    totals = [t for t, tag in call.tagged if isinstance(tag, Total)]
    if totals and not (exempt and call.layouts()):
        return _after_total(call, len(totals))
    if call.name in POINTWISE and not is_listing(call):
        return broadcast(call)
    known = RULES.get(call.name)
    return unknown(call) if known is None else known(call)


def _after_total(call: Call, totals: int) -> Tag | None:
    first = next(tag for _, tag in call.tagged if isinstance(tag, Total))
    if call.layouts():
        return Mixed(
            f"`{call.name}` combines a quantity of the whole batch (a sum, mean, count or loss over examples) with "
            "single examples; compute it per example, or from public constants"
        )
    if call.name in _LINEAR:
        return first
    if call.name in _SCALING and totals == 1 and (call.name == "mul" or isinstance(call.main(), Traced)):
        factors = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, Tensor) and type(a) is not Traced]
        if any(factor.requires_grad for factor in factors):
            return Mixed(
                f"`{call.name}` scales the loss of the batch by a tensor computed from parameters, and its gradient "
                "for an example needs that example's own loss; scale before the mean: "
                "(factor * F.cross_entropy(output, target, reduction='none') + term).mean()"
            )
        if factors:
            return Mixed(
                f"`{call.name}` scales the loss of the batch by a tensor of unknown origin, which may depend on the "
                "examples (a count of labels, say); compute a mean per example, or scale by a public Python number"
            )
        return first
    if call.name in ("arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like"):
        return None
    return Mixed(
        f"`{call.name}` is a non-linear function of a quantity of the whole batch; the loss must be a sum or mean over "
        "examples of something computed from each example alone"
    )
