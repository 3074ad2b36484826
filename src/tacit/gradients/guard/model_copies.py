"""Copies of a model to run the first batch on, so that nothing of it stays."""

from __future__ import annotations

import copy
import functools
import random
import types
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.gradients.nested import tensors
from tacit.gradients.torch_internals import forward_hooks, forward_pre_hooks, global_forward_hooks, write_count

WRITES = "it writes to its parameters"


class NotCompared(Exception):
    """Why parts of a batch could not be compared. Of an error its kind alone: its text may tell of records."""


HIDDEN_DROPOUT = (nn.RNNBase, nn.MultiheadAttention)
"""Modules that hand their dropout to code that shows no dropout."""


_CONTAINERS = (dict, OrderedDict, set)

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
"""Kinds of hooks that only listen; a hook that computes a weight (`weight_norm`) is an object."""


def copied(model: nn.Module, copies: dict[int, Any] | None = None) -> nn.Module:
    """A copy with the same parameters: what it keeps or counts is its own. `copies` will have all that was copied."""
    shared = {} if copies is None else copies
    shared |= {id(p): p for p in model.parameters()}
    for module in model.modules():
        for hook in (*forward_hooks(module).values(), *forward_pre_hooks(module).values()):
            owner = getattr(hook, "__self__", None)  # of a method, which would be copied with it
            if not isinstance(owner, nn.Module):
                shared[id(owner)] = owner
        values = list(vars(module).values())
        for value in values:
            if type(value) in _CONTAINERS and not value:  # most of a module's; `deepcopy` takes long over each
                shared[id(value)] = type(value)()
        for value in tensors(values):
            if value.grad_fn is not None:  # a weight that a hook computes anew, or what it kept of the batch before
                shared[id(value)] = value
    twin = copy.deepcopy(model, shared)
    if not {id(m) for m in model.modules()}.isdisjoint(id(m) for m in twin.modules()):
        raise NotCompared("parts of it refuse to be copied")
    return twin


def silenced(twin: nn.Module) -> nn.Module:
    """Take dropout and other code's hooks out of a copy."""
    if any(global_forward_hooks):
        raise NotCompared("a hook for all modules is set")
    own = {id(module) for module in twin.modules()}
    for module in twin.modules():
        for hooks in (forward_hooks(module), forward_pre_hooks(module)):
            for key in [k for k, hook in hooks.items() if _is_anothers(hook, own)]:
                del hooks[key]
        if isinstance(module, HIDDEN_DROPOUT):
            module.dropout = 0.0
    return twin


def _is_anothers(hook: Any, own: set[int]) -> bool:
    """Return whether a hook belongs to other code: not a method of the model's own modules.

    `transformers` collects hidden states with hooks that it sets only once: these stay.
    """
    if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
        return False
    return isinstance(hook, _FUNCTIONS) and id(getattr(hook, "__self__", None)) not in own


def advance(copies: dict[int, Any], seed: int) -> None:
    """Generators that were copied, wherever they are, begin elsewhere for another seed."""
    for value in [value for key, value in copies.items() if seed and id(value) != key]:
        if isinstance(value, torch.Generator):
            torch.rand(seed, generator=value, device=value.device)
        elif isinstance(value, (random.Random, np.random.RandomState, np.random.Generator)):
            value.random()


def storage_places(model: nn.Module) -> list[tuple[int, int, int]]:
    """Return which tensors the parameters are, where they lie, and how often they were written to."""
    return [(id(p), p.data_ptr(), write_count(p)) for p in model.parameters()]
