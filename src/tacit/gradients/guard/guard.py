"""The guard: all that the recorder asks about one example's influence on another."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tacit.gradients.guard.batch_rules import propagate
from tacit.gradients.guard.in_place import COUNTING, known, refuse_counting, settle
from tacit.gradients.guard.metadata import refuse_decided_sizes, told
from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Mixed
from tacit.gradients.names import POINTWISE
from tacit.gradients.nested import tensors
from tacit.gradients.problems import EARLIER
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced, mark_like

_DROPPED = (
    "a tensor computed from a batch is used although the model was called on another batch since; call the model on "
    "other data under torch.no_grad() only"
)
_FILLED = {"zeros_like": 0.0, "ones_like": 1.0, "full_like": None}
"""Operations that give every entry one number: this one, or an argument."""


def _note_fill(call: Call) -> None:
    """Note the number that an operation of `_FILLED` has filled its output with."""
    fill = _FILLED[call.name]
    given = call.arg(1, "fill_value") if fill is None else fill
    call.out._filled_with = given if isinstance(given, (int, float)) else None


def _is_filled(t: Traced) -> bool:
    """Return whether all entries are still the public number that they were at first."""
    with without_subclasses():
        return t._filled_with is not None and bool((t == t._filled_with).all())


def _mark_as_before(written: Any, given: Any) -> None:
    """Mark what an evaluated model computed from tensors that it kept: they are of an earlier batch, and so is this."""
    kept = [t for t in tensors(given) if type(t) is Traced]
    for t in tensors(written) if kept else ():
        if type(t) in (Tensor, Traced):
            mark_like(t, kept[0], epoch=kept[0]._epoch)


class BatchGuard:
    """Follows where the examples of a batch lie, and finds what lets one of them influence another."""

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder

    def metadata(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the answer of an operation that reads no values (shapes, types)."""
        return told(self._recorder, name, func, args, kwargs)

    def tag(self, call: Call) -> Any:
        """Return the tag (or one tag per output) of a finished call."""
        if call.name in COUNTING:
            refuse_counting(self._recorder, call.name, call.args, call.kwargs)
        with without_subclasses():  # rules look at shapes only; no need to see them do so
            refuse_decided_sizes(self._recorder, call)
            return propagate(call)

    def tag_written(self, call: Call, out: Any) -> Any:
        """Return the tag of a finished call, and see to what a write in place changed elsewhere."""
        if not known(call.name, POINTWISE):
            self._recorder.problems.refuse_writing(call.name)
        tag = self.tag(call)
        if id(out) not in self._recorder.buffers:
            own = call.name in POINTWISE or call.name == "setitem"
            settle(self._recorder, call.name, out, tag, call.args, call.tagged, own)
        return tag

    def tagged(self, call: Call) -> None:
        """The outputs of a call have their tags."""
        if call.name in _FILLED and len(call.tagged) == 1 and not call.tagged[0][1].by_data:
            _note_fill(call)

    def stale(self, value: Tensor) -> Mixed | None:
        """Return the tag of a tensor that another batch left; None if it is a constant for this one."""
        assert type(value) is Traced
        recorder = self._recorder
        if _is_filled(value):
            return None
        if value.requires_grad:
            raise RuntimeError(EARLIER)
        if value._recorder is not recorder and value._recorder.planned_for is not recorder:
            return None
        dropped = value._recorder is not recorder or value._epoch in recorder.dropped
        return Mixed(_DROPPED if dropped else EARLIER, foreign=True)

    def evaluated(self, out: Any, given: Any) -> None:
        """The model ran between batches: what it made of tensors that it kept is as much of an earlier batch."""
        _mark_as_before(out, given)
