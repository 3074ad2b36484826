"""Every private name of PyTorch, and of Python's frames, that the engine uses, with the reason.

A private name can change in any release. `tests/gradients/test_torch_internals.py` forbids such names in every other
module of the engine, and `make test-torch` runs the engine against the oldest and the newest PyTorch.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any

import torch
from torch import overrides
from torch.nn.modules import module as modules
from torch.utils import _pytree as pytree

__all__ = ["pytree"]
"""`pytree`: arguments and outputs of any structure, `transformers`' own classes among them, as lists of leaves."""

without_subclasses = torch._C.DisableTorchFunctionSubclass
"""Context in which operations on tensors of the batch are carried out, not followed; modes still see them."""

carry_out = torch.nn.Parameter.__torch_function__
"""The same for one operation, in one call: `carry_out(func, types, args, kwargs)`."""

with_overrides = torch._C._EnableTorchFunction
"""The opposite: a hook that PyTorch calls while the engine is at work is the user's code, which is followed."""

function_modes = overrides._get_current_function_mode_stack
"""The modes of this thread, the innermost last: the engine takes its own out from wherever it lies."""

write_count = attrgetter("_version")
"""A tensor's count of writes: has memory that is kept for the backward pass been overwritten?"""

base_of = attrgetter("_base")
"""The tensor that a tensor is a view of: a write into a view changes its base."""

buffers_of = attrgetter("_buffers")
"""A module's buffers by name, those that are None among them, which `named_buffers` leaves out."""

forward_hooks = attrgetter("_forward_hooks")
forward_pre_hooks = attrgetter("_forward_pre_hooks")
"""A module's hooks. There is no public way to list them, or to leave those of others out of a copy."""

backward_hooks = attrgetter("_backward_hooks")
"""Hooks on the backward pass of a module or a tensor, which see the gradients of all examples together."""

global_forward_hooks = (modules._global_forward_hooks, modules._global_forward_pre_hooks)
"""Hooks for all modules: they must see whole batches, and no copies."""

in_transform = torch._C._functorch.peek_interpreter_stack
"""Not None inside `torch.vmap`, `torch.func.grad` and the like, which wrap the batch in tensors of their own."""

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
"""Inside a backward pass: was it called with retain_graph=True, so that saved tensors must stay?"""

foreach_add, foreach_div_ = torch._foreach_add, torch._foreach_div_
"""One kernel for many tensors; what PyTorch's own optimizers use."""

_function: Any = torch.autograd.Function
_own_apply = None if isinstance(vars(_function).get("apply"), classmethod) else vars(_function).get("apply")

function_base: Any = _function.__mro__[1] if _own_apply is None else _function
"""The class of which custom autograd functions take the C implementation of `apply`: they are followed from there."""


def apply_of(function: Any) -> Any:
    """Return PyTorch's own `apply` of a custom autograd function. (Since 2.15 that of `Function` is in C itself.)"""
    return super(function_base, function).apply if _own_apply is None else _own_apply.__get__(None, function)


def setup_of(function: Any) -> Any:
    """Return the `setup_context` of a custom autograd function; None if its forward takes the context itself."""
    found = function.setup_context
    return None if found is function_base.setup_context else found


get_frame, current_frames = sys._getframe, sys._current_frames
"""Frames of Python's stack: which module's code runs, and whether a call of the model still does."""

set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
"""Takes the compiler out for one operation, and returns it: it would trace the engine itself."""

OPERATORS = (type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor))
"""The classes of PyTorch's and other libraries' operators; their text is `library.name.overload`."""


def storage_users(t: torch.Tensor) -> int:
    """Return how many tensors share the memory of a tensor, itself among them: a write changes all of them."""
    return int(torch._C._storage_Use_Count(t.untyped_storage()._cdata)) - 1


def saved(node: Any, name: str) -> Any:
    """Return what a node of the graph keeps for its backward pass: which rows of a table were looked up?"""
    return getattr(node, f"_saved_{name}")


def is_compiler_loaded() -> bool:
    """Return whether anything can be compiled yet: asking the compiler itself would load it, for a second or two."""
    return "torch._dynamo" in sys.modules


def take_compiled_call(module: Any) -> Any:
    """Return what `module.compile()` has made, and take it out; None where it was not called."""
    return vars(module).pop("_compiled_call_impl", None)


def put_compiled_call(module: Any, call: Any) -> None:
    """Put it back."""
    vars(module)["_compiled_call_impl"] = call
