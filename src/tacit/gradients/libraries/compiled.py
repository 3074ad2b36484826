"""Compiled modules run as they were written while the engine follows them.

Compiled code hides its operations. `torch.compile` keeps the module it was given, so that nothing has to be proved
about compiled code: it does not run in private training.
"""

from __future__ import annotations

import functools
import logging
import warnings
from typing import Any

import torch
from torch import nn

from tacit.gradients.torch_internals import is_compiler_loaded, put_compiled_call, set_eval_frame, take_compiled_call

log = logging.getLogger(__name__)


warnings.filterwarnings(
    "ignore", message=r"Dynamo does not know how to trace the builtin `torch\._C\._dynamo\.eval_frame"
)


def leave_compiler() -> None:
    """Run uncompiled from here on, until the compiled call that we are in returns: it was compiled after attaching.

    The compiler cannot trace the call below, and so ends what it compiles before it.
    """
    set_eval_frame(None)
    _tell()


@functools.cache
def _tell() -> None:
    log.warning("the model is compiled; private training runs its modules as they were written, uncompiled")


class Eager:
    """Switches compilation off in followed passes of a model, in which some code may be compiled."""

    def __init__(self, model: nn.Module) -> None:
        self._compiled = [(m, call) for m in model.modules() if (call := take_compiled_call(m)) is not None]
        self._stance: Any = None
        if self._compiled or any(type(m).__name__ == "OptimizedModule" for m in model.modules()):
            _tell()

    def put(self) -> None:
        """A followed pass begins."""
        if is_compiler_loaded() and self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def remove(self) -> None:
        """It is over."""
        stance, self._stance = self._stance, None
        if stance is not None:
            stance.__exit__(None, None, None)

    def end(self) -> None:
        """Give modules that were compiled in place their compiled call back."""
        for module, call in self._compiled:
            put_compiled_call(module, call)
        self._compiled = []
