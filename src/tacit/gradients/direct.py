"""The rule of an operation on one tensor of the batch and parameters, found before its arguments are gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.layers.registry import FROZEN, OPERATIONS
from tacit.gradients.layout import Layout
from tacit.gradients.recording import Recording
from tacit.gradients.traced import Traced

_CONTAINERS = frozenset((tuple, list, dict))


def direct_rule(
    recorder: Recording, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Return the rule if the first argument is of the batch and all other tensors are parameters; None elsewhere.

    `Recorder` would come to the same rule, by looking for tensors in every argument.
    """
    first = args[0] if args else None
    if type(first) is not Traced or first._recorder is not recorder or first._epoch != recorder.epoch:
        return None
    if type(first._tag) is not Layout or not recorder.is_plain() or not torch.is_grad_enabled():
        return None
    trained = False
    for value in (*args[1:], *kwargs.values()) if kwargs else args[1:]:
        of = type(value)
        if of is nn.Parameter:
            if value.is_complex():
                return None
            trained = trained or value.requires_grad
        elif of is tuple:
            if any(type(v) is not int for v in value):
                return None
        elif of in _CONTAINERS or isinstance(value, Tensor):
            return None
    return OPERATIONS.get(name) if trained else FROZEN.get(name)
