"""From a tensor that was used to the parameters it came from.

The tensor is a parameter, a view of one (a transpose, a slice), or computed from some (weight normalisation, a cast).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.complex_parts import RealParts
from tacit.gradients.factors.contribution import Contribution, Piecewise
from tacit.gradients.factors.outer import Outer
from tacit.gradients.factors.pulled_back import pulled_back
from tacit.gradients.torch_internals import backward_hooks, base_of


@dataclass(frozen=True, slots=True)
class Region:
    """The entries of a parameter that a view covers, each once."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """The same entries of another contiguous tensor of the parameter's shape."""
        return whole.as_strided(self.size, self.stride, int(whole.storage_offset()) + self.offset)


@dataclass(slots=True)
class Part:
    """A contribution to one parameter, or to one region of it."""

    contribution: Contribution
    region: Region | None


@contextmanager
def _without_hooks(parameter: Tensor) -> Iterator[None]:
    """Leave the user's gradient hooks of a parameter out: they are for the gradient of a batch, not of one example."""
    hooks = backward_hooks(parameter) or {}
    kept = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(kept)


def graph_leaves(t: Tensor) -> list[Tensor]:
    """The leaf tensors a computed tensor depends on."""
    if t.grad_fn is None:
        return [t]
    leaves, stack, seen = [], [t.grad_fn], set()
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack.extend(child for child, _ in node.next_functions)
    return leaves


class Derived(Piecewise):
    """Gradients of a parameter through a shared computation source = f(parameter): pulled back example by example."""

    def __init__(self, source: Tensor, parameter: Tensor, inner: Contribution) -> None:
        self.source, self.parameter, self.inner = source, parameter, inner
        self.shape, self.batch = parameter.shape, inner.batch

    def instantiate(self, lo: int, hi: int) -> Tensor:
        inner = self.inner.instantiate(lo, hi).to(self.source.dtype)
        if self.source.numel() == 1:  # a penalty: all examples have its gradient, each times a number
            one = self._pull(torch.ones_like(self.source), batched=False)
            if one is not None:
                return inner.reshape(-1, *(1,) * one.ndim) * one
        try:
            found = self._pull(inner, batched=True)
        except RuntimeError:  # not every operation can be vectorised; one example at a time always works
            each = [self._pull(own, batched=False) for own in inner]
            found = None if any(own is None for own in each) else torch.stack([own for own in each if own is not None])
        return found if found is not None else self.parameter.new_zeros((hi - lo, *self.shape))

    def _pull(self, inner: Tensor, *, batched: bool) -> Tensor | None:
        with _without_hooks(self.parameter):
            (found,) = torch.autograd.grad(
                self.source, [self.parameter], inner, is_grads_batched=batched, retain_graph=True, allow_unused=True
            )
        return found

    def without(self, bad: Tensor) -> Derived:
        return Derived(self.source, self.parameter, self.inner.without(bad))


def resolve(source: Tensor, contribution: Contribution, names: Mapping[int, str]) -> list[tuple[str, Part]]:
    """The parameters behind `source`, with the contribution each receives."""
    name = names.get(id(source))
    if name is not None:
        return [(name, Part(contribution, None))]
    base = base_of(source)
    if base is not None and id(base) in names and base.is_contiguous() and source.dtype == base.dtype:
        region = Region(
            int(source.storage_offset() - base.storage_offset()), tuple(source.shape), tuple(source.stride())
        )
        if all(st > 0 or n == 1 for n, st in zip(region.size, region.stride)) and _once(region, base.shape):
            flipped = source.ndim == 2 and region.stride[0] < region.stride[1]
            if flipped and type(contribution) is Outer and not contribution.order:
                region = Region(region.offset, region.size[::-1], region.stride[::-1])
                contribution = contribution.transposed()
            if region.size == tuple(base.shape) and region.stride == tuple(base.stride()):
                return [(names[id(base)], Part(contribution, None))]
            return [(names[id(base)], Part(contribution, region))]
    shortcut = pulled_back(source, contribution)
    if shortcut is not None and id(shortcut[0]) in names:
        return [(names[id(shortcut[0])], Part(shortcut[1], None))]
    leaves = [leaf for leaf in graph_leaves(source) if leaf.requires_grad]
    foreign = [leaf for leaf in leaves if id(leaf) not in names]
    if foreign or not leaves:
        raise RuntimeError(
            f"a trainable tensor of {(foreign or [source])[0].ndim} dimensions that is not a parameter of the recorded "
            "model took part in the loss; record the module that owns it, or freeze it"
        )
    parts = [(leaf, Derived(source, leaf, contribution)) for leaf in leaves]
    return [(names[id(leaf)], Part(RealParts(d) if leaf.is_complex() else d, None)) for leaf, d in parts]


def _once(region: Region, shape: torch.Size) -> bool:
    """Return whether the view covers no entry twice: by stride, each dimension steps over the ones below."""
    reach = 0
    for stride, size in sorted(zip(region.stride, region.size)):
        if size == 1:
            continue
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return reach + region.offset < shape.numel()
