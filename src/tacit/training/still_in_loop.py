"""Freeze dropout and noise during the trial, for the training loop and for no other code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tacit.gradients.guard.standing_still import Still


class StillInLoop(Still):
    """Freezes dropout and noise while the loop that asked for the batch runs; ends if the loop was interrupted.

    An adapter of `tacit.integrations` asks for batches on behalf of a loop that has not begun to use them; it ends the
    lot itself, whatever happens to that loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._adapter = any(_module(frame).startswith("tacit.integrations.") for frame in _frames())
        self._loop = next((id(frame) for frame in _frames() if not _is_between(frame)), 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.active and not self._adapter and not any(id(frame) == self._loop for frame in _frames()):
            self.active = False
        return super().__torch_function__(func, types, args, kwargs)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_between(frame: FrameType) -> bool:
    """Return whether the frame is of this library, a context manager, or a generator around the batches (tqdm).

    A generator's frame is off the stack while the loop works with the batch that it has passed on.
    """
    passes_on = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
    return passes_on or _module(frame).startswith(("tacit.", "contextlib"))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
