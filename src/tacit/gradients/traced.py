"""A tensor that knows which example its entries belong to.

The model's inputs enter as `Traced`; every operation on one arrives at `__torch_function__`, so the engine sees each
operation that involves data and needs no global state, no module classes and no wrapped model.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layout import Tag
from tacit.gradients.nested import mapped
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import get_frame, set_eval_frame, without_subclasses


class Traced(torch.Tensor):
    """An ordinary tensor with a tag; it behaves as one in every operation."""

    _recorder: Recording
    _tag: Tag
    _epoch: int
    _form: Any = None
    """The form that `remembered` keeps for it; void where the tag is another."""
    _entered: bool = False
    """True if this is a batch as it came, a row for each example, nothing done to it."""
    _filled_with: float | None = None
    """The public number that all entries were at first, where no size was decided by data."""

    def as_subclass(self, cls: Any) -> Any:
        """PyTorch does not show this one; the model's code gets a tensor that is followed all the same."""
        recorder: Recording | None = getattr(self, "_recorder", None)
        if recorder is None or not recorder.inside or _is_own(get_frame(1)):
            return super().as_subclass(cls)
        if cls is not torch.Tensor:
            recorder.problems.refuse_reading("as_subclass")
        return mark_like(plain(self), self) if recorder.follows(self) else plain(self)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return follow(func, types, args, kwargs)


def follow(
    func: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    key: Any = None,
) -> Any:
    """Hand an operation on tensors of the batch to its recorder; ``key`` is what to remember its decision by."""
    kwargs = kwargs or {}
    recorder: Recording | None = getattr(args[0], "_recorder", None) if args and type(args[0]) is Traced else None
    if recorder is None or not recorder.active:
        recorder = _find(args) or _find(tuple(kwargs.values()))
    if recorder is None:
        with without_subclasses():
            return func(*args, **kwargs)
    # Inside a compiled function the compiler would trace the engine itself, and all that it keeps between calls.
    compiler = set_eval_frame(None)
    try:
        return recorder.handle(func, args, kwargs, key)
    finally:
        if compiler is not None:
            set_eval_frame(compiler)


def _is_own(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("tacit.")


def _find(args: Any) -> Recording | None:
    for arg in args:
        if type(arg) is Traced:
            recorder: Recording | None = getattr(arg, "_recorder", None)
            if recorder is not None and not recorder.active:
                recorder = recorder.planned_for  # a tensor that was kept from the plan
            if recorder is not None and recorder.active:
                return recorder
        elif isinstance(arg, (tuple, list)):
            found = _find(arg)
            if found is not None:
                return found
    return None


def mark(t: Tensor, recorder: Recording, tag: Tag) -> Tensor:
    """Tag a tensor made by the engine in place (its class changes, its storage and graph do not)."""
    if type(t) is not Traced:
        if type(t) is not torch.Tensor:
            return t
        t.__class__ = Traced
    t._recorder, t._tag, t._epoch, t._entered = recorder, tag, recorder.epoch, False  # type: ignore[attr-defined]
    return t


def mark_like(t: Tensor, like: Traced, epoch: int | None = None) -> Tensor:
    """Tag an alias or a copy, of the batch at hand or the one of ``epoch``; without a graph it keeps none alive."""
    tag: Any = like._tag
    if getattr(tag, "own", None) is not None and not t.requires_grad:
        tag = replace(tag, own=None)
    found = mark(t, like._recorder, tag)
    found._epoch = like._recorder.epoch if epoch is None else epoch  # type: ignore[attr-defined]
    return found


def plain(value: Any) -> Any:
    """The same tensor without its tag (an alias; the graph is shared)."""
    if type(value) is Traced:
        with without_subclasses():
            return torch.Tensor.as_subclass(value, torch.Tensor)
    return mapped(value, plain) if isinstance(value, (tuple, list, dict)) else value


_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@cache
def _globals_without_checks(module_globals: int, holder: _Holder) -> dict[str, Any]:
    return {**holder.globals, **dict.fromkeys(_CHECKS, lambda *_: False)}


class _Holder:
    """Hashes by identity of a module's globals, so that one copy serves all its functions."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.globals = namespace

    def __hash__(self) -> int:
        return id(self.globals)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Holder) and other.globals is self.globals


@cache
def opened(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A Python-level torch function with its own override check removed, so that its *inner* operations are seen.

    `F.multi_head_attention_forward`, `F.layer_norm`, `torch.einsum` and the like ask once whether an argument overrides
    them and otherwise call simpler operations; running their body lets one rule per simple operation serve them all.
    """
    if not isinstance(func, types.FunctionType) or "super" in func.__code__.co_names:
        return None  # a method that defers to its own C implementation would only come back here
    if not any(name in func.__code__.co_names for name in _CHECKS):
        return None
    holder = _Holder(func.__globals__)
    copy = types.FunctionType(
        func.__code__,
        _globals_without_checks(id(func.__globals__), holder),
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
