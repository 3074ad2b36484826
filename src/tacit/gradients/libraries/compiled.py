"""Compiled modules run as they were written while the engine follows them.

Compiled code hides its operations. `torch.compile` keeps the module it was given, so that nothing has to be proved
about compiled code: it does not run in private training.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

log = logging.getLogger(__name__)


class Eager:
    """Switches compilation off in followed passes of a model that has compiled modules."""

    def __init__(self, model: nn.Module) -> None:
        wrapped = [m for m in model.modules() if getattr(m, "_orig_mod", None) is not None]
        self._compiled = [(m, vars(m).pop("_compiled_call_impl")) for m in model.modules() if _is_in_place(m)]
        self._needed = bool(wrapped)
        self._stance: Any = None
        if wrapped or self._compiled:
            log.warning("the model is compiled; private training runs its modules as they were written, uncompiled")

    def put(self) -> None:
        """A followed pass begins."""
        if self._needed and self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def remove(self) -> None:
        """It is over."""
        stance, self._stance = self._stance, None
        if stance is not None:
            stance.__exit__(None, None, None)

    def end(self) -> None:
        """Give modules that were compiled in place their compiled call back."""
        for module, call in self._compiled:
            vars(module)["_compiled_call_impl"] = call
        self._compiled = []


def _is_in_place(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called."""
    return vars(module).get("_compiled_call_impl") is not None
