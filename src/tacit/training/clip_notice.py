"""Tell users of `torch.nn.utils.clip_grad_norm_` that it does nothing to the gradients of a private run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad

log = logging.getLogger("tacit")

_NAME = "_clip_grads_with_norm_"  # private; what clip_grad_norm_ calls, under whatever name it was imported
_original: Any = getattr(clip_grad, _NAME, None)
_private: list[set[int]] = []


@contextmanager
def clipping_noticed(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Warn, once, if the gradients of ``parameters`` are clipped by PyTorch's own function within the block."""
    watched = {id(parameter) for parameter in parameters}
    _private.append(watched)
    if _original is not None:
        setattr(clip_grad, _NAME, _clip)
    try:
        yield
    finally:
        _private.remove(watched)
        if _original is not None and not _private:
            setattr(clip_grad, _NAME, _original)


def _clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for watched in list(_private):
        if any(id(parameter) in watched for parameter in listed):
            watched.clear()
            log.warning(
                "clip_grad_norm_ has no effect in a private run: make_private clips each record's gradient to "
                "clipping=, and the sum reaches the optimizer inside optimizer.step(). Leave the call out."
            )
    return _original(listed, *args, **kwargs)
