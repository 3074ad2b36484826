"""Sizes that data of the batch decided: how many rows a mask picked, how long the longest sequence is.

The model's own code may not read them, for they would be the same for all examples. PyTorch's may: it compares sizes
and makes room. A tensor knows the dimensions whose size was decided so inside the model (`_free`); as long as no
operation decided any, nobody asks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_packed_sequence

from tacit.gradients.guard import padded_sequences
from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed, same_everywhere
from tacit.gradients.names import POINTWISE, words, writes
from tacit.gradients.nested import mapped, tensors
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import get_frame, without_overrides, without_subclasses, write_count
from tacit.gradients.traced import Traced, mark, opened, plain

SIZES = words(
    """
    shape size numel nelement __len__ stride storage_offset nbytes is_same_size sym_size sym_numel sym_stride
    sym_storage_offset
    """
)
"""Operations that read a tensor's sizes, or what follows from them."""

_ROWS = words("getitem masked_select repeat_interleave _pack_padded_sequence")
_SHAPED = words("new_zeros new_ones new_full new_empty expand repeat tile narrow tensor_split")
_LISTING = words("nonzero argwhere where unique unique_consecutive _unique2 unique_dim bincount one_hot")
UNPACKING = "_pad_packed_sequence"
DECIDING = _ROWS | _SHAPED | _LISTING | {UNPACKING}
"""Operations that may give a size that their arguments' values decide."""

_PARTS = words("unbind split chunk tensor_split vsplit hsplit dsplit")
_INDEXING = words("getitem setitem index_select index_put gather scatter")
_DONE_TO = words("input tensor tensors self")
_RECURRENT = words("lstm gru rnn_tanh rnn_relu")
_OWN_FOLDERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))
_ENTRY = "handle_torch_function"
_OPERATORS = type(torch.ops).__module__


class SizeDecidedByData:
    """Stands in a shape for a size that data decided; whoever makes use of it is refused.

    PyTorch's functions name its class when they refuse it for a number.
    """

    __slots__ = ("_recorder",)

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder

    def __repr__(self) -> str:
        return "?"

    def _refuse(self, *_: Any) -> NoReturn:
        self._recorder.problems.refuse_size("shape")

    __index__ = __int__ = __float__ = __bool__ = __hash__ = __neg__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __divmod__ = _refuse


class Shape(tuple[Any, ...]):
    """The sizes of a tensor, of which data decided some."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if type(found) is SizeDecidedByData:
            found._refuse()
        return found

    def numel(self) -> int:
        return math.prod(self)


def shown(recorder: Recording, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """Return what the model's code sees of a size that PyTorch has read."""
    given = [t for t in (*args, *kwargs.values()) if type(t) is Traced]
    free = {d for t in given for d in t._free}
    if not free or _is_called_by_libraries():
        return out
    if isinstance(out, (tuple, list)) and "stride" not in name:
        return Shape(SizeDecidedByData(recorder) if d in free else n for d, n in enumerate(out))
    dim = kwargs["dim"] if "dim" in kwargs else args[1] if name == "size" else 0
    if name not in ("size", "__len__") or dim % given[0].ndim in free:
        recorder.problems.refuse_size(name)
    return out


def _is_called_by_libraries() -> bool:
    """Return whether code of PyTorch's or the engine's own reads a size, after what brought the reading here."""
    frame = get_frame(3)
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


def before(recorder: Recording, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse to take apart what has as many parts as data decided, or to drop a dimension if there is one only."""
    if name not in _PARTS and name != "squeeze":
        return
    call = Call(name, lambda: None, args, kwargs, None, recorder.batch or 0, [])
    t = call.arg(0, "input", "tensor")
    if recorder.follows(t):
        dim = call.arg(1 if name in ("unbind", "squeeze") else 2, "dim", default=None if name == "squeeze" else 0)
        dims = range(t.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
        if any(d % t.ndim in t._free for d in dims):
            recorder.problems.refuse_size("iteration" if name == "unbind" else name)


def after(
    recorder: Recording, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> None:
    """Say which sizes of an operation's outputs were decided by data."""
    decided = name in DECIDING and _decides(recorder, name, args, kwargs)
    if not (decided or recorder.free) or (writes(func) and name != "setitem") or opened(func) is not None:
        return
    given = tensors((args, kwargs))
    if name == "broadcast_tensors":
        _give_to_all(recorder, out)
    tagged = recorder.scan(args, kwargs)[0]
    call = Call(name, func, args, kwargs, out, recorder.batch or 0, tagged)
    outs = [t for t in tensors(out) if recorder.follows(t) and not any(t is g for g in given)]
    free = [t for t in given if recorder.follows(t) and t._free]  # type: ignore[attr-defined]
    if decided:
        recorder.free = True
        for t in outs:
            t._free = _decided(recorder, call, t)  # type: ignore[attr-defined]
            zero = name == UNPACKING and args[3] == 0
            t._zero_padded = write_count(t) if zero else -1  # type: ignore[attr-defined]
    elif free:
        _pass_on(recorder, call, free, outs)


def told_by_data(recorder: Recording, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """All sizes were decided by data, where an operation was given tensors of the batch for numbers."""
    if name in POINTWISE or name in _INDEXING or not _are_numbers_of_the_batch(recorder, args, kwargs):
        return
    if name in _PARTS:
        recorder.problems.refuse_size(name)
    recorder.free = True
    for t in filter(recorder.follows, tensors(out)):
        t._free = frozenset(range(t.ndim))  # type: ignore[attr-defined]


def _are_numbers_of_the_batch(recorder: Recording, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether tensors of the batch are given for whole numbers, beside what an operation is done to."""
    whole = [t for t in _beside(args, kwargs) if recorder.follows(t) and not plain(t).dtype.is_floating_point]
    return any(plain(t).ndim < 2 for t in whole)


def _beside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return tensors((args[1:], {k: v for k, v in kwargs.items() if k not in _DONE_TO}))


def _give_to_all(recorder: Recording, out: Sequence[Tensor]) -> None:
    """Follow a constant that was made as large as tensors of the batch: every example has the same of it."""
    tags = [t._tag for t in out if recorder.follows(t)]  # type: ignore[attr-defined]
    for t in out if tags else ():
        if not recorder.follows(t) and isinstance(tags[0], Layout) and same_everywhere(t, tags[0].dim):
            mark(t, recorder, tags[0])


def _pass_on(recorder: Recording, call: Call, free: list[Tensor], outs: list[Tensor]) -> None:
    found = _spread(recorder, call, free, outs) if outs else []
    with without_subclasses():
        zero = padded_sequences.stays_zero(call, free)
        reason = _objection(recorder, call, free, outs, found[0] if found else frozenset())
    for t, dims in zip(outs, found):
        t._free, t._zero_padded = dims, write_count(t) if zero else -1  # type: ignore[attr-defined]
    if reason is not None:
        recorder.tag_outputs(call.args[0] if call.name == "setitem" else call.out, Mixed(reason), call.tagged)


def _objection(
    recorder: Recording, call: Call, free: list[Tensor], outs: list[Tensor], after: frozenset[int]
) -> str | None:
    """In the model, to all that may depend on such sizes; in the loss, which may know a mask, to what surely does."""
    if recorder.inside:
        return padded_sequences.objection(call, free, after)
    own = call.name in ("cross_entropy_loss", "nll_loss_nd") and recorder.reduction == "mean"  # of targets that count
    return padded_sequences.objection_to_mean(call, free, outs) if not own else None


def _decides(recorder: Recording, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether it was data of the batch that decided the size of an operation's output."""
    if name == "getitem":
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(_is_mask(recorder, p) or (isinstance(p, slice) and _is_cut_by_data(recorder, p)) for p in parts)
    if name == "repeat_interleave" and len(args) == 1 and "repeats" not in kwargs:
        return True
    if name in _SHAPED or name == "repeat_interleave":
        return any(map(recorder.follows, _beside(args, kwargs)))
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "one_hot":
        classes: int = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        return classes < 1
    return True


def _is_mask(recorder: Recording, part: Any) -> bool:
    return recorder.follows(part) and part.dtype in (torch.bool, torch.uint8)


def _is_cut_by_data(recorder: Recording, part: slice) -> bool:
    return any(recorder.follows(bound) for bound in (part.start, part.stop, part.step))


def _is_length_given(call: Call) -> bool:
    """Return True if the running `pad_packed_sequence` has total_length; by hand, its operation has one above 0."""
    frame = _unpacking()
    return bool(call.args[4] > 0) if frame is None else frame.f_locals["total_length"] is not None


def _unpacking() -> FrameType | None:
    frame: FrameType | None = get_frame(1)
    while frame is not None and frame.f_code is not pad_packed_sequence.__code__:
        frame = frame.f_back
    return frame


def _decided(recorder: Recording, call: Call, out: Tensor) -> frozenset[int]:
    """The rows, where every row has its owner; else all dimensions."""
    if call.name == UNPACKING:
        return frozenset() if out.ndim == 1 or _is_length_given(call) else frozenset([int(call.args[2])])
    tag = out._tag  # type: ignore[attr-defined]
    cut = call.name == "getitem" and not any(_is_mask(recorder, p) for p in tensors(call.args[1]))
    wide = recorder.inside and _is_as_wide_as_the_longest(call.main()) and call.name != "_pack_padded_sequence"
    rows = call.name in _ROWS and isinstance(tag, Layout) and not cut and not wide
    return frozenset([tag.dim] if rows else range(out.ndim))


def _is_as_wide_as_the_longest(t: Any) -> bool:
    """Return whether data decided another size than how many rows there are."""
    return type(t) is Traced and bool(t._free - {t._tag.dim} if isinstance(t._tag, Layout) else t._free)


def _spread(recorder: Recording, call: Call, free: list[Tensor], outs: list[Tensor]) -> list[frozenset[int]]:
    """The dimensions of outputs whose sizes follow from sizes that data decided."""
    if call.name in _RECURRENT:
        return [call.args[0]._free if i == 0 else frozenset() for i in range(len(outs))]
    if call.name in POINTWISE:
        return [frozenset(d + out.ndim - t.ndim for t in free for d in t._free) for out in outs]  # type: ignore[attr-defined]
    try:
        with without_overrides(), torch.no_grad():
            larger = tensors(call.func(*mapped(call.args, _larger), **mapped(call.kwargs, _larger)))
    except Exception:  # whatever an operation says about sizes that it did not expect
        larger = []
    every = tensors(call.out)
    if [t.ndim for t in larger] != [t.ndim for t in every]:
        return [frozenset(range(t.ndim)) if recorder.inside else _rows(t) for t in outs]
    pairs = [(plain(a).shape, b.shape) for a, b in zip(every, larger) if any(a is t for t in outs)]
    return [frozenset(d for d, n in enumerate(now) if n != then[d]) for now, then in pairs]


def _rows(t: Tensor) -> frozenset[int]:
    """A loss's mask picks rows. (Means over these are over as many as each example has, or refused.)"""
    tag = t._tag  # type: ignore[attr-defined]
    return frozenset([tag.dim] if isinstance(tag, Layout) else ())


def _larger(t: Tensor) -> Tensor:
    """A tensor without values that has one more entry wherever data decided how many there are."""
    free = t._free if type(t) is Traced else ()
    sizes = [n + (d in free) for d, n in enumerate(t.shape)]
    return torch.empty(sizes, dtype=t.dtype, device="meta")
