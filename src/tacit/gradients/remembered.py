"""Decisions of batch rules, and gradient rules, remembered by everything that they depend on.

Most operations of a model come again in every batch with the same arguments. Where examples lie after an operation of
`kinds.Kind.is_decided` follows from the function, its arguments other than tensors, the layouts, shapes and types of
its tensors, and the size of the batch, and from nothing else. A decision is found again only if all of these are the
same: a model that does something else in the next batch is decided about anew. Refusals are never remembered, nor is
anything that a rule did beside giving the output its layout: only an operation that was carried out as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layout import Layout
from tacit.gradients.names import words
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced

_LOSSES = """
    cross_entropy_loss nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits
    """

REMEMBERED = words(
    """
    view reshape flatten unflatten squeeze unsqueeze transpose permute t T mT movedim swapaxes expand select narrow
    getitem sum softmax log_softmax matmul bmm scaled_dot_product_attention contiguous cat stack chunk split unbind
    mean to type_as pad flip repeat cumsum amax amin adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d
    """
    + _LOSSES
)
"""Operations whose batch rules read shapes and layouts, never values, of tensors of the batch."""

BY_SHAPES = words("matmul bmm scaled_dot_product_attention cat stack" + _LOSSES)
"""Those among them whose rules read no values of other tensors either. (Losses that were reduced are not regular.)"""

MOST = 4096
"""Decisions that are kept; all are forgotten when there are more."""

LARGEST_INDEX = 4096
"""Entries of an index that are kept."""

VALUES = frozenset((int, str, type(None), type(...), torch.dtype, torch.device, torch.memory_format, torch.Size))


class Form:
    """Where examples lie in a tensor of the batch, its shape and its type: one object for all tensors that agree."""

    __slots__ = ("tag",)

    def __init__(self, tag: Layout) -> None:
        self.tag = tag


def is_regular(tag: Any) -> bool:
    """Return whether a tag is a layout in the examples' own order, which data did not decide."""
    return type(tag) is Layout and tag.owner is None and not tag.by_data


def entries(index: Tensor) -> Hashable | None:
    """Return all there is to know of a constant index; None of one that is too long, or of other constants."""
    if index.is_floating_point() or index.numel() > LARGEST_INDEX:
        return None
    return index.shape, index.dtype, tuple(index.flatten().tolist())


class Decisions:
    """Remember the decision about each operation under its premises.

    `_calls/premises.h` lists the premises and the operations that are not remembered. Without compiled kernels nothing
    is remembered.
    """

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder
        self._forms: dict[Hashable, Form] = {}
        self.found: dict[Hashable, Form | list[Form] | Callable[..., Any]] = {}
        """The forms of outputs, or the gradient rule of an operation on one tensor of the batch and parameters."""

    def form(self, value: Traced) -> Form | None:
        """Return the form of a tensor of the batch at hand; None if examples do not lie regularly in it."""
        tag = value._tag
        if not is_regular(tag):
            return None
        assert isinstance(tag, Layout)
        with without_subclasses():
            key = (tag.dim, tag.inner, value.shape, value.dtype)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = Form(tag)
        value._tag, value._form = form.tag, form
        return form

    def remember(self, key: Hashable, decided: Form | list[Form] | Callable[..., Any]) -> None:
        """Remember a decision."""
        if len(self.found) >= MOST:
            self.found.clear()
            self._forms.clear()
        self.found[key] = decided

    def remember_output(self, key: Hashable, out: Any) -> None:
        """Remember the layouts of an operation's outputs, if they are regular tensors of the batch at hand."""
        several = [out] if type(out) is Traced else out
        if not isinstance(several, (tuple, list)) or not all(map(self._recorder.follows, several)):
            return
        forms = [form for form in map(self.form, several) if form is not None]
        if forms and len(forms) == len(several):
            self.remember(key, forms[0] if several is not out else forms)
