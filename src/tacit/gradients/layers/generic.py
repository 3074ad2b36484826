"""Operations without a rule: per-example gradients of that operation alone, by torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution, Piecewise, cleared, precise
from tacit.gradients.layers.pointwise import personal
from tacit.gradients.layers.registry import Call
from tacit.gradients.layout import Layout, Mixed, Tag, select_examples
from tacit.gradients.nested import detached, replaced, tensors
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import mark


def split_batch(x: Tensor, layout: Layout, batch: int) -> Tensor:
    """[batch, *x.shape with the layout's dimension reduced to one example's share]."""
    outer = x.shape[layout.dim] // (batch * layout.inner)
    x = x.unflatten(layout.dim, (outer, batch, layout.inner)).movedim(layout.dim + 1, 0)  # type: ignore[no-untyped-call]
    return x.flatten(layout.dim + 1, layout.dim + 2)


def _sliced(value: Any, tags: dict[int, Layout], batch: int, b: int) -> Any:
    if isinstance(value, Tensor):
        bare = value.as_subclass(Tensor).detach()
        return select_examples(bare, tags[id(value)], batch, b, b + 1).clone() if id(value) in tags else bare
    if isinstance(value, (tuple, list)):
        return type(value)(_sliced(v, tags, batch, b) for v in value)
    return value


def run_on_example(call: Call, tags: dict[int, Layout], b: int) -> Any:
    with torch.no_grad():
        args = tuple(_sliced(a, tags, call.batch, b) for a in call.args)
        return call.func(*args, **{k: _sliced(v, tags, call.batch, b) for k, v in call.kwargs.items()})


class Generic(Piecewise):
    """G_i = (∂f(x_i, q)/∂q)ᵀ·g_i for any differentiable operation f that treats examples independently."""

    def __init__(
        self,
        run: Callable[[Tensor, tuple[Tensor, ...]], Tensor],
        source: Tensor,
        inputs: tuple[Tensor, ...],
        grad: Tensor,
    ) -> None:
        self.run, self.source, self.inputs, self.grad = run, source.detach(), inputs, grad
        self.batch, self.shape = grad.shape[0], source.shape

    def _pull(self, inputs: tuple[Tensor, ...], grad: Tensor) -> Tensor:
        pullback: Any = torch.func.vjp(lambda q: self.run(q, inputs), self.source)[1]
        (result,) = pullback(grad)
        return result  # type: ignore[no-any-return]

    def instantiate(self, lo: int, hi: int) -> Tensor:
        inputs = tuple(x[lo:hi] for x in self.inputs)
        with torch.enable_grad():
            try:
                grads = torch.func.vmap(self._pull)(inputs, self.grad[lo:hi])
            except RuntimeError:
                # Not every operation can be vectorised; one example at a time always works.
                each = [self._pull(tuple(x[i] for x in inputs), self.grad[lo + i]) for i in range(hi - lo)]
                grads = torch.stack(each)
        return precise(grads.detach())

    def without(self, bad: Tensor) -> Generic:
        inputs = tuple(cleared(x, bad) if x.is_floating_point() else x for x in self.inputs)
        kept = Generic(self.run, self.source, inputs, cleared(self.grad, bad))
        return kept


def generic(
    recorder: Recording,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tagged: list[tuple[Tensor, Tag]],
    shared: list[Tensor],
) -> Any:
    """Run an operation on detached parameters and keep its inputs, to be differentiated example by example later."""
    batch = recorder.batch
    assert batch is not None
    with without_subclasses():
        out = func(*detached(args, shared), **detached(kwargs, shared))
    tag = recorder.guard.tag(Call(name, func, args, kwargs, out, batch, tagged))
    layouts = [(t, t_tag) for t, t_tag in tagged if isinstance(t_tag, Layout)]
    regular = isinstance(out, Tensor) and isinstance(tag, Layout) and tag.owner is None
    regular = regular and all(layout.owner is None for _, layout in layouts)
    if not regular or not _alone(name, func, args, kwargs, layouts, out, tag, batch):
        # Perhaps a shared argument has a slot for every example (a token expanded over the batch): then it is data.
        first, layout = layouts[0]
        size = first.shape[layout.dim]
        copies = {id(q): _as_data(recorder, q, layout, size) for q in shared if _has_slot(q, layout, size)}
        if copies:
            return func(*replaced(args, copies), **replaced(kwargs, copies))
        reason = f"`{name}` uses a parameter in a way that has no per-example rule; write it with simpler operations"
        recorder.problems.add(reason)
        return recorder.finish(name, func, args, kwargs, out, [(t, Mixed(reason)) for t, _ in tagged])
    recorder.problems.report_slow(name)
    inputs = tuple(split_batch(t.as_subclass(Tensor).detach(), layout, batch) for t, layout in layouts)
    keys = [id(t) for t, _ in layouts]
    originals = [t for t, _ in tagged]
    bare_args, bare_kwargs = detached(args, shared), detached(kwargs, shared)
    stand_ins = {id(q): d for q, d in zip(tensors((args, kwargs)), tensors((bare_args, bare_kwargs)))}

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        shares = split_batch(grad, tag, batch)
        pairs: list[tuple[Tensor, Contribution]] = []
        for q in {id(s): s for s in shared}.values():
            stand_in = stand_ins[id(q)]

            def run(value: Tensor, xs: tuple[Tensor, ...], stand_in: Tensor = stand_in) -> Tensor:
                table = {**dict(zip(keys, xs)), id(stand_in): value}
                with without_subclasses():
                    return func(*replaced(bare_args, table), **replaced(bare_kwargs, table))  # type: ignore[no-any-return]

            pairs.append((q, Generic(run, q, inputs, shares)))
        return pairs

    out = recorder.tap(out, originals, make)
    return recorder.finish(name, func, args, kwargs, out, tagged)


def _alone(
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    layouts: list[tuple[Tensor, Layout]],
    out: Tensor,
    tag: Layout,
    batch: int,
) -> bool:
    """Return whether the operation on one example gives exactly that example's share of the output's shape."""
    expected = list(out.shape)
    expected[tag.dim] //= batch
    call = Call(name, func, args, kwargs, out, batch, list(layouts))
    try:
        share = run_on_example(call, {id(t): layout for t, layout in layouts}, 0)
    except (RuntimeError, IndexError, ValueError):
        return False
    return list(share.shape) == expected


def _has_slot(q: Tensor, layout: Layout, size: int) -> bool:
    return q.ndim > layout.dim and q.shape[layout.dim] == size


def _as_data(recorder: Recording, q: Tensor, layout: Layout, size: int) -> Tensor:
    """A shared tensor with one slot per example, as data."""
    return mark(personal(recorder, q, layout, size, q.ndim), recorder, layout)


def fallback(recorder: Recording, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    tagged, shared = recorder.scan(args, kwargs)
    return generic(recorder, name, func, args, kwargs, tagged, shared)


def finish(recorder: Recording, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> Tensor:
    tagged, _ = recorder.scan(args, kwargs)
    return recorder.finish(name, func, args, kwargs, out, tagged)  # type: ignore[no-any-return]
