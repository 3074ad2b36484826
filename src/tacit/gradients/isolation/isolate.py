"""Run a module one example at a time.

A module that the engine cannot follow (it reads values, has sizes decided by data, custom autograd functions) is called
once for each example. Its proof is one sentence: a record's pass sees nothing but that record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from tacit.gradients.factors.complex_parts import real
from tacit.gradients.factors.contribution import Dense
from tacit.gradients.factors.parameter_uses import Part
from tacit.gradients.isolation.cutting import Join, agreed, cut
from tacit.gradients.isolation.module_state import State
from tacit.gradients.isolation.replay import LARGE, Replayed, Walk
from tacit.gradients.layout import Layout
from tacit.gradients.problems import CannotCut
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import pytree, without_subclasses
from tacit.gradients.traced import Traced, mark

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Body(nn.Module):
    """A module whose original forward can be called with other tensors in the place of its parameters."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.run = module, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Isolated:
    """Stands in for a module's forward while a followed pass runs.

    Formal guarantee: the call for example i receives example i's own entries of every tensor of the batch, constants,
    and aliases of the parameters that no other example's call has, so that what arrives at them in the backward pass is
    example i's gradient. Buffers begin each call as they were before the first; a value that an example leaves in a
    buffer must be the same for all.
    """

    def __init__(self, recorder: Recording, module: nn.Module, joins: Sequence[Sequence[Join]]) -> None:
        self.recorder, self.module, self.joins = recorder, module, joins
        self.original: Callable[..., Any] = module.forward
        self.calls = 0
        self._body = _Body(module, self.original)
        self._upstream: list[Any] = []
        """The nodes that made the inputs of the call at hand."""
        self._walk: Walk | None = None
        """How its examples' gradients are computed again, if they are too large to be kept."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_followed():
            return self.original(*args, **kwargs)
        joins = self.joins[min(self.calls, len(self.joins) - 1)]
        self.calls += 1
        if not self.recorder.batch:
            return self._run_empty((args, kwargs), joins)
        outputs = self.run((args, kwargs))
        return self.put_together(outputs, joins)

    def is_followed(self) -> bool:
        """Return whether a followed pass is running, and not one of a single example already."""
        return self.recorder.inside and not self.recorder.evaluating and not self.recorder.isolating

    def __reduce__(self) -> Any:
        """A copy of the module, or one in a file, has its own forward."""
        bound = getattr(self.original, "__self__", None) is self.module
        return _own_forward, (self.module, None if bound else self.original)

    def run(self, arguments: Arguments) -> list[Any]:
        """Return every example's own output."""
        recorder, batch = self.recorder, self.recorder.batch
        assert batch is not None
        with without_subclasses():
            self._upstream = [t.grad_fn for t in pytree.tree_leaves(arguments) if type(t) is Traced]
            pieces = cut(arguments, batch)
        with recorder.isolation(), State(self.module) as state:
            named = {name: p for name, p in self._body.named_parameters() if p.requires_grad}
            aliases = [{name: p.detach().requires_grad_() for name, p in named.items()} for _ in pieces]
            outputs = []
            for (args, kwargs), own in zip(pieces, aliases):
                state.begin()
                outputs.append(functional_call(self._body, own, args, kwargs))
        names = {name: recorder.names[id(p)] for name, p in named.items()}
        renamed = [{names[name]: alias for name, alias in own.items()} for own in aliases]
        size = sum(p.numel() * p.element_size() for p in named.values())
        self._walk = Walk(renamed) if size > LARGE and torch.is_grad_enabled() else None
        recorder.aliases.append(renamed if self._walk is None else self._walk)
        return outputs

    def put_together(self, outputs: Sequence[Any], joins: Sequence[Join]) -> Any:
        """Return the module's output for the whole batch, with its tags."""
        flat = [pytree.tree_flatten(output) for output in outputs]
        leaves, tree = [each[0] for each in flat], flat[0][1]
        if any(len(each) != len(joins) for each in leaves):
            raise CannotCut("its outputs differ in structure from example to example")
        return pytree.tree_unflatten([self._join(j, values) for j, values in zip(joins, zip(*leaves))], tree)

    def _join(self, join: Join, values: Sequence[Any]) -> Any:
        if join.kind == "same":
            return agreed(values)
        if join.kind == "left out":
            return None
        joined = join.join(values)
        if joined.requires_grad and self._walk is not None:
            self._walk.returns(joined)
        if joined.requires_grad:
            joined = self.recorder.border(joined, self._upstream)
        dim, outer = (join.dim, join.outer) if join.kind == "rows" else (0, 1)
        inner = joined.shape[dim] // (outer * len(values)) if values else 1
        mark(joined, self.recorder, Layout(dim, inner))
        return joined if join.kind == "rows" else joined.mean() if join.kind == "mean" else joined.sum()

    def _run_empty(self, arguments: Arguments, joins: Sequence[Join]) -> Any:
        """Run an empty batch: an example of zeros tells the shapes, and none of it is kept."""

        def padded(leaf: Any) -> Any:
            if type(leaf) is not Traced or not isinstance(leaf._tag, Layout):
                return leaf
            shape = list(leaf.shape)
            shape[leaf._tag.dim] = max(1, leaf._tag.inner)
            return torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)

        with torch.no_grad(), without_subclasses():
            args, kwargs = pytree.tree_map(padded, arguments)
            with self.recorder.isolation(), State(self.module) as state:
                state.begin()
                output = functional_call(self._body, {}, args, kwargs)
                state.begin()
        leaves, tree = pytree.tree_flatten(output)
        return pytree.tree_unflatten([self._nothing(j, leaf) for j, leaf in zip(joins, leaves)], tree)

    def _nothing(self, join: Join, leaf: Any) -> Any:
        if join.kind in ("same", "left out"):
            return leaf if join.kind == "same" else None
        with without_subclasses():
            empty = leaf.narrow(join.dim, 0, 0) if join.kind == "rows" else leaf.reshape(1)[:0]
            if empty.is_floating_point() and torch.is_grad_enabled():
                empty = self.recorder.tap(empty, (), lambda grad: ())
        mark(empty, self.recorder, Layout(join.dim if join.kind == "rows" else 0))
        return empty if join.kind == "rows" else empty.sum()


def gather_gradients(recorder: Recording) -> None:
    """Move gradients from the examples' own aliases to the contributions to the parameters."""
    for call in recorder.aliases:
        if isinstance(call, Walk) and call.used:
            for name in set(call.names()) - call.handed_over:  # a second pass adds to what arrived
                recorder.parts.setdefault(name, []).append(Part(Replayed(call, name), None))
                call.handed_over.add(name)
            continue
        aliases = call.aliases if isinstance(call, Walk) else call
        for name in aliases[0] if aliases else ():
            grads = [own[name].grad for own in aliases]
            if all(g is None for g in grads):
                continue
            zero = torch.zeros_like(aliases[0][name])
            dense = Dense(real(torch.stack([zero if g is None else g.detach() for g in grads])))
            recorder.parts.setdefault(name, []).append(Part(dense, None))
            for own in aliases:
                own[name].grad = None


Plan = dict[str, Sequence[Sequence[Join]]]
"""The modules that run one example at a time, by name, and for each of their calls how outputs are put together."""


def _own_forward(module: nn.Module, forward: Callable[..., Any] | None) -> Callable[..., Any]:
    return type(module).forward.__get__(module) if forward is None else forward


class Installed:
    """Lets the modules of a plan run one example at a time in followed passes, until `remove`."""

    def __init__(self, recorder: Recording, model: nn.Module, plan: Plan, kind: type[Isolated] = Isolated) -> None:
        self._before: list[tuple[nn.Module, Any]] = []
        self._stand_ins: dict[str, Isolated] = {}
        for name, joins in plan.items():
            module = model.get_submodule(name)
            self._before.append((module, vars(module).get("forward")))
            self._stand_ins[name] = vars(module)["forward"] = kind(recorder, module, joins)

    def begin(self) -> None:
        """A pass begins: calls are counted from the first."""
        for stand_in in self._stand_ins.values():
            if isinstance(stand_in, Isolated):  # in a copy of the engine it is the module's own forward
                stand_in.calls = 0

    def found(self) -> Plan:
        """Return how the outputs of the modules that were called are put together."""
        return {name: stand_in.joins for name, stand_in in self._stand_ins.items() if stand_in.joins}

    def remove(self) -> None:
        """Give the modules their own forward back."""
        for module, before in self._before:
            vars(module).pop("forward", None)
            if before is not None:
                vars(module)["forward"] = before
        self._before = []

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
