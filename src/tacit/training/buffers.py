"""Watching a model's buffers: what a forward pass writes there would leave the run without noise."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from tacit.training.batch_norm import PrivateBatchNorm


class WatchedBuffers:
    """The buffers that must not change: all but those of `PrivateBatchNorm`, which are released, and public ones."""

    def __init__(self, model: nn.Module, public: Sequence[str]) -> None:
        own = {id(buffer) for m in model.modules() if isinstance(m, PrivateBatchNorm) for buffer in m.buffers()}
        self._held: dict[str, tuple[Tensor, int, Tensor]] = {
            name: (buffer, buffer._version, buffer.clone())
            for name, buffer in model.named_buffers()
            if id(buffer) not in own and not any(fnmatchcase(name, pattern) for pattern in public)
        }

    def check(self) -> None:
        """Put back, and refuse, a buffer that was written to."""
        for name, (buffer, version, copy) in self._held.items():
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
                self._held[name] = (buffer, buffer._version, copy)
                raise RuntimeError(
                    f"buffer {name!r} changed while training and was put back: it would carry statistics of the "
                    "records without noise. Use tacit.private_batch_norm, put such layers in eval mode, or list the "
                    "buffer in public_buffers if what is written to it does not depend on the records."
                )
