"""Memory of the batch in the hands of code that nobody follows, found by what is done to it.

A tensor of the batch loses its tag where PyTorch tells nobody: `torch.Tensor(x)`, `Variable(x)`, `set_`, scripted
functions, nodes of the graph called as functions. Underneath, every operation still comes by the dispatcher with the
memory that it reads. What reads memory of the batch while no followed operation is being carried out is not followed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, _tensor, nn, overrides
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import rnn as layers
from torch.nn.utils import rnn as packing
from torch.utils import _python_dispatch as dispatching

from tacit.gradients import traced
from tacit.gradients.guard import hidden_calls
from tacit.gradients.layout import Layout
from tacit.gradients.names import METADATA, canonical, words, writes
from tacit.gradients.nested import tensors
from tacit.gradients.recording import Recording

UNFOLLOWED = (
    "code that PyTorch shows to nobody reads the batch (torch.Tensor(x), Variable(x), set_, scripted functions, nodes "
    "of the graph called as functions, a tensor of the batch that did not come as an argument); use operations on the "
    "model's inputs themselves"
)
ORDER = (
    "the batch_sizes or the order of a packed sequence are read, which tell of all examples; give lengths as an input "
    "of the model, or pad sequences to a fixed length"
)


def _codes(*functions: Any) -> frozenset[CodeType]:
    return frozenset(function.__code__ for function in functions)


_METHODS = ("permute_hidden", "get_expected_hidden_size", "check_forward_args")
_HELPERS = _codes(layers.apply_permutation, layers._apply_permutation)
_HELPERS |= _codes(*(getattr(kind, n) for kind in (nn.RNNBase, nn.LSTM) for n in _METHODS))
_READERS = _codes(nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward, packing.pad_packed_sequence)
_READERS |= _codes(packing._packed_sequence_init_args)
"""PyTorch's own code that asks how packed sequences lie, and hands on nothing of it but to tensors of the batch."""

_ASKING = words("select _local_scalar_dense index_select getitem device size cpu __int__ dim zeros")
"""What that code does to `batch_sizes` and to indices of the order by themselves."""

_PACKED = words("lstm gru rnn_tanh rnn_relu _pad_packed_sequence")
"""What it does with them to tensors of the batch."""


LOOKED_AT = 2
"""Passes of a model that are looked at."""


class Held(NamedTuple):
    """Part of some memory that nobody may read unfollowed."""

    memory: StorageWeakRef
    first: int
    last: int
    reason: str


class Memory(dispatching.TorchDispatchMode):
    """Looks closely at the plan and at a model's first two passes: every operation is slower then.

    The second shows what a model keeps of the first. Later batches pay nothing.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while a mode is on; PyTorch would put frames of its own in between

    def __init__(self, recorder: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._passes = 0
        """How many came to an end in which nothing was found."""
        self._held: dict[int, list[Held]] = {}
        """By where memory begins, what of it is the batch's, or was an earlier one's and is kept by somebody."""
        self._working: set[int] = set()
        """Threads in which the engine is at work on tensors of the batch."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": {}, "_working": set()}  # memory is not watched in a copy of the model

    # -- when --------------------------------------------------------------------------------------------------------

    def put(self, inputs: Any) -> None:
        """A pass begins with these tensors of the batch."""
        if self._passes >= LOOKED_AT or self._recorder.sharded:
            return
        self._held = {begin: held for begin in self._held if (held := self._found(begin))}
        for t in tensors(inputs):
            if self._recorder.follows(t) and not _is_one_for_all(t):
                self.hold(t)
        for packed in _packed(inputs):
            self._hold_order(packed[1:])
        self._recorder.memory = self
        self._working.discard(get_ident())
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """A pass with gradients came to its end, and nothing was found: one that is refused is looked at again."""
        self._passes += 1

    def remove(self) -> None:
        """Wherever it lies among the modes of this thread: somebody may have been interrupted in a `with` block."""
        if self._recorder.memory is None:
            return
        above = []
        if any(mode is self for mode in dispatching._get_current_dispatch_mode_stack()):
            while (mode := dispatching._get_current_dispatch_mode()) is not self:
                above.append(dispatching._pop_mode())
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            dispatching._push_mode(mode)
        self._recorder.memory = None

    # -- what is followed --------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, value: bool = True) -> Iterator[None]:
        """The engine is at work on tensors of the batch, or has handed them to code that it follows."""
        thread, change = get_ident(), {True: self._working.add, False: self._working.discard}
        before = thread in self._working
        change[value](thread)
        try:
            yield
        finally:
            change[before](thread)

    def carry_out(self, recorder: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on tensors of the batch, which holds what comes of it."""
        given = tensors((args, kwargs))
        others = [t for t in given if not recorder.follows(t)]
        unknown = [t for t in others if type(t) is not traced.Traced or t._recorder is not recorder]
        self.look(canonical(func), unknown, _ASKING | _PACKED)
        with self.working():
            constants = [_range(t) for t in others]
            out = recorder.handle(func, args, kwargs)
            for t in filter(recorder.follows, [*tensors(out), *(given if writes(func) else ())]):
                if writes(func) or not (_is_one_for_all(t) or any(_meet(_range(t), c) for c in constants)):
                    self.hold(t)  # not what was a constant and is one to others: a mask that was expanded
            if canonical(func) == "_pack_padded_sequence":
                self._hold_order(out[1:])
        return out

    def hold(self, t: Tensor, reason: str = UNFOLLOWED) -> None:
        found = _range(t)
        if found is None:
            return
        with torch._C.DisableTorchFunction():
            memory = StorageWeakRef(t.untyped_storage())  # type: ignore[no-untyped-call]
        for begin in {*found[:2]}:  # memory that comes back by DLPack begins with the tensor that left
            first, last, apart = *found[1:], list[Held]()
            for held in self._found(begin):
                if held.first <= last and first <= held.last:
                    first, last = min(first, held.first), max(last, held.last)
                else:
                    apart.append(held)
            self._held[begin] = [*apart, Held(memory, first, last, reason)]

    def _found(self, begin: int) -> list[Held]:
        return [h for h in self._held.get(begin, ()) if not h.memory.expired()]  # type: ignore[no-untyped-call]

    def _hold_order(self, order: Any) -> None:
        for t in tensors(order):
            if not self._recorder.follows(t):
                self.hold(t, ORDER)

    # -- what is not -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.look(getattr(func, "_opname", str(func)), (args, kwargs))
        return func(*args, **(kwargs or {}))

    def look(self, name: str, value: Any, asking: frozenset[str] = _ASKING) -> None:
        """Somebody does something to these values, which are not followed."""
        if get_ident() in self._working:
            return
        for found in filter(None, map(_range, _memories(value))):
            for held in self._found(found[0]):
                if not _meet(found, (found[0], held.first, held.last)):
                    continue
                allowed = name in asking and _is_asked_by_pytorch() if held.reason is ORDER else name in METADATA
                if not allowed:
                    self._recorder.problems.add(held.reason)


def _is_asked_by_pytorch() -> bool:
    """Return whether the code that handles packed sequences is what does something."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (_brings(frame.f_code) or frame.f_code in _HELPERS):
        frame = frame.f_back
    return frame is not None and frame.f_code in _READERS


def _brings(code: CodeType) -> bool:
    """Whether code only brings an operation here: the engine's, PyTorch's, or a mode's of the engine or the caller."""
    return code.co_filename in _BETWEEN or code.co_name == "__torch_function__"


_BETWEEN = (__file__, hidden_calls.__file__, traced.__file__, overrides.__file__, _tensor.__file__)
"""Files whose code brings an operation here."""


def _range(t: Any) -> tuple[int, int, int] | None:
    """Return where the memory of a tensor or storage begins, and its first byte and the one after its last."""
    with torch._C.DisableTorchFunction():
        if isinstance(t, torch.UntypedStorage):
            begin, first, length = t.data_ptr(), t.data_ptr(), t.nbytes()
        elif t.is_nested or not torch._C._has_storage(t) or isinstance(t, FakeTensor) or torch._is_functional_tensor(t):
            return None
        else:
            begin, first = t.untyped_storage().data_ptr(), t.data_ptr()
            whole = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride()))
            length = whole * t.element_size() if t.numel() else 0
    return (begin, first, first + length) if begin and length else None


def _is_one_for_all(t: Any) -> bool:
    """Whether every example has the same entries, in the same memory: a constant that was expanded before the model."""
    with torch._C.DisableTorchFunction():
        tag = t._tag  # a number has no batch dimension, also where a batch with nobody in it gave it a layout
        return isinstance(tag, Layout) and tag.dim < t.ndim and t.shape[tag.dim] > 1 and not t.stride(tag.dim)


def _meet(a: tuple[int, int, int] | None, b: tuple[int, int, int] | None) -> bool:
    return a is not None and b is not None and a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _memories(value: Any) -> list[Any]:
    """Every tensor and every storage in a nested value."""
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _memories(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _memories(v)]
    return [value] if isinstance(value, (Tensor, torch.UntypedStorage)) else []


def _packed(value: Any) -> list[packing.PackedSequence]:
    if isinstance(value, packing.PackedSequence):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [p for v in values for p in _packed(v)]
