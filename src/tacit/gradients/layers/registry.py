"""Where the rules of operations are registered.

An operation may have a *gradient rule*, which captures what its parameters' gradients are made of (`operation`), and a
*batch rule*, which says where examples lie in its output (`rule`). Both stand side by side in the layer's file.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.layout import Layout, Mixed, Tag, owners
from tacit.gradients.recording import Recording
from tacit.gradients.traced import Traced, plain

_NUMPY_NAMES = {"dim": ("axis",), "keepdim": ("keepdims",), "input": ("x", "a", "x1"), "other": ("x2",)}
"""Names of arguments that PyTorch takes for its own."""


@dataclass(slots=True)
class Call:
    """One executed operation: canonical name, arguments, result, and the tagged tensors among its arguments."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    batch: int
    tagged: list[tuple[Tensor, Tag]]

    def arg(self, position: int, *names: str, default: Any = None) -> Any:
        if len(self.args) > position:
            return self.args[position]
        for name in names:
            for known in (name, *_NUMPY_NAMES.get(name, ())):
                if known in self.kwargs:
                    return self.kwargs[known]
        return default

    def dim(self, position: int, rank: int, default: int = 0) -> int:
        """One dimension, counted from the first."""
        return operator.index(self.arg(position, "dim", default=default)) % rank

    def dims(self, position: int, rank: int, *names: str) -> list[int] | None:
        """One dimension or several, given together or one by one; nothing where none is given."""
        given = self.arg(position, "dim", *names)
        if given is None or isinstance(given, bool):
            return None
        listed = list(given) if isinstance(given, (tuple, list)) else [given]
        if self.name in ("flip", "count_nonzero") and not isinstance(given, (tuple, list)):
            listed += self.args[position + 1 :]
        return [operator.index(d) % rank for d in listed] or None

    def layouts(self) -> list[tuple[Tensor, Layout]]:
        found: list[tuple[Tensor, Layout]] = []
        for t, tag in self.tagged:
            if isinstance(tag, Layout):
                found.append((t, tag))
        return found

    def main(self) -> Any:
        """The first argument, or the one that is called input."""
        return self.args[0] if self.args else self.arg(0, "input", default=next(iter(self.kwargs.values())))

    def first(self) -> tuple[Tensor, Layout]:
        """The main argument, with its layout if it has one (else that of the first tagged argument)."""
        main = self.main()
        for t, tag in self.layouts():
            if t is main:
                return t, tag
        return self.layouts()[0]

    def has_only(self, x: Any) -> bool:
        """Return whether this argument is of the batch and no other is (nor it once more, in another place)."""
        layouts = self.layouts()
        return len(layouts) == 1 and layouts[0][0] is x


Rule = Callable[[Call], Any]


RULES: dict[str, Rule] = {}
"""Batch rules by the name of the operation."""


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names.split():
            if name in RULES:
                raise ValueError(f"{name} has a batch rule already, in {RULES[name].__module__}; keep one of the two")
            RULES[name] = function
        return function

    return register


def rule_of_one(names: str) -> Callable[[Rule], Rule]:
    """For operations that treat examples one by one in their main argument.

    Data of the batch anywhere else (as a weight, a bias, a number of repeats) would act on all of them.
    """

    def register(function: Rule) -> Rule:
        def checked(call: Call) -> Any:
            return function(call) if call.has_only(call.main()) else mixes(call, ELSEWHERE)

        rule(names)(checked)
        return checked

    return register


ELSEWHERE = "has data of the batch for a weight, a bias or a setting, which acts on all examples"


BESIDE = (
    "sets examples that data has picked or put in order beside the rows of a constant, so that the others decide which "
    "row each one gets; give the constant to every example before, or make it part of the batch and index it alike"
)
"""Said of labels, say, that were not put in the order of the examples."""


def pairs(call: Call) -> Mixed:
    return Mixed(
        f"`{call.name}` combines different examples of the batch with each other; "
        "every example's loss must be computed from that example alone"
    )


def mixes(call: Call, what: str) -> Mixed:
    return Mixed(f"`{call.name}` {what}; every example's loss must be computed from that example alone")


def unknown(call: Call) -> Mixed:
    """Return the tag of an operation of which no rule says how it treats examples."""
    return Mixed(
        f"`{call.name}` is not known to the engine, so that examples may influence each other there; use it inside a "
        "module of the model, which then runs one example at a time"
    )


def unknown_form(call: Call) -> Mixed:
    """The rule of an operation whose gradient rule takes every form that it knows."""
    return mixes(call, "was called in a form the engine does not know")


def aligned(call: Call, rank: int, limit: int | None = None) -> Tag:
    """The common layout of right-aligned broadcast arguments in an output of the given rank."""
    found: Layout | None = None
    for t, tag in call.layouts():
        dim = rank - t.ndim + tag.dim
        here = tag.at(dim)
        if found is not None and (found.dim != dim or not found.same_order(here)):
            return pairs(call)
        found = here
    assert found is not None
    if limit is not None and found.dim >= limit:
        return pairs(call)
    return found


def broadcast(call: Call) -> Any:
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return aligned(call, out.ndim)


def removed(layout: Layout, dims: Sequence[int], keepdim: bool) -> Layout:
    return layout if keepdim else layout.at(layout.dim - sum(d < layout.dim for d in dims))


def tidy(layout: Layout, batch: int) -> Layout:
    """Return the regular form of a layout whose order turns out to be a regular one, whatever the examples are."""
    owner = layout.owner
    if layout.by_data or owner is None or not owner.numel() or owner.numel() % batch:
        return layout
    changes = (owner != owner[0]).nonzero()
    regular = Layout(layout.dim, int(changes[0]) if len(changes) else owner.numel())
    fits = owner.numel() % (batch * regular.inner) == 0
    same = fits and torch.equal(owner, owners(regular, batch, owner.numel(), owner.device))
    return regular if same else layout


def in_order(dim: int, owner: Tensor, batch: int) -> Layout:
    """Return the layout of rows that data has put in order: a regular one where that is the examples' own again."""
    found = tidy(Layout(dim, 1, owner), batch)
    return found if found.owner is None else replace(found, by_data="order")


Operation = Callable[..., Any]

OPERATIONS: dict[str, Operation] = {}
"""Gradient rules of operations with trainable arguments; each is called as rule(recorder, func, args, kwargs)."""

ALWAYS: dict[str, Operation] = {}
"""Operations the engine takes over whether or not an argument is trainable."""

FROZEN: dict[str, Operation] = {}
"""Operations it takes over where no argument is trained."""


def operation(names: str, where: dict[str, Operation] = OPERATIONS) -> Callable[[Operation], Operation]:
    """Among the rules for trainable operations, or `ALWAYS`, or `FROZEN`."""

    def register(function: Operation) -> Operation:
        where.update(dict.fromkeys(names.split(), function))
        return function

    return register


def layout_of(recorder: Recording, x: Any) -> Layout | None:
    if type(x) is not Traced or x._recorder is not recorder or x._epoch != recorder.epoch:
        return None
    return x._tag if isinstance(x._tag, Layout) else None


def trainable(q: Any) -> bool:
    return isinstance(q, Tensor) and type(q) is not Traced and q.requires_grad


def bare(q: Any) -> Any:
    """An argument as the operation should see it: without tag, and without a path to the parameters."""
    if type(q) is Traced:
        return plain(q)
    return q.detach() if isinstance(q, Tensor) else q


def bound(names: str, args: Sequence[Any], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """Arguments by name in a given order, whether they came by position or by keyword."""
    keys = names.split()
    if len(args) == len(keys):
        return list(args)
    values = {**defaults, **dict(zip(keys, args)), **kwargs}
    return [values.get(k) for k in keys]


_RANK = {"1d": 3, "2d": 4, "3d": 5}


def leading(call: Call) -> Tag:
    """Return the tag after an operation that treats every slice of the first dimension by itself."""
    x, layout = call.first()
    rank = _RANK.get(call.name[-2:], 4 if call.name in ("im2col", "pixel_shuffle", "pixel_unshuffle") else None)
    if call.name == "col2im":
        rank = 3
    if layout.dim != 0 or (rank is not None and x.ndim != rank and call.batch != 1):
        return mixes(call, "treats the dimension that holds the examples as channels or space; move the examples first")
    return layout
