"""Ask libraries for their data-independent code paths while the engine follows a pass.

Hugging Face models look at values of the batch to choose between two ways of computing the same thing: an attention
mask without padding is dropped, for example. For tracing compilers `transformers` has a switch, `is_tracing`, that
always takes the way that needs no values. While a followed pass runs in a thread, the switch is on in that thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.distributions import Distribution

_SWITCH = "transformers.utils.import_utils", "is_jit_tracing"
"""The module and the function that `is_tracing` asks; transformers 5 has it, older versions are isolated instead."""

_thread = threading.local()


class _Switch:
    """Answers for `is_jit_tracing`: true in a thread whose pass is followed, else what transformers itself says."""

    def __init__(self, original: Callable[[], bool]) -> None:
        self._original = original

    def __call__(self) -> bool:
        return bool(getattr(_thread, "passes", 0)) or self._original()


def prepare() -> None:
    """Put the switch into transformers, if that library is loaded."""
    module: Any = sys.modules.get(_SWITCH[0])
    original = getattr(module, _SWITCH[1], None)
    if original is not None and not isinstance(original, _Switch):
        setattr(module, _SWITCH[1], _Switch(original))


def begin() -> None:
    """A followed pass begins in this thread."""
    prepare()
    _thread.passes = getattr(_thread, "passes", 0) + 1


def end() -> None:
    """It is over."""
    _thread.passes = max(0, getattr(_thread, "passes", 0) - 1)


@contextmanager
def paths() -> Iterator[None]:
    """Take data-independent paths inside the block."""
    begin()
    try:
        yield
    finally:
        end()


def only_validates() -> bool:
    """Return whether the code that asks for a value can only raise an error with it.

    `torch.distributions` validates its arguments: the value decides whether an error is raised, and nothing else.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_code in _VALIDATING


_BETWEEN = ("tacit.gradients", "torch.overrides", "torch._tensor")
"""Modules whose code brings an operation from its caller to the engine."""

_VALIDATING = frozenset((Distribution.__init__.__code__, Distribution._validate_sample.__code__))
