"""Operations that fail: for their shapes, which are public, or for the values of some example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.nested import mapped
from tacit.gradients.problems import ValuesRead

FAILED = (
    "an operation failed for the values of some example (a matrix without inverse, an index out of range), and the "
    "model went on in another way for all of them; use what tells of each example (torch.linalg.cholesky_ex, a "
    "comparison) with torch.where"
)

FAILURES = (RuntimeError, IndexError)
_OTHER = (ValuesRead, NotImplementedError, torch.OutOfMemoryError)


def is_of_values(error: Exception, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the operation does not fail, as far as can be told, for the same shapes without values."""
    if isinstance(error, _OTHER):
        return False
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            func(*mapped(args, _emptied), **mapped(kwargs, _emptied))
        except Exception as again:
            return type(again) is not type(error) or "meta" in str(again)
    return True


def _emptied(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
