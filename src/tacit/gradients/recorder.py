"""The core: sees every operation on the batch, and hands it to its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.call_sites import site
from tacit.gradients.capture import Capture
from tacit.gradients.empty_batch import run_empty
from tacit.gradients.factors.parameter_uses import graph_leaves
from tacit.gradients.kinds import Kind, kind_of, known
from tacit.gradients.layers.generic import generic
from tacit.gradients.layers.pointwise import lift, penalised, with_one_parameter
from tacit.gradients.layers.registry import ALWAYS, FROZEN, OPERATIONS, Call, Operation
from tacit.gradients.layout import Layout, Mixed, Only, Tag, Total, same_everywhere
from tacit.gradients.libraries import data_independent
from tacit.gradients.names import EXPORTS, NUMBERS, PRINTS, READS, SHOWN, tells_no_number, writes
from tacit.gradients.nested import detached, tensors
from tacit.gradients.problems import EARLIER, FAILED, TRANSFORMED, CannotCut
from tacit.gradients.recording import Guard, Recording, Reduction
from tacit.gradients.remembered import Decisions
from tacit.gradients.torch_internals import get_frame, in_transform, without_subclasses
from tacit.gradients.traced import Traced, mark_like, plain

COMPLEX = frozenset(["linear", "matmul", "rmatmul", "mm", "bmm", "mv", "dot", "einsum", "addmm", "baddbmm", "addmv"])
"""Operations whose rules are right for complex parameters too; others are differentiated by `torch.func`."""

_REASONS: dict[type, str] = {
    Total: "a mean or sum over examples is fed to trainable parameters",
    Only: "examples are fed to trainable parameters one at a time; put them together first (torch.stack)",
}
"""Why a tensor of the batch cannot be fed to parameters."""


def _is_in_order(shared: list[Tensor], args: tuple[Any, ...]) -> bool:
    """Return whether `index_select` puts a shared tensor that is the same in all places into another order."""
    return len(args) == 3 and args[0] is shared[0] and same_everywhere(shared[0], args[1])


class Recorder(Capture):
    """Follows one batch at a time through the model and gathers each parameter's contributions."""

    def __init__(self, model: nn.Module, reduction: Reduction | None, guarded_by: Callable[[Recording], Guard]) -> None:
        super().__init__(model, reduction)
        self.guard = guarded_by(self)
        self.decisions = Decisions(self)
        self._carried_out: Any = None
        """The output of the last operation that was carried out as it is, by no rule of its own."""

    def reset(self) -> None:
        """Forget the batch, its last tensor too."""
        super().reset()
        self._carried_out = None

    # -- operations --------------------------------------------------------------------------------------------------

    def handle(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Any = None,
        *,
        own_rule: bool = True,
    ) -> Any:
        kind = known(func) or kind_of(func)
        frame: Any = get_frame(2)
        while frame.f_code.co_name == "__torch_function__":  # of modes, which are there in some passes only
            frame = frame.f_back
        self.trail += (func, site(frame.f_code, frame.f_lasti))
        if self.isolating:
            self._refuse_isolated(args, kwargs)
        if kind.tells and args and type(args[0]) is Traced and not args[0]._tag.by_data:
            with without_subclasses():
                return func(*args, **kwargs)
        if kind.writes and args and type(args[0]) is Traced:
            args[0]._form = None  # its shape may become another
        if kind.is_metadata:
            return self.guard.metadata(kind.name, func, args, kwargs)
        rule = self._direct_rule(kind.name, args, kwargs) if key is not None and kind.is_direct else None
        self._carried_out, out = None, None
        try:
            if rule is not None:
                out = rule(self, func, args, kwargs)
            if out is None:
                rule, out = None, self._operate(kind, func, args, kwargs, own_rule)
        except (RuntimeError, IndexError):
            self.note_failure()
            raise
        if rule is not None:
            self.decisions.remember(key, rule)
        elif key is not None and out is self._carried_out and not self.scan(args, kwargs)[1]:
            self.decisions.remember_output(key, out)
        return out

    def _direct_rule(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        """Return the rule of an operation on one tensor of the batch and parameters (`kinds.Kind.is_direct`)."""
        others = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and type(v) is not Traced]
        if any(t.is_complex() for t in others):
            return None
        trained = any(t.requires_grad for t in others)
        rule: Operation | None = OPERATIONS.get(name, with_one_parameter) if trained else FROZEN.get(name)
        return rule

    def note_failure(self) -> None:
        """An operation on the batch has failed: told only if the model catches the error and goes on."""
        if self.inside:
            self.problems.add(FAILED)

    def _operate(
        self, kind: Kind, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], own_rule: bool
    ) -> Any:
        name = kind.name
        if kind.is_special:
            answer = self._special(name, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        if kwargs and kwargs.get("out") is not None and self.scan(args, kwargs)[0]:
            self.problems.refuse_writing(name)
        take_over = ALWAYS.get(name) if own_rule else None
        if take_over is not None:
            return take_over(self, func, args, kwargs)
        if kind.body is not None and not (kind.is_simple and len(args) == 1 and not kwargs.get("inplace")):
            calls = len(self.trail)
            out = kind.body(*args, **kwargs)
            del self.trail[calls:]  # which are not made once the call is decided about
            return out
        tagged, shared = self.scan(args, kwargs)
        if self.batch == 0:
            return run_empty(self, func, args, kwargs, bool(shared))
        if shared and torch.is_grad_enabled():
            return self._trainable(kind, func, args, kwargs, tagged, shared)
        frozen = FROZEN.get(name) if own_rule else None
        if frozen is not None:
            return frozen(self, func, args, kwargs)
        with without_subclasses():
            out = func(*args, **kwargs)
        self._carried_out = out
        return self.finish(name, func, args, kwargs, out, tagged)

    def _special(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation that copies, shows or reads values; NotImplemented if it is as any other here."""
        if name in EXPORTS and self.inside and type(args[0]) is Traced:
            self.problems.refuse_reading(name)
        if name in SHOWN:
            if name in PRINTS and self.inside:
                if data_independent.only_validates(self.model):
                    return "?"  # in the text of an error
                self.problems.refuse_printing(name)
            shown = func(plain(args[0]), *args[1:], **kwargs)
            copied = isinstance(shown, Tensor) and type(args[0]) is Traced
            return mark_like(shown, args[0], epoch=args[0]._epoch) if copied else shown
        if args and name == "detach" and self._over(args[0]):
            return mark_like(plain(args[0]).detach(), args[0], epoch=args[0]._epoch)
        if args and name in READS and not self.inside and self._over(args[0]):
            return func(plain(args[0]).detach(), *plain(args[1:]), **kwargs)  # a loss is often read after its step
        if name.startswith("_foreach_") and self.scan(args, kwargs)[0]:
            self.problems.refuse_writing(name)
        return NotImplemented

    def _refuse_isolated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An isolated module runs on one example, and an operation on a tensor of the batch arrives."""
        if any(type(t) is Traced and self._over(t) for t in tensors((args, kwargs))):
            raise RuntimeError(EARLIER)
        raise CannotCut("it reads a tensor of the whole batch that is not among its inputs")

    def follows(self, value: Any) -> bool:
        """Return whether a value is a tensor of the current batch."""
        return type(value) is Traced and value._recorder is self and value._epoch == self.epoch

    def _over(self, value: Any) -> bool:
        return type(value) is Traced and value._epoch != self.epoch and value._epoch not in self.dropped

    def scan(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[tuple[Tensor, Tag]], list[Tensor]]:
        """The tagged tensors among the arguments, and the shared ones that lead to trainable parameters."""
        tagged: list[tuple[Tensor, Tag]] = []
        shared: list[Tensor] = []
        left = [*args, *kwargs.values()] if kwargs else list(args)
        left.reverse()
        while left:
            value = left.pop()
            if type(value) is Traced:
                if value._recorder is self and value._epoch == self.epoch:
                    tagged.append((value, value._tag))
                elif self.batch is not None and (stale := self.guard.stale(value)) is not None:
                    tagged.append((value, stale))
            elif isinstance(value, Tensor):
                if value.requires_grad:
                    if value.grad_fn is not None and any(leaf is self.anchor for leaf in graph_leaves(value)):
                        raise RuntimeError(
                            f"a tensor of {value.ndim} dimensions was computed from the batch where the engine could "
                            "not see it (a compiled or scripted function); use ordinary PyTorch operations there"
                        )
                    shared.append(value)
            elif isinstance(value, (tuple, list)):
                left.extend(reversed(value))
            elif isinstance(value, dict):
                left.extend(reversed(value.values()))
        if tagged and in_transform() is not None:
            self.problems.refuse_now(TRANSFORMED)
        return tagged, shared

    def _trainable(
        self,
        kind: Kind,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tagged: list[tuple[Tensor, Tag]],
        shared: list[Tensor],
    ) -> Any:
        name, totals = kind.name, 0
        bad: Tag | None = None
        for place, (t, tag) in enumerate(tagged):
            if isinstance(tag, Only) and self.batch == 1 and type(t) is Traced and t.ndim > 1:
                t._tag = tag = Layout(0, t.shape[0])  # of the only example, wherever its size of one was taken for it
                t._form = None
                tagged[place] = t, tag
            if not isinstance(tag, Layout):
                bad, totals = bad or tag, totals + isinstance(tag, Total)
        if kind.writes and not kind.is_pointwise and name != "setitem":
            self.problems.refuse_writing(name)
        if kind.is_pointwise and totals == len(tagged):
            # Where `penalised` does not take a penalty on the parameters, its gradient reaches them directly, and is
            # refused there, in the backward pass, with the parameter's name.
            args, kwargs = penalised(self, name, args, kwargs, tagged, shared)
            with without_subclasses():
                out = func(*args, **kwargs)
            return self.finish(name, func, args, kwargs, out, tagged)
        if name == "index_select" and isinstance(bad, Mixed) and bad is tagged[0][1] and _is_in_order(shared, args):
            # A learned tensor that is the same for all examples, put in their order.
            return shared[0].narrow(args[1], 0, len(args[2]))
        if bad is not None:
            reason = bad.reason if isinstance(bad, Mixed) else _REASONS[type(bad)]
            if self.inside:  # elsewhere it may be for the log: wrong only if the loss depends on it
                self.problems.add(reason)
            with without_subclasses():
                out = func(*detached(args, shared), **detached(kwargs, shared))
            mixed = bad if isinstance(bad, Mixed) else Mixed(reason)
            return self.finish(name, func, args, kwargs, out, [(t, mixed) for t, _ in tagged])
        rule = OPERATIONS.get(name)
        if rule is not None and (name in COMPLEX or not any(q.is_complex() for q in shared)):
            return rule(self, func, args, kwargs)
        if kind.is_pointwise or name in ("cat", "stack"):
            return lift(self, name, func, args, kwargs, tagged, shared)
        return generic(self, name, func, args, kwargs, tagged, shared)

    def finish(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        tagged: list[tuple[Tensor, Tag]],
    ) -> Any:
        """Tag the outputs of an operation that ran."""
        if name == "setitem":
            out_tensors: Any = args[0]
        elif isinstance(out, Tensor) or (isinstance(out, (tuple, list)) and any(isinstance(t, Tensor) for t in out)):
            out_tensors = out
        else:
            if tagged and writes(func):
                self.problems.refuse_writing(name)
            numbers = name in READS or (type(out) in NUMBERS and not tells_no_number(name))
            reads = numbers and any(type(a) is Traced for a in (*args, *kwargs.values()))
            if self.inside and reads and not data_independent.only_validates(self.model):
                self.problems.refuse_reading(name)
            return out
        if not tagged:
            if self.evaluating and self.batch is None:
                self.guard.evaluated(out_tensors, (args, kwargs))
            return out
        assert self.batch is not None
        call = Call(name, func, args, kwargs, out_tensors, self.batch, tagged)
        tag = self.guard.tag_written(call, out_tensors) if writes(func) else self.guard.tag(call)
        self.tag_outputs(out_tensors, tag, tagged)
        self.guard.tagged(call)
        return out
