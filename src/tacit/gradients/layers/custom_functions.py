"""Autograd functions that users write (`torch.autograd.Function`): straight-through rounding, gradient reversal, …

The forward of such a function is followed like any code, operation by operation. So is its backward: the gradient of an
output belongs to the examples as the output does, and each gradient that the backward returns must belong to them as
the input does, by the same batch rules. A function that is given parameters, whose gradients it would add up over the
examples itself, is not followed: the module around it runs one example at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tacit.gradients.empty_batch import run_empty
from tacit.gradients.layers.registry import layout_of
from tacit.gradients.layout import Layout
from tacit.gradients.recording import Recording
from tacit.gradients.tap import OWN
from tacit.gradients.torch_internals import (
    in_transform,
    keeps_graph,
    setup_of,
    with_overrides,
    without_subclasses,
    write_count,
)
from tacit.gradients.traced import Traced, mark, plain


class Context(FunctionCtx):
    """The `ctx` of a followed function. Tensors that it saves stay marked as tensors of the batch, outputs too."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.materialize_grads = True
        self.non_differentiable: tuple[Tensor, ...] = ()
        self._saved: list[tuple[Tensor | None, int]] = []

    def save_for_backward(self, *tensors: Tensor) -> None:
        self._saved = [(t, 0 if t is None else write_count(t)) for t in tensors]

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors that the forward saved."""
        if any(t is not None and write_count(t) != version for t, version in self._saved):
            raise RuntimeError(
                "a tensor that a custom autograd function saved was modified in place; write into a copy"
            )
        return tuple(t for t, _ in self._saved)


class Call:
    """One call of a function: arguments, outputs, and the shapes that its backward may return."""

    def __init__(self, recorder: Recording, function: Any, args: tuple[Any, ...], layouts: list[Layout | None]) -> None:
        self.recorder, self.function, self.layouts = recorder, function, layouts
        self.shapes = [a.shape if isinstance(a, Tensor) else None for a in args]
        self.context = Context(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        given = [mark(plain(a), recorder, place) if place else a for a, place in zip(args, layouts)]
        with torch.no_grad():
            setup = setup_of(function)
            found = function.forward(*given) if setup else function.forward(self.context, *given)
            if setup:
                setup(self.context, tuple(given), found)
        self.one = not isinstance(found, tuple)
        self.outputs = [found] if self.one else list(found)
        self.places = [layout_of(recorder, out) for out in self.outputs]
        written = getattr(self.context, "dirty_tensors", ()) or any(
            self._is_written(*pair) for pair in zip(args, given)
        )
        if written or not self.outputs or any(place is None for place in self.places):
            self._refuse("forward writes to its inputs, or returns something else than a row for each example")

    @staticmethod
    def _is_written(before: Any, given: Any) -> bool:
        return type(given) is Traced and given._tag is not before._tag

    def backward(self, *grads: Tensor | None) -> list[Tensor | None]:
        """Run the function's backward on gradients of the batch, followed, and return its result."""
        recorder = self.recorder
        shown = [
            g if g is None or place is None else mark(plain(g).detach(), recorder, place)
            for g, place in zip(grads, self.places)
        ]
        before = recorder.inside, recorder.in_backward
        recorder.inside = recorder.in_backward = True
        try:
            with with_overrides(), torch.no_grad():
                found = self.function.backward(self.context, *shown)
        finally:
            recorder.inside, recorder.in_backward = before
        answers = list(found) if isinstance(found, (tuple, list)) else [found]
        answers += [None] * (len(self.layouts) - len(answers))
        for answer, place, shape in zip(answers, self.layouts, self.shapes):
            if isinstance(answer, Tensor) and place is not None and not self._fits(answer, place, shape):
                self._refuse("backward returns a gradient that does not belong to each example as the input does")
        recorder.problems.check()
        return [plain(a) if place is not None else None for a, place in zip(answers, self.layouts)]

    def _fits(self, answer: Tensor, place: Layout, shape: Any) -> bool:
        """Return whether a gradient is the examples' as the input is; one that no example changes is."""
        with without_subclasses():
            alike = bool(answer.shape == shape)
        if type(answer) is not Traced:
            return alike
        own = layout_of(self.recorder, answer)
        return alike and own is not None and own.dim == place.dim and own.same_order(place)

    def _refuse(self, what: str) -> None:
        self.recorder.problems.refuse_now(
            f"the custom autograd function {self.function.__name__!r} cannot be followed: its {what}; use operations "
            "of PyTorch in its place"
        )


class Node(torch.autograd.Function):
    """The node of a followed function in the graph."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Any) -> Any:
        ctx.call, ctx.made_by = call, OWN
        ctx.set_materialize_grads(call.context.materialize_grads)
        outputs = tuple(plain(out).detach() for out in call.outputs)
        fixed = {id(t) for t in call.context.non_differentiable}
        ctx.mark_non_differentiable(*(new for new, out in zip(outputs, call.outputs) if id(out) in fixed))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        call = ctx.call
        if torch.is_grad_enabled():
            raise RuntimeError("gradients of gradients have no fast rule; run the model with isolate=True")
        if call is None:
            raise RuntimeError(
                "backward ran a second time through the same graph; pass retain_graph=True the first time"
            )
        if not keeps_graph():
            ctx.call = None
        return None, *call.backward(*grads)


_put = super(torch.autograd.Function, Node).apply


def follow_function(function: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a custom autograd function on tensors of the batch; follow its forward and, later, its backward.

    A function of something else, of parameters too, or with keywords runs as PyTorch would run it.
    """
    if kwargs:
        return original(*args, **kwargs)
    with without_subclasses():
        trained = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    recorder = next((a._recorder for a in args if type(a) is Traced), None)
    if recorder is not None and recorder.batch == 0:
        return run_empty(recorder, torch.no_grad()(original), args, {}, bool(trained))
    if recorder is None or not trained or not recorder.batch or not torch.is_grad_enabled() or in_transform():
        return original(*args)
    layouts = [layout_of(recorder, a) for a in args]
    if any(type(a) is Traced and place is None for a, place in zip(args, layouts)):
        return original(*args)
    if any(type(a) is not Traced for a in trained):
        return original(*args)
    call = Call(recorder, function, args, layouts)
    if recorder.planned_for is not None:  # what its backward does decides whether the module is isolated
        call.backward(*[torch.ones_like(plain(out)) for out in call.outputs])
    made = _put(call, *map(plain, args))  # type: ignore[no-untyped-call]
    found = [mark(new, recorder, place) for new, place in zip(made, call.places) if place is not None]
    return found[0] if call.one else tuple(found)
