"""Metadata of a batch tensor, without its values: shapes, types, gradients, where it was cut from.

Data of the batch can decide sizes: how many rows a mask picked, how long the longest sequence is. The model's own code
may not read them, for they would be the same for all examples; the module that does runs one example at a time.
PyTorch's code may: it compares sizes and makes room.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_packed_sequence

from tacit.gradients.guard.in_place import assign_attribute
from tacit.gradients.guard.indexing import is_bounded_by_data
from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed
from tacit.gradients.libraries import data_independent
from tacit.gradients.names import POINTWISE, words
from tacit.gradients.nested import tensors
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import get_frame, without_subclasses
from tacit.gradients.traced import Traced, mark, plain

_GRAD = (
    "the `.grad` of a tensor of the batch is what a loss over all examples left there; for gradients with respect to "
    "the batch use torch.autograd.grad with a sum over examples"
)
_BASE = "what a view of the batch was cut from (`._base`) may hold other examples than the view"

_SIZES = words(
    """
    shape size numel nelement __len__ stride storage_offset nbytes is_same_size sym_size sym_numel sym_stride
    sym_storage_offset
    """
)
"""Operations that read a tensor's sizes, or what follows from them."""

_LISTING = words("unique unique_consecutive _unique2 unique_dim bincount")
_PARTS = words("unbind split chunk tensor_split")
_SIZED = _LISTING | _PARTS | words("getitem repeat_interleave")
_INDEXING = words("setitem index_select index_put gather scatter scatter_add index_add embedding")
_OWN_FOLDERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))
_ENTRY = "handle_torch_function"
_OPERATORS = type(torch.ops).__module__


def told(
    recorder: Recording, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The answer of an operation of `names.METADATA`."""
    if name == "__set__":
        assign_attribute(recorder, func.__self__.__name__, args[0], args[1])  # type: ignore[attr-defined]
    with without_subclasses():
        out = func(*args, **kwargs)
    if recorder.inside and name in _SIZES:
        for t in (*args, *kwargs.values()):
            tag = t._tag if type(t) is Traced else None
            if not isinstance(tag, Layout) or tag.by_data != "count" or _is_called_by_libraries():
                continue
            dim = kwargs.get("dim", args[-1]) if name == "size" else None
            decided = type(dim) is not int or dim % t.ndim == tag.dim
            if decided and not data_independent.only_validates(recorder.model):
                recorder.problems.refuse_size(name)
        return out
    if name in ("grad", "_grad") and isinstance(out, Tensor) and recorder.follows(args[0]):
        return mark(plain(out).detach(), recorder, Mixed(_GRAD, foreign=True))
    if name == "_base" and isinstance(out, Tensor) and recorder.follows(args[0]) and not recorder.follows(out):
        return mark(plain(out).detach(), recorder, Mixed(_BASE, foreign=True))
    return out


def _is_called_by_libraries() -> bool:
    """Return whether code of PyTorch's or the engine's own reads a size, after what brought the reading here."""
    frame = get_frame(2)
    while frame.f_back is not None and frame.f_code.co_name != "__torch_function__":
        frame = frame.f_back
    while frame.f_back is not None and _brings_readings(frame):
        overridden = frame.f_code.co_name == _ENTRY
        frame = frame.f_back
        if overridden and frame.f_back is not None:
            frame = frame.f_back  # the function that asked whether it is overridden
    return frame.f_code.co_filename.startswith(_OWN_FOLDERS)


def _brings_readings(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return name == _OPERATORS or frame.f_code.co_name in ("__torch_function__", _ENTRY)


def refuse_decided_sizes(recorder: Recording, call: Call) -> None:
    """Refuse sequences that are as wide as the longest of the batch, and in the model all whose size data decided.

    But for the rows that a mask picked: these are known by their layout.
    """
    if call.name == "_pad_packed_sequence":
        if not _is_length_given():
            recorder.problems.refuse_size("pad_packed_sequence")
        return
    if not recorder.inside or (call.name not in _SIZED and all(isinstance(tag, Layout) for _, tag in call.tagged)):
        return  # as most calls are
    if call.name in _LISTING or _takes_sizes_of_data(call) or _takes_rows_apart(call):
        recorder.problems.refuse_size(call.name)


def _takes_sizes_of_data(call: Call) -> bool:
    """Return whether an operation was given quantities of the whole batch for whole numbers (`x[:, :longest]`)."""
    if call.name == "getitem":
        return any(map(is_bounded_by_data, call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)))
    if call.name in POINTWISE or call.name in _INDEXING:
        return False
    if call.name == "repeat_interleave" and len(call.args) == 1 and "repeats" not in call.kwargs:
        return True
    beside = tensors((call.args[1:], {k: v for k, v in call.kwargs.items() if k not in ("input", "tensor", "self")}))
    tags = {id(t): tag for t, tag in call.tagged}
    for t in beside:
        tag = tags.get(id(t))
        whole = t.ndim < 2 and not t.is_floating_point()
        if tag is not None and whole and (not isinstance(tag, Layout) or call.name == "repeat_interleave"):
            return True
    return False


def _takes_rows_apart(call: Call) -> bool:
    """Return whether rows are taken apart of which data decided how many there are."""
    if call.name not in _PARTS or not call.layouts():
        return False
    x, layout = call.first()
    return layout.by_data == "count" and call.dim(1 if call.name == "unbind" else 2, x.ndim) == layout.dim


def _is_length_given() -> bool:
    """Return whether the running `pad_packed_sequence` was given total_length."""
    frame: FrameType | None = get_frame(1)
    while frame is not None and frame.f_code is not pad_packed_sequence.__code__:
        frame = frame.f_back
    return frame is not None and frame.f_locals["total_length"] is not None
