"""Metadata of a batch tensor, without its values: shapes, types, gradients, where it was cut from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tacit.gradients.guard.data_sizes import SIZES, shown
from tacit.gradients.guard.in_place import assign_attribute
from tacit.gradients.layout import Mixed
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import mark, plain

_GRAD = (
    "the `.grad` of a tensor of the batch is what a loss over all examples left there; for gradients with respect to "
    "the batch use torch.autograd.grad with a sum over examples"
)
_BASE = "what a view of the batch was cut from (`._base`) may hold other examples than the view"


def told(
    recorder: Recording, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The answer of an operation of `names.METADATA`."""
    if name == "__set__":
        assign_attribute(recorder, func.__self__.__name__, args[0], args[1])  # type: ignore[attr-defined]
    with without_subclasses():
        out = func(*args, **kwargs)
    if recorder.free and recorder.inside and name in SIZES:
        return shown(recorder, name, args, kwargs, out)
    if name in ("grad", "_grad") and isinstance(out, Tensor) and recorder.follows(args[0]):
        return mark(plain(out).detach(), recorder, Mixed(_GRAD, foreign=True))
    if name == "_base" and isinstance(out, Tensor) and recorder.follows(args[0]) and not recorder.follows(out):
        return mark(plain(out).detach(), recorder, Mixed(_BASE, foreign=True))
    return out
