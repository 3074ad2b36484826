"""Passes without randomness: every dropout is the identity, and noise the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.gradients.guard.model_copies import WRITES, NotCompared
from tacit.gradients.names import writes
from tacit.gradients.nested import tensors
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced

_HALF = ("rand", "rand_like", "uniform_", "randn", "randn_like", "normal_", "exponential_", "log_normal_", "cauchy_")
_MEANS: dict[str, Callable[..., Tensor]] = {
    "bernoulli": lambda share, *_: share,
    "poisson": lambda rate, *_: rate,
    "binomial": lambda count, share, *_: count * share,
    "standard_gamma": lambda shape, *_: shape,
    "sample_dirichlet": lambda shape, *_: shape / shape.sum(-1, keepdim=True),
}
"""Values that replace random draws: their mean, so that parameters which combine examples are seen in it."""

_STANDING = dict.fromkeys(_HALF, 0.5) | dict.fromkeys(("bernoulli", "bernoulli_"), 1.0)
"""The number that stands for noise. Not zero: a direction divided by its length would be NaN and hide the rest."""


class Still(TorchFunctionMode):
    """Make every dropout the identity and noise the same everywhere; refuse writes to the parameters of ``model``."""

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        self.active = True
        owned = [] if model is None else list(model.parameters())
        self._memory = {p.untyped_storage().data_ptr() for p in owned if p.numel()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if not self.active or name == "__get__":
            return func(*args, **kwargs)
        if "dropout" in name and args and isinstance(args[0], Tensor):
            return args[0]
        if name == "scaled_dot_product_attention":
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
        if self._memory and self._writes_to_parameters(func, name, args, kwargs):
            raise NotCompared(WRITES)
        found = func(*args, **kwargs)
        mean = _MEANS.get(name.removeprefix("_"))
        if mean is not None and not (name == "bernoulli" and (len(args) > 1 or "p" in kwargs)):
            return found + (mean(*args) - found).detach()
        if name in _STANDING:
            with torch.no_grad():
                found.fill_(_STANDING[name])
        return found

    def _writes_to_parameters(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> bool:
        """Asked before it is done: the parameters are the model's own."""
        assigned = name == "__set__" and func.__self__.__name__ == "data" and not _are_the_same(args[0], args[1])
        changed = assigned or (writes(func) and name != "requires_grad_")
        if not changed and "out" not in kwargs:
            return False
        written = tensors((args[:1] if changed else (), kwargs.get("out")))
        with without_subclasses():
            return any(_address(t) in self._memory for t in written if type(t) is not Traced)


def _address(t: Tensor) -> int | None:
    """Return where a tensor's memory begins; None for one that has none of its own (inside `torch.vmap`, nested)."""
    try:
        return t.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None


def _are_the_same(parameter: Tensor, assigned: Any) -> bool:
    """Return whether a parameter is assigned its own memory, as `module.to` does where nothing has to be moved."""
    if not isinstance(assigned, Tensor) or assigned.shape != parameter.shape or assigned.dtype != parameter.dtype:
        return False
    return assigned.data_ptr() == parameter.data_ptr() and assigned.stride() == parameter.stride()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Everything random begins with a seed, and goes on as if nothing had been drawn.

    Only devices in use are seeded. `torch.manual_seed` also seeds those that a process has not touched yet: CUDA would
    then begin with this seed, long after.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (the model may use it)
        stack.enter_context(torch.random.fork_rng(()))
        device = torch.accelerator.current_accelerator()
        module: Any = None if device is None else torch.get_device_module(device)
        if device is not None and getattr(module, "is_initialized", module.is_available)():
            if device.type != "mps":  # which has no states by number
                devices = range(module.device_count())
                stack.enter_context(torch.random.fork_rng(devices, device_type=device.type))
            getattr(module, "manual_seed_all", module.manual_seed)(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        yield
