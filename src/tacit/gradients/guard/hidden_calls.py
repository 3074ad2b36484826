"""Functions that PyTorch does not show to tensor subclasses, while the model runs.

`torch.tensor(x)`, `torch.full(size, x)`, `torch.arange(x)` and numbers given as tensors (`alpha=x`) take values of the
batch out of sight, and so do transforms of functions (`torch.vmap`, `torch.func.grad`), which wrap the batch in tensors
of their own, and nested tensors. What came of it would pass for a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.gradients.nested import tensors
from tacit.gradients.problems import TRANSFORMED
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import function_modes
from tacit.gradients.traced import Traced

_NESTED = "a nested tensor hides which example its parts belong to; pad them to a fixed length"


_TAKES_LISTS = torch.functional.einsum
"""Given its operands in a list, it calls itself with them one by one, and that call is seen."""


class Unseen(TorchFunctionMode):
    """Sees every call of PyTorch's functions between `put` and `remove`, and refuses those that are not followed."""

    def __init__(self, recorder: Recording) -> None:
        super().__init__()
        self._recorder = recorder
        self._is_put = False
        self.looks_away = False
        """True if the engine itself reads something."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (
            Traced not in types
            and not self.looks_away
            and func is not _TAKES_LISTS
            and not self._is_found_by_value(func, args)
        ):
            for t in tensors((args, kwargs)):
                if _is_of_the_batch(t):
                    self._recorder.problems.refuse_reading(getattr(func, "__name__", str(func)))
                if t.is_nested:
                    self._recorder.problems.refuse_now(_NESTED)
                if _is_of_the_batch(torch.func.debug_unwrap(t)):
                    self._recorder.problems.refuse_now(TRANSFORMED)
        return func(*args, **kwargs)

    def _is_found_by_value(self, func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        """Return whether something is assigned to a buffer or a parameter, which a run compares with what they were."""
        assigned = getattr(func, "__name__", "") == "__set__"
        return assigned and (isinstance(args[0], nn.Parameter) or id(args[0]) in self._recorder.buffers)

    def put(self) -> None:
        """A followed pass begins."""
        self._is_put = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """It is over. Other modes may lie above this one: Ctrl-C may have ended a `with` block."""
        modes = function_modes() if self._is_put else []  # type: ignore[no-untyped-call]
        if self in modes:
            above = modes[modes.index(self) + 1 :]
            for _ in (self, *above):
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
            for mode in above:
                TorchFunctionMode.__enter__(mode)  # type: ignore[no-untyped-call]
        self._is_put = False


def _is_of_the_batch(t: Tensor) -> bool:
    return type(t) is Traced and t._recorder.active and t._recorder.follows(t)
