"""Give every example of an isolated module the same state to begin with.

A module may keep more than parameters: buffers, lists, counters, caches. A value that one example leaves there would
reach the next one, and examples of later batches.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.problems import CannotCut
from tacit.gradients.torch_internals import buffers_of

_INTERNAL = frozenset(vars(nn.Module())) | {"forward"}
"""Attributes that PyTorch itself keeps in a module; buffers are compared one by one."""

_FIXED = (bool, int, float, complex, str, bytes, type, type(None), torch.dtype, torch.device, torch.Size, nn.Module)
"""Kinds of values that a call cannot change."""


class State:
    """The buffers and attributes of a module and of all modules in it.

    Every example begins with them as they were. Afterwards attributes are as they were too, and a buffer has what the
    examples left in it only if there were several and all left the same (the vectors of a spectral norm); otherwise the
    values would be theirs. Raises `CannotCut` if examples leave different values in a buffer.
    """

    def __init__(self, module: nn.Module, *, attributes: bool = True) -> None:
        self._parts = list(module.modules())
        self._shared: dict[int, Any] = {id(p): p for p in module.parameters()} | {id(m): m for m in self._parts}
        self._buffers = [(m, name, b) for m in self._parts for name, b in buffers_of(m).items()]
        watched = self._parts if attributes else []
        self._attributes = [{k: v for k, v in vars(m).items() if k not in _INTERNAL} for m in watched]
        self._left: list[Tensor | None] | None = None
        self._examples = 0

    def __enter__(self) -> State:
        return self

    def begin(self) -> None:
        """The next example begins."""
        self._gather()
        self._examples += 1
        copies = dict(self._shared)
        for module, name, original in self._buffers:
            buffers_of(module)[name] = None if original is None else original.clone()
        for module, attributes in zip(self._parts, self._attributes):
            self._restore(module, {k: _copied(v, copies) for k, v in attributes.items()})

    def _restore(self, module: nn.Module, attributes: dict[str, Any]) -> None:
        own = vars(module)
        for name in [k for k in own if k not in _INTERNAL and k not in attributes]:
            del own[name]
        own.update(attributes)

    def _gather(self) -> None:
        """Note the values that the example that has just ended left in the buffers."""
        if not self._examples:
            return
        left = []
        for module, name, original in self._buffers:
            found = buffers_of(module).get(name)
            left.append(None if _equal(found, original) else found)
        if self._left is None:
            self._left = left
        elif not all(_equal(a, b) for a, b in zip(self._left, left)):
            raise CannotCut("it writes values of the examples into its buffers")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self._gather()
        finally:
            for module, name, original in self._buffers:
                buffers_of(module)[name] = original
            for module, attributes in zip(self._parts, self._attributes):
                self._restore(module, attributes)
        if kind is None and self._examples > 1 and self._left is not None:
            self._keep(self._left)

    @torch.no_grad()
    def _keep(self, agreed: list[Tensor | None]) -> None:
        for (module, name, original), left in zip(self._buffers, agreed):
            if left is not None and original is not None and original.shape == left.shape:
                original.copy_(left)
            elif left is not None:
                buffers_of(module)[name] = left


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """A copy that an example may write to, parameters and modules shared."""
    if isinstance(value, _FIXED) or callable(value):
        return value
    try:
        return copy.deepcopy(value, copies)
    except Exception as error:  # whatever an object raises that cannot be copied
        raise CannotCut(f"it keeps an object of type {type(value).__name__} that cannot be copied") from error


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))
