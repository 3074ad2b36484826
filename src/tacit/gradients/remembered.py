"""Batch rules' decisions, remembered by everything that they depend on.

Most operations of a model come again in every batch with the same arguments. Where examples lie after an operation of
`kinds.Kind.is_decided` follows from the function, its arguments other than tensors, the layouts, shapes and types of
its tensors, and the size of the batch, and from nothing else. A decision is found again only if all of these are the
same: a model that does something else in the next batch is decided about anew. Refusals are never remembered, nor is
anything that a rule did beside giving the output its layout: only an operation that was carried out as it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.layout import Layout
from tacit.gradients.names import words
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced

REMEMBERED = words(
    """
    view reshape flatten unflatten squeeze unsqueeze transpose permute t T mT movedim swapaxes expand select narrow
    getitem sum softmax log_softmax matmul bmm scaled_dot_product_attention contiguous cat stack chunk split unbind
    mean to pad flip repeat cumsum amax amin adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d
    """
)
"""Operations whose batch rules read shapes and layouts, never values, of tensors of the batch."""

BY_SHAPES = words("matmul bmm scaled_dot_product_attention cat stack")
"""Those among them whose rules read no values of other tensors either."""

MOST = 4096
"""Decisions that are kept; all are forgotten when there are more."""

LARGEST_INDEX = 4096
"""Entries of an index that are kept."""

VALUES = frozenset((int, str, type(None), type(...), torch.dtype, torch.device, torch.memory_format, torch.Size))
_PLAIN = frozenset((Tensor, nn.Parameter))


class Form:
    """Where examples lie in a tensor of the batch, its shape and its type: one object for all tensors that agree."""

    __slots__ = ("tag",)

    def __init__(self, tag: Layout) -> None:
        self.tag = tag


def is_regular(tag: Any) -> bool:
    """Return whether a tag is a layout in the examples' own order, which data did not decide."""
    return type(tag) is Layout and tag.owner is None and not tag.by_data


class Decisions:
    """The forms of outputs by all that they follow from."""

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder
        self._forms: dict[Hashable, Form] = {}
        self.found: dict[Hashable, Form | list[Form]] = {}
        self.rules: dict[Hashable, Any] = {}
        """Gradient rules of operations on one tensor of the batch and parameters (`direct`), by what decides them."""
        self._constants: dict[Hashable, list[Tensor]] = {}
        """Indices that decisions depend on, entry by entry."""
        self.indices: list[Tensor] = []
        """Those of the operation at hand."""

    def form(self, value: Traced) -> Form | None:
        """Return the form of a tensor of the batch at hand; None if examples do not lie regularly in it."""
        if value._recorder is not self._recorder or value._epoch != self._recorder.epoch or not is_regular(value._tag):
            return None
        tag = value._tag
        assert isinstance(tag, Layout)
        with without_subclasses():
            key = (tag.dim, tag.inner, value.shape, value.dtype)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = Form(tag)
        value._tag, value._form = form.tag, form
        return form

    def premises(self, kind: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
        """Return all that a decision depends on; None where it depends on more than can be listed.

        A tensor that is not of the batch may be an index, whose values decide: they are kept and compared. The same
        tensor twice may be told apart from two that are alike. That is not remembered (but for functions of single
        entries, where it does not matter), nor is anything about a tensor of another batch or about a trained one.
        """
        recorder = self._recorder
        found: list[Any] = [func, recorder.batch]
        self.indices = []
        epoch, entrywise, seen = recorder.epoch, kind.is_entrywise, list[Traced]()
        left: list[Any] = list(args)
        if kwargs:
            found.append(tuple(kwargs))
            left.extend(kwargs.values())
        for value in left:  # which grows where a value has parts
            of = type(value)
            if of is Traced:
                form = value._form
                if form is None or form.tag is not value._tag or value._epoch != epoch:
                    form = self.form(value)
                elif value._recorder is not recorder:
                    return None
                if form is None:
                    return None
                if seen and not entrywise and (kind.sizes or any(value is other for other in seen)):
                    return None
                found.append(form)
                seen.append(value)
            elif of in VALUES:
                found.append(of if entrywise and of is int else value)
            elif of is float or of is bool:
                found.append(of if entrywise else (of, value))
            elif of is tuple or of is list:
                found.append((of, len(value)))
                left.extend(value)
            elif of is slice:
                found.append(slice)
                left.extend((value.start, value.stop, value.step))
            elif kind.is_direct and of is nn.Parameter:
                found += (value.requires_grad, value.shape, value.dtype)
            elif of in _PLAIN and not value.requires_grad:
                found += (value.shape, value.dtype)
                if not entrywise and not kind.by_shapes:
                    if kind.name != "getitem" or value.is_floating_point() or value.numel() > LARGEST_INDEX:
                        return None
                    self.indices.append(value)
            else:
                return None
        return tuple(found) if seen else None

    def remember_rule(self, key: Hashable, rule: Any) -> None:
        """Remember the gradient rule of an operation."""
        self._bound()
        self.rules[key] = rule

    def _bound(self) -> None:
        if len(self.found) + len(self.rules) >= MOST:
            for table in (self.found, self.rules, self._forms, self._constants):
                table.clear()

    def are_kept(self, key: Hashable, indices: list[Tensor]) -> bool:
        """Return whether indices have the entries with which the decision was made."""
        return all(map(torch.equal, indices, self._constants[key]))

    def remember(self, key: Hashable, out: Any, indices: list[Tensor]) -> None:
        """Remember the layouts of an operation's outputs, if they are regular."""
        form: Form | list[Form] | None
        if type(out) is Traced:
            form = self.form(out)
        elif isinstance(out, (tuple, list)) and all(type(t) is Traced for t in out):
            several = [self.form(t) for t in out]
            form = None if None in several else [each for each in several if each is not None]
        else:
            return
        if form is None:
            return
        self._bound()
        self.found[key] = form
        if indices:
            self._constants[key] = [index.detach().clone() for index in indices]
