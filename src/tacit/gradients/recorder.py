"""The core: sees every operation on the batch, keeps what the backward pass brings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.nn import functional as F

from tacit.gradients import data_independent, sizes
from tacit.gradients.complex_parts import real_parts
from tacit.gradients.contributions import Contribution
from tacit.gradients.empty import run_empty
from tacit.gradients.failures import FAILED, FAILURES, is_of_values
from tacit.gradients.kept import DROPPED, EARLIER, FILLED, is_filled, mark_as_before, note_fill
from tacit.gradients.layout import Layout, Mixed, Only, Tag, Total, same_everywhere
from tacit.gradients.metadata import told
from tacit.gradients.names import (
    EXPORTS,
    METADATA,
    NUMBERS,
    PRINTS,
    READS,
    SHOWN,
    canonical,
    tells_no_number,
    writes,
)
from tacit.gradients.nested import detached, tensors
from tacit.gradients.precision import unmixed
from tacit.gradients.problems import CannotCut, Problems
from tacit.gradients.propagation import POINTWISE, propagate
from tacit.gradients.rules import Call
from tacit.gradients.sources import Part, graph_leaves, resolve
from tacit.gradients.tap import Border, Tap, unscaled
from tacit.gradients.traced import Traced, is_compiling, mark, mark_like, opened, plain
from tacit.gradients.unseen import PACKING, TRANSFORMED, are_others_packing
from tacit.gradients.writing import COUNTING, known, refuse_counting, refuse_unfollowed, settle

if TYPE_CHECKING:
    from tacit.gradients.memory import Memory

Reduction = Literal["mean", "sum", "none"]
Pairs = Iterable[tuple[Tensor, Contribution]]
Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}
"""Operations with a rule for trainable arguments; each is called as rule(recorder, func, args, kwargs)."""

COMPARED = -1
"""The epoch of examples that were only compared (`independence`): what is computed from them is no constant either."""

COMPLEX = frozenset(["linear", "matmul", "rmatmul", "mm", "bmm", "mv", "dot", "einsum", "addmm", "baddbmm", "addmv"])
"""Operations whose rules are right for complex parameters too; others are differentiated by `torch.func`."""

ALWAYS: dict[str, Operation] = {}
"""Operations the engine takes over whether or not an argument is trainable."""

FROZEN: dict[str, Operation] = {}
"""Operations it takes over where no argument is trained."""


_REASONS: dict[type, str] = {
    Total: "a mean or sum over examples is fed to trainable parameters",
    Only: "examples are fed to trainable parameters one at a time; put them together first (torch.stack)",
}
"""Why a tensor of the batch cannot be fed to parameters."""


_SIMPLE = frozenset((F.relu, F.relu6, F.silu, F.mish, F.selu, F.elu, F.celu, F.leaky_relu, F.hardswish, F.dropout))
"""Functions of single entries that call one operation of the same name: nothing is seen by running their bodies."""


def _is_alike(shared: list[Tensor], args: tuple[Any, ...]) -> bool:
    """Whether a shared tensor is the same in all the places that `index_select` takes."""
    return len(args) == 3 and args[0] is shared[0] and same_everywhere(shared[0], args[1])


class Recorder:
    """Follows one batch at a time through the model and gathers each parameter's contributions."""

    def __init__(self, model: nn.Module, reduction: Reduction | None) -> None:
        if reduction not in ("mean", "sum", "none", None):
            raise ValueError(
                f"reduction is {reduction!r}; choose 'mean', 'sum' or 'none', or leave it out: it is detected."
            )
        self.model = model
        self.reduction = reduction
        self.rows = 1
        """How many rows of the batch an example is."""
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.sharded_modules: list[Any] = []
        self.sharded = False
        """Whether parameters are whole only while their module runs: what is kept must do without their values."""
        self.buffers = {id(b): name for name, b in model.named_buffers()}
        self._kept = list(model.buffers())  # one that is replaced must not leave its id to a tensor of the batch
        self.active = True
        self.inside = False
        """Whether the model's forward is running."""
        self.evaluating = False
        """Whether it is running without gradients, and nothing is captured."""
        self.epoch = 0
        self.batch: int | None = None
        self.anchor = torch.zeros((), requires_grad=True)
        self.parts: dict[str, list[Part]] = {}
        self.problems = Problems(model)
        self.seeds: list[tuple[str, Tensor]] = []
        """What arrived at reductions over examples: the kind of the reduction, and the gradient."""
        self.inner_seeds: list[tuple[str, Tensor]] = []
        """The same for reductions inside the model."""
        self.output_seeds: list[tuple[str, Tensor]] = []
        """What arrived at outputs of the model that are such a reduction (see `inferred`)."""
        self.scales: set[float] = set()
        """The scales of the model's own reductions for the few examples of the plan."""
        self.inferred: dict[int, str] = {}
        """Outputs of the model that are a mean or sum of losses whose scale was seen not to depend on their number."""
        self.captures = 0
        """How many times gradients of the current batch arrived."""
        self.capturing = True
        """Whether arriving gradients are the parameters'; not while the user differentiates with respect to inputs."""
        self.inputs: list[Tensor] = []
        self.seen: set[tuple[int, int]] = set()
        """Memory and version of the batch's inputs, which are kept so that no other tensor gets their memory."""
        self.dropped = {COMPARED}
        """Epochs of batches that were not used before the next came: what was computed from them is no constant."""
        self.free = False
        """Whether tensors of the batch have sizes that data decided (see `sizes`)."""
        self.memory: Memory | None = None
        """Who looks at the memory that operations read, in passes that are looked at closely."""
        self.aliases: list[list[dict[str, Tensor]]] = []
        """For every call of an isolated module, each example's own aliases of its parameters (see `isolate`)."""
        self.planned_for: Recorder | None = None
        """The recorder for which this one only made a plan: what is kept of that is no constant in its batches."""
        self.plan: dict[str, Any] = {}
        """The modules that run one example at a time (see `plan`)."""
        self.isolating = False
        """Whether a module is running on one example, and nothing is followed."""
        self.strangers = False
        """Whether the model was entered, after a backward pass, with inputs that need not be the same examples."""

    # -- the batch ---------------------------------------------------------------------------------------------------

    def begin(self, batch: int, inputs: list[Tensor]) -> None:
        """A batch of this many examples enters the model (perhaps again, for a second use).

        A batch that was not used is dropped by the next. After a backward pass, gradients of another batch would add
        up with the first one's, example i with example i: only unchanged memory is surely the same examples, and only
        memory that PyTorch alone writes to (a NumPy array that shares it changes no version; one that came by DLPack is
        not seen).
        """
        seen = {(t.data_ptr(), t._version) for t in inputs}
        if self.captures:
            if batch != self.batch:
                raise RuntimeError(
                    "the model was called with another number of examples than the batch whose backward pass has run "
                    "and whose clipped sum was not yet taken; take it first"
                )
            sure = seen <= self.seen and all(t.untyped_storage().resizable() for t in inputs)
            self.strangers = self.strangers or not sure
            return
        if self.batch is not None and batch != self.batch:
            self.dropped.add(self.epoch)
            self.epoch += 1
            self.seen, self.inputs, self.aliases = set(), [], []
        self.batch = batch
        self.seen |= seen
        self.inputs += inputs

    def reset(self) -> None:
        """Forget the batch: what was captured is gone, and its tensors take part in nothing that follows (`kept`)."""
        self.epoch += 1
        self.batch, self.captures, self.dropped, self.free = None, 0, {COMPARED}, False
        self.parts, self.seeds, self.inputs, self.seen, self.strangers = {}, [], [], set(), False
        self.aliases, self.inner_seeds, self.output_seeds = [], [], []
        self.problems.forget()

    def is_isolated(self) -> bool:
        """Return whether the whole model runs one example at a time."""
        return "" in self.plan

    @contextmanager
    def isolation(self) -> Iterator[None]:
        """A module runs on one example at a time; it may not touch tensors of the whole batch."""
        self.isolating = True
        try:
            yield
        finally:
            self.isolating = False

    # -- operations --------------------------------------------------------------------------------------------------

    def handle(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, own_rule: bool = True
    ) -> Any:
        name = canonical(func)
        if self.isolating:
            if any(type(t) is Traced and self._over(t) for t in tensors((args, kwargs))):
                raise RuntimeError(EARLIER)
            raise CannotCut("it reads a tensor of the whole batch that is not among its inputs")
        if name in METADATA:
            return told(self, name, func, args, kwargs)
        if self.batch is not None and are_others_packing():
            self.problems.add(PACKING)
        if self.free and self.inside:
            sizes.before(self, name, args, kwargs)
        try:
            out = self._operate(name, func, args, kwargs, own_rule)
        except FAILURES as error:
            if self.inside and opened(func) is None and is_of_values(error, func, args, kwargs):
                self.problems.add(FAILED)  # if the model goes on
            raise
        if self.free or name == sizes.UNPACKING or (self.inside and name in sizes.DECIDING):
            sizes.after(self, name, func, args, kwargs, out)
        return out

    def _operate(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], own_rule: bool
    ) -> Any:
        if name in EXPORTS and self.inside and type(args[0]) is Traced and not is_compiling():
            self.problems.refuse_reading(name)
        if name in SHOWN:
            if name in PRINTS and self.inside:
                self.problems.refuse_printing(name)
            shown = func(plain(args[0]), *args[1:], **kwargs)
            copied = isinstance(shown, Tensor) and type(args[0]) is Traced
            return mark_like(shown, args[0], epoch=args[0]._epoch) if copied else shown
        if args and name == "detach" and self._over(args[0]):
            return mark_like(plain(args[0]).detach(), args[0], epoch=args[0]._epoch)
        if args and name in READS and not self.inside and self._over(args[0]):
            return func(plain(args[0]).detach(), *plain(args[1:]), **kwargs)  # a loss is often read after its step
        if (name.startswith("_foreach_") or kwargs.get("out") is not None) and self.scan(args, kwargs)[0]:
            refuse_unfollowed(self, name)
        take_over = ALWAYS.get(name) if own_rule else None
        if take_over is not None:
            return take_over(self, func, args, kwargs)
        body = opened(func)
        if body is not None and (func not in _SIMPLE or len(args) != 1 or kwargs.get("inplace")):
            with self.memory.working(False) if self.memory is not None else nullcontext():
                return body(*args, **kwargs)
        tagged, shared = self.scan(args, kwargs)
        if self.batch == 0:
            return run_empty(self, func, args, kwargs, bool(shared))
        if shared and torch.is_grad_enabled():
            return self._trainable(name, func, args, kwargs, tagged, shared)
        frozen = FROZEN.get(name) if own_rule else None
        if frozen is not None:
            return frozen(self, func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
        return self.finish(name, func, args, kwargs, out, tagged)

    def carry_out(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `handle` does with an operation that nothing takes over."""
        return self.handle(func, args, kwargs, own_rule=False)

    def follows(self, value: Any) -> bool:
        """Whether a value is a tensor of the current batch."""
        return type(value) is Traced and value._recorder is self and value._epoch == self.epoch

    def _over(self, value: Any) -> bool:
        return type(value) is Traced and value._epoch != self.epoch and value._epoch not in self.dropped

    def scan(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[tuple[Tensor, Tag]], list[Tensor]]:
        """The tagged tensors among the arguments, and the shared ones that lead to trainable parameters."""
        tagged: list[tuple[Tensor, Tag]] = []
        shared: list[Tensor] = []
        self._scan(args, tagged, shared)
        if kwargs:
            self._scan(kwargs.values(), tagged, shared)
        if tagged and peek_interpreter_stack() is not None:
            self.problems.refuse_now(TRANSFORMED)
        return tagged, shared

    def _scan(self, values: Iterable[Any], tagged: list[tuple[Tensor, Tag]], shared: list[Tensor]) -> None:
        for value in values:
            if type(value) is Traced:
                if value._recorder is self and value._epoch == self.epoch:
                    tagged.append((value, value._tag))
                elif self.batch is None or is_filled(value):
                    continue  # between batches: what is for the log; or zeros that are kept
                elif value.requires_grad:
                    raise RuntimeError(EARLIER)
                elif value._recorder is self or value._recorder.planned_for is self:
                    dropped = value._recorder is not self or value._epoch in self.dropped
                    reason = DROPPED if dropped else EARLIER
                    tagged.append((value, Mixed(reason, foreign=True)))
            elif isinstance(value, Tensor):
                if value.requires_grad:
                    if value.grad_fn is not None and any(leaf is self.anchor for leaf in graph_leaves(value)):
                        raise RuntimeError(
                            f"a tensor of {value.ndim} dimensions was computed from the batch where the engine could "
                            "not see it (a compiled or scripted function); use ordinary PyTorch operations there"
                        )
                    shared.append(value)
            elif isinstance(value, (tuple, list)):
                self._scan(value, tagged, shared)
            elif isinstance(value, dict):
                self._scan(value.values(), tagged, shared)

    def _trainable(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tagged: list[tuple[Tensor, Tag]],
        shared: list[Tensor],
    ) -> Any:
        tags = [tag for _, tag in tagged]
        if writes(func) and name not in POINTWISE and name != "setitem":
            refuse_unfollowed(self, name)
        if name in POINTWISE and all(isinstance(tag, Total) for tag in tags):
            # A penalty on the parameters added to the finished loss: its gradient reaches them directly and is refused
            # there, in the backward pass, with the parameter's name.
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*args, **kwargs)
            return self.finish(name, func, args, kwargs, out, tagged)
        if name == "index_select" and isinstance(tags[0], Mixed) and tags[0].order and _is_alike(shared, args):
            # A learned tensor that is the same for all examples, put in their order.
            return shared[0].narrow(args[1], 0, len(args[2]))
        bad = next((tag for tag in tags if not isinstance(tag, Layout)), None)
        if bad is not None:
            reason = bad.reason if isinstance(bad, Mixed) else _REASONS[type(bad)]
            if self.inside:  # elsewhere it may be for the log: wrong only if the loss depends on it
                self.problems.add(reason)
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*detached(args, shared), **detached(kwargs, shared))
            mixed = bad if isinstance(bad, Mixed) else Mixed(reason)
            return self.finish(name, func, args, kwargs, out, [(t, mixed) for t, _ in tagged])
        rule = OPERATIONS.get(name)
        if rule is not None and (name in COMPLEX or not any(q.is_complex() for q in shared)):
            return rule(self, func, args, kwargs)
        from tacit.gradients.fallback import generic
        from tacit.gradients.lifting import lift

        if name in POINTWISE or name in ("cat", "stack"):
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
                refuse_unfollowed(self, name)
            numbers = name in READS or (type(out) in NUMBERS and not tells_no_number(name))
            reads = numbers and any(type(a) is Traced for a in (*args, *kwargs.values()))
            if self.inside and reads and not data_independent.only_validates():
                self.problems.refuse_reading(name)
            return out
        if not tagged:
            if self.evaluating and self.batch is None:
                mark_as_before(out_tensors, (args, kwargs))
            return out
        assert self.batch is not None
        in_place = writes(func)
        if in_place and not known(name, POINTWISE):
            refuse_unfollowed(self, name)
        if name in COUNTING:
            refuse_counting(self, name, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():  # rules look at shapes only; no need to see them do so
            call = Call(name, func, args, kwargs, out_tensors, self.batch, tagged)
            tag = propagate(call)
        if in_place and id(out_tensors) not in self.buffers:
            settle(self, name, out_tensors, tag, args, tagged, name in POINTWISE or name == "setitem")
        self.tag_outputs(out_tensors, tag, tagged)
        if name in FILLED and len(tagged) == 1 and not self.free:
            note_fill(call)
        if self.inside and not all(isinstance(own, Layout) for _, own in tagged):
            sizes.told_by_data(self, name, args, kwargs, out_tensors)
        return out

    def tag_outputs(self, out: Any, tag: Any, tagged: list[tuple[Tensor, Tag]]) -> None:
        """Say whose the entries of outputs are; a reduction over examples also notes what arrives at it."""
        if isinstance(out, (tuple, list)):
            for i, t in enumerate(out):
                self.tag_outputs(t, tag[i] if isinstance(tag, list) else tag, tagged)
        elif isinstance(out, Tensor) and tag is not None:
            if isinstance(tag, list):
                tag = tag[0]
            if id(out) in self.buffers and type(out) is not Traced:
                self.problems.add(
                    f"data of the batch is written into the buffer {self.buffers[id(out)]!r}, which would be released "
                    "without noise; keep such statistics out of the model, or fix them beforehand"
                )
                if not self.inside:
                    self.problems.check()  # the model need not be called any more
                return
            if out.requires_grad:
                if isinstance(tag, Mixed):
                    self.problems.suspect(tag.reason)
                elif isinstance(tag, Total) and not any(isinstance(t, Total) for _, t in tagged):
                    kind, inside = tag.kind, self.inside
                    with torch._C.DisableTorchFunctionSubclass():
                        out.register_hook(lambda grad: self._seeded(kind, grad.detach(), inside))  # type: ignore[no-untyped-call]
            mark(out, self, tag)

    def note_outputs(self, outputs: list[Tensor]) -> None:
        """The model returned these: note what arrives at those that are a mean or sum over examples."""
        for i, kind in self.inferred.items():
            t = outputs[i] if i < len(outputs) else None
            if self.follows(t) and t is not None and t.requires_grad:
                with torch._C.DisableTorchFunctionSubclass():
                    t.register_hook(lambda grad, kind=kind: self.output_seeds.append((kind, grad.detach())))  # type: ignore[no-untyped-call]

    def _seeded(self, kind: str, grad: Tensor, inside: bool) -> Tensor | None:
        """A gradient arrives at a reduction over examples: note it, and send each example its own share."""
        (self.inner_seeds if inside else self.seeds).append((kind, grad))
        return unscaled(grad, kind, self.reduction, self.batch or 1) if self.capturing else None

    # -- capture -----------------------------------------------------------------------------------------------------

    def tap(self, out: Tensor, saved: Iterable[Tensor], make: Callable[[Tensor], Pairs]) -> Tensor:
        """When the gradient of `out` arrives, keep what `make` derives from it.

        `saved` are the inputs `make` will read; they must not be overwritten in between.
        """
        return Tap.apply(self.anchor, out, self.arrival(saved, make))  # type: ignore[no-untyped-call, no-any-return]

    def border(self, out: Tensor, upstream: list[Any]) -> Tensor:
        """The output of an isolated module; `upstream` are the nodes that made its inputs."""
        return Border.apply(self.anchor, out, self.arrival((), lambda grad: ()), upstream)  # type: ignore[no-untyped-call, no-any-return]

    def arrival(self, saved: Iterable[Tensor], make: Callable[[Tensor], Pairs]) -> Callable[[Tensor], None]:
        """What a node does with the gradient that arrives at it; see `tap`."""
        watched = [(t, t._version) for t in saved]
        epoch = self.epoch

        def arrived(grad: Tensor) -> None:
            for t, version in watched:
                if t._version != version:
                    raise RuntimeError(
                        f"a tensor of {t.ndim} dimensions that a trainable operation has read was modified in place; "
                        "write into a copy"
                    )
            if self.capturing:
                with unmixed(grad.device):
                    self.capture(make(plain(grad.detach())), epoch)

        return arrived

    def capture(self, pairs: Pairs, epoch: int) -> None:
        if epoch != self.epoch:
            raise RuntimeError("backward ran through a batch whose clipped sum was already taken")
        if self.strangers:
            raise RuntimeError(
                "backward ran on another batch before the clipped sum of the first was taken; take it after every "
                "batch (if they are the same examples, changed, add the losses and call backward once)"
            )
        self.captures += 1
        with torch.no_grad():
            for source, contribution in pairs:
                if source.is_complex():
                    source, contribution = real_parts(source, contribution)
                settled = contribution.settle()
                for name, part in resolve(source, settled, self.names):
                    if self.sharded:
                        part.contribution = part.contribution.apart()
                    self.parts.setdefault(name, []).append(part)
