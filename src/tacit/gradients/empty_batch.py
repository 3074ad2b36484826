"""Batches without examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layout import Layout
from tacit.gradients.names import canonical
from tacit.gradients.nested import mapped, tensors
from tacit.gradients.recording import Recording
from tacit.gradients.tap import Tap
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark


def run_empty(
    recorder: Recording, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
) -> Any:
    """No example, no gradient: run without the parameters' graph, but let the loss have one to go back through."""
    if canonical(func) in ("view", "reshape"):
        args = _measured(args)
    with without_subclasses():
        args, kwargs = mapped(args, _without_graph), mapped(kwargs, _without_graph)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:  # Fourier transforms of nothing, say
            try:
                out, trained = _from_shapes(func, args, kwargs), True
            except RuntimeError:
                raise error from None

    def joined(t: Tensor) -> Tensor:
        if trained and t.is_floating_point() and not t.requires_grad and torch.is_grad_enabled():
            t = Tap.apply(recorder.anchor, t, lambda grad: None)  # type: ignore[no-untyped-call]
        return mark(t, recorder, Layout(0, recorder.rows))

    return mapped(out, joined)


def _measured(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a reshape with -1 replaced by what it is when examples are there: PyTorch does not say for none."""
    old, new = args[0].shape, list(args[1] if isinstance(args[1], (tuple, list)) else args[1:])
    if -1 not in new or 0 not in new:
        return args
    rest = math.prod(size for size in new if size > 0)
    new[new.index(-1)] = math.prod(size for size in old if size > 0) // rest
    return (args[0], tuple(new))


@torch.no_grad()
def _from_shapes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return nothing in the shapes that an operation gives one and two examples of zeros."""

    def given(many: int) -> Any:
        def rows(t: Tensor) -> Tensor:
            return t if t.numel() else t.new_zeros([many if size == 0 else size for size in t.shape])

        return func(*mapped(args, rows), **mapped(kwargs, rows))

    one, two = given(1), given(2)
    sizes = iter([t.shape for t in tensors(two)])

    def without_rows(t: Tensor) -> Tensor:
        return t.new_zeros([a if a == b else 0 for a, b in zip(t.shape, next(sizes))])

    return mapped(one, without_rows)


def _without_graph(t: Tensor) -> Tensor:
    return t.detach() if type(t) is not Traced and t.requires_grad else t
