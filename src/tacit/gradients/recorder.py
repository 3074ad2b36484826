"""The core: sees every operation on the batch, keeps what the backward pass brings."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable
from functools import cache
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.gradients.contributions import Contribution
from tacit.gradients.layout import Layout, Mixed, Tag, Total
from tacit.gradients.propagation import POINTWISE, propagate
from tacit.gradients.rules import Call, words
from tacit.gradients.sources import Part, graph_leaves, resolve
from tacit.gradients.traced import Traced, mark, opened, plain

log = logging.getLogger("tacit.gradients")

Reduction = Literal["mean", "sum", "none"]
Pairs = Iterable[tuple[Tensor, Contribution]]
Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}
"""Operations with a rule for trainable arguments; each is called as rule(recorder, func, args, kwargs)."""

ALWAYS: dict[str, Operation] = {}
"""Operations the engine takes over whether or not an argument is trainable."""

_ALIASES = {
    **{f"{p}{n}": n for p in "ri" for n in ("add", "mul", "and", "or", "xor")},
    **{"isub": "sub", "truediv": "div", "itruediv": "div", "floordiv": "floor_divide", "mod": "remainder"},
    **{"ipow": "pow", "multiply": "mul", "subtract": "sub", "divide": "div", "imatmul": "matmul", "concat": "cat"},
}
_KEPT = words("float int bool long len index complex contains reduce_ex deepcopy repr format hash")
_METADATA = words(
    """
    shape dtype device ndim requires_grad is_leaf grad_fn size dim numel nelement stride layout is_nested
    is_cuda is_sparse is_quantized is_floating_point is_complex is_contiguous len
    storage_offset data_ptr element_size _version is_mkldnn is_meta names output_nr is_set_to get_device grad
    _grad retains_grad __set__
    """
)


_READS = words(
    """
    item tolist numpy equal allclose is_nonzero __bool__ __float__ __int__ __long__ __index__ __complex__ __contains__
    """
)
"""Operations that turn a tensor's values into Python values."""


@cache
def canonical(func: Callable[..., Any]) -> str:
    """One name for `torch.add`, `Tensor.add_`, `x + y`, `y += x`."""
    name: str = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = func.__self__.__name__  # type: ignore[attr-defined]
    if name == "__set__":
        return "__set__"
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name in _KEPT:
            return f"__{name}__"
    elif not name.startswith("_"):
        name = name.rstrip("_")
    return _ALIASES.get(name, name)


class _Tap(torch.autograd.Function):
    """A node of its own behind a trainable operation, through which every gradient of its output must pass.

    A hook on the output would be passed by: many operations return views, and an in-place change of a view reroutes
    the graph around the view's own node. The anchor gives the first trainable operation a graph to begin with, and
    marks whatever is computed from here as data.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, out: Tensor, arrived: Callable[[Tensor], None]) -> Tensor:
        ctx.arrived = arrived
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.arrived(grads[0])
        return None, grads[0], None


class ValuesRead(RuntimeError):
    """The model's own code looked at values of the batch."""


class Recorder:
    """Follows one batch at a time through the model and gathers each parameter's contributions."""

    def __init__(self, model: nn.Module, reduction: Reduction | None, batch_dim: Any = 0) -> None:
        if reduction not in ("mean", "sum", "none", None):
            raise ValueError(f"reduction must be 'mean', 'sum', 'none' or None (detect), not {reduction!r}")
        self.model = model
        self.reduction = reduction
        self.batch_dim = batch_dim
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.buffers = {id(b): name for name, b in model.named_buffers()}
        self.active = True
        self.inside = False
        """Whether the model's forward is running."""
        self.epoch = 0
        self.batch: int | None = None
        self.anchor = torch.zeros((), requires_grad=True)
        self.parts: dict[str, list[Part]] = {}
        self.problems: list[str] = []
        self.suspects: dict[str, str] = {}
        self.seeds: list[tuple[str, Tensor]] = []
        self.slow: set[str] = set()
        self.task: int | None = None

    # -- the batch ---------------------------------------------------------------------------------------------------

    def begin(self, batch: int) -> None:
        """A batch of this many examples enters the model (perhaps again, for a second use in the same loss)."""
        if self.batch is not None and batch != self.batch:
            if self.task is not None:
                raise RuntimeError(
                    f"the model was called with {batch} examples after the backward pass of a batch of {self.batch}, "
                    "whose clipped sum was not yet taken"
                )
            self.epoch += 1
        self.batch = batch

    def reset(self) -> None:
        """Forget the batch: what was captured is gone and its tensors are constants from now on."""
        self.epoch += 1
        self.batch, self.task = None, None
        self.parts, self.problems, self.suspects, self.seeds = {}, [], {}, []

    # -- operations --------------------------------------------------------------------------------------------------

    def handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = canonical(func)
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*args, **kwargs)
            if name == "__set__" and func.__self__.__name__ == "data" and type(args[1]) is Traced:  # type: ignore[attr-defined]
                mark(args[0], self, args[1]._tag)  # the values are others' now, and so is their tag
            return out
        if name in ("__reduce_ex__", "__deepcopy__", "__repr__", "__format__"):
            return func(plain(args[0]), *args[1:], **kwargs)
        if (name == "detach" or (name in _READS and not self.inside)) and self._over(args[0]):
            return func(plain(args[0]).detach(), *plain(args[1:]), **kwargs)  # a loss is often read after its step
        if func is torch.autograd.backward:
            self._before_backward(*args, **kwargs)
        take_over = ALWAYS.get(name)
        if take_over is not None:
            return take_over(self, func, args, kwargs)
        body = opened(func)
        if body is not None:
            return body(*args, **kwargs)
        tagged, shared = self.scan(args, kwargs)
        if self.batch == 0:
            return self._empty(func, args, kwargs, bool(shared))
        if shared and torch.is_grad_enabled():
            return self._trainable(name, func, args, kwargs, tagged, shared)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
        return self.finish(name, func, args, kwargs, out, tagged)

    def _over(self, value: Any) -> bool:
        return type(value) is Traced and value._epoch != self.epoch

    def _before_backward(self, tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
        """The last look before gradients flow: list the problems, and see whether losses were left unreduced."""
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        mixed = [root._tag for root in roots if type(root) is Traced and isinstance(root._tag, Mixed)]
        if mixed:
            self.problems += [s for s in self.suspects.values() if s not in self.problems]
            if not self.problems:
                self.problem(mixed[0].reason)
        given = [grad_tensors] * len(roots) if grad_tensors is None else grad_tensors
        pairs = list(zip(roots, [given] if isinstance(given, Tensor) else given))
        for root, gradient in pairs:
            self._check_seed(root, gradient)
        self.check_problems()
        for root, gradient in pairs:
            if type(root) is Traced and isinstance(root._tag, Layout) and gradient is not None:
                self.seeds.append(("sum", plain(gradient)))

    def _check_seed(self, root: Any, gradient: Any) -> None:
        """A gradient passed to `backward` multiplies the losses: it must be as much each example's own as they are."""
        if type(gradient) is not Traced or gradient._recorder is not self or gradient._epoch != self.epoch:
            return
        tag, own = gradient._tag, getattr(root, "_tag", None)
        if isinstance(tag, Layout) and isinstance(own, Layout) and tag.dim == own.dim and tag.same_order(own):
            return
        self.problem(
            tag.reason
            if isinstance(tag, Mixed)
            else "the gradient given to backward combines examples; compute it for each example from that example alone"
        )

    def scan(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[tuple[Tensor, Tag]], list[Tensor]]:
        """The tagged tensors among the arguments, and the shared ones that lead to trainable parameters."""
        tagged: list[tuple[Tensor, Tag]] = []
        shared: list[Tensor] = []
        self._scan(args, tagged, shared)
        if kwargs:
            self._scan(kwargs.values(), tagged, shared)
        return tagged, shared

    def _scan(self, values: Iterable[Any], tagged: list[tuple[Tensor, Tag]], shared: list[Tensor]) -> None:
        for value in values:
            if type(value) is Traced:
                if value._recorder is self and value._epoch == self.epoch:
                    tagged.append((value, value._tag))
                elif value.requires_grad:
                    raise RuntimeError("a tensor computed from an earlier batch took part in this one; detach it first")
            elif isinstance(value, Tensor):
                if value.requires_grad:
                    if value.grad_fn is not None and any(leaf is self.anchor for leaf in graph_leaves(value)):
                        raise RuntimeError(
                            f"a tensor of shape {tuple(value.shape)} was computed from the batch where the engine "
                            "could not see it (a compiled or scripted function); use ordinary PyTorch operations there"
                        )
                    shared.append(value)
            elif isinstance(value, (tuple, list)):
                self._scan(value, tagged, shared)
            elif isinstance(value, dict):
                self._scan(value.values(), tagged, shared)

    def _empty(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool) -> Any:
        """No example, no gradient: run without the parameters' graph, but let the loss have one to go back through."""
        if canonical(func) in ("view", "reshape"):
            args = _measured(args)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*_detached(args), **_detached(kwargs))

        def joined(t: Any) -> Any:
            if isinstance(t, (tuple, list)):
                return type(t)(joined(v) for v in t) if not hasattr(t, "_fields") else type(t)(*(joined(v) for v in t))
            if not isinstance(t, Tensor):
                return t
            if trained and t.is_floating_point() and not t.requires_grad and torch.is_grad_enabled():
                t = _Tap.apply(self.anchor, t, lambda grad: None)  # type: ignore[no-untyped-call]
            return mark(t, self, Layout(0))

        return joined(out)

    def _trainable(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tagged: list[tuple[Tensor, Tag]],
        shared: list[Tensor],
    ) -> Any:
        from tacit.gradients.fallback import generic
        from tacit.gradients.lifting import lift

        tags = [tag for _, tag in tagged]
        if name in POINTWISE and all(isinstance(tag, Total) for tag in tags):
            # A penalty on the parameters added to the finished loss: its gradient reaches them directly and is refused
            # there, in the backward pass, with the parameter's name.
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*args, **kwargs)
            return self.finish(name, func, args, kwargs, out, tagged)
        if name == "index_select" and isinstance(tags[0], Mixed) and tags[0].order:
            # A learned tensor with one slot per example, put in the order of the examples: still a shared tensor.
            with torch._C.DisableTorchFunctionSubclass():
                return func(*plain(args), **kwargs)
        bad = next((tag for tag in tags if not isinstance(tag, Layout)), None)
        if bad is not None:
            reason = (
                bad.reason if isinstance(bad, Mixed) else "a mean or sum over examples is fed to trainable parameters"
            )
            self.problem(reason)
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*_detached(args, shared), **_detached(kwargs, shared))
            return self.finish(name, func, args, kwargs, out, [(t, Mixed(reason)) for t, _ in tagged])
        rule = OPERATIONS.get(name)
        if rule is not None:
            return rule(self, func, args, kwargs)
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
            if self.inside and name in _READS and any(type(a) is Traced for a in args):
                self._refuse_reading(name)
            return out
        if not tagged:
            return out
        assert self.batch is not None
        tag = propagate(Call(name, func, args, kwargs, out_tensors, self.batch, tagged))
        self._tag_outputs(out_tensors, tag, tagged)
        return out

    def _refuse_reading(self, name: str) -> None:
        raise ValuesRead(
            f"{self.where()}: `{name.strip('_')}` reads values of the batch into Python inside the model, where they "
            "can decide (in an `if`, an index, a factor) what happens to all examples. Keep the decision in tensors "
            "(torch.where, masks) and per example, take sizes from shapes or constants; for logging, keep the tensor "
            "and read it after backward (for torch.distributions, pass validate_args=False)"
        )

    def _tag_outputs(self, out: Any, tag: Any, tagged: list[tuple[Tensor, Tag]]) -> None:
        if isinstance(out, (tuple, list)):
            for i, t in enumerate(out):
                self._tag_outputs(t, tag[i] if isinstance(tag, list) else tag, tagged)
        elif isinstance(out, Tensor) and tag is not None:
            if isinstance(tag, list):
                tag = tag[0]
            if id(out) in self.buffers and type(out) is not Traced:
                self.problem(
                    f"data of the batch is written into the buffer {self.buffers[id(out)]!r}, which would be released "
                    "without noise; keep such statistics out of the model, or fix them beforehand"
                )
                return
            if out.requires_grad:
                if isinstance(tag, Mixed):
                    if tag.reason not in self.suspects:
                        self.suspects[tag.reason] = self._located(tag.reason)
                elif isinstance(tag, Total) and not any(isinstance(t, Total) for _, t in tagged):
                    kind = tag.kind
                    with torch._C.DisableTorchFunctionSubclass():
                        out.register_hook(lambda grad: self.seeds.append((kind, grad.detach())))  # type: ignore[no-untyped-call]
            mark(out, self, tag)

    def problem(self, reason: str) -> None:
        text = self._located(reason)
        if text not in self.problems:
            self.problems.append(text)

    def _located(self, reason: str) -> str:
        return f"{self.where()}: {reason}"

    def where(self) -> str:
        """The module whose code is running, by its name in the model."""
        names = {id(m): n or type(m).__name__ for n, m in self.model.named_modules()}
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in names:
                return f"{names[id(owner)]} ({type(owner).__name__})"
            frame = frame.f_back
        return "the loss"

    def check_problems(self) -> None:
        if self.problems:
            listed = "\n".join(f"  - {p}" for p in self.problems)
            self.problems, self.suspects = [], {}
            raise ValueError(f"this model has no per-example gradients:\n{listed}")

    def report_slow(self, name: str) -> None:
        if name not in self.slow:
            self.slow.add(name)
            log.warning(
                "%s: `%s` has no fast rule; its per-example gradients use torch.func (correct, slower)",
                self.where(),
                name,
            )

    # -- capture -----------------------------------------------------------------------------------------------------

    def tap(self, out: Tensor, saved: Iterable[Tensor], make: Callable[[Tensor], Pairs]) -> Tensor:
        """When the gradient of `out` arrives, keep what `make` derives from it.

        `saved` are the inputs `make` will read; they must not be overwritten in between.
        """
        watched = [(t, t._version) for t in saved]
        epoch = self.epoch

        def arrived(grad: Tensor) -> None:
            for t, version in watched:
                if t._version != version:
                    raise RuntimeError(
                        f"a tensor of shape {tuple(t.shape)} that a trainable operation has read was modified in place"
                    )
            self.capture(make(plain(grad.detach())), epoch)

        return _Tap.apply(self.anchor, out, arrived)  # type: ignore[no-untyped-call, no-any-return]

    def capture(self, pairs: Pairs, epoch: int) -> None:
        if epoch != self.epoch:
            raise RuntimeError("backward ran through a batch whose clipped sum was already taken")
        task = torch._C._current_graph_task_id()
        if self.task is not None and task != self.task:
            raise RuntimeError(
                "backward ran twice before the clipped sum was taken; add the losses and call backward once per batch"
            )
        self.task = task
        with torch.no_grad():
            for source, contribution in pairs:
                settled = contribution.settle()
                for name, part in resolve(source, settled, self.names):
                    self.parts.setdefault(name, []).append(part)


def _measured(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a reshape with -1 replaced by what it is when examples are there: PyTorch does not say for none."""
    old, new = args[0].shape, list(args[1] if isinstance(args[1], (tuple, list)) else args[1:])
    if -1 not in new or 0 not in new:
        return args
    rest = math.prod(size for size in new if size > 0)
    new[new.index(-1)] = math.prod(size for size in old if size > 0) // rest
    return (args[0], tuple(new))


def _detached(value: Any, only: list[Tensor] | None = None) -> Any:
    if isinstance(value, Tensor):
        wanted = type(value) is not Traced if only is None else any(value is t for t in only)
        return value.detach() if wanted and value.requires_grad else value
    if isinstance(value, (tuple, list)):
        return type(value)(_detached(v, only) for v in value)
    if isinstance(value, dict):
        return {k: _detached(v, only) for k, v in value.items()}
    return value


detached = _detached
