"""Watching a model's buffers: what a forward pass writes there would leave the run without noise."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from tacit.gradients.traced import Traced
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.snapshot import Snapshot, members, put_back


class WatchedBuffers:
    """The buffers that must not change, from the run's beginning to its end.

    These are all but those of `PrivateBatchNorm`, which are released, and public ones. A public one may be written, but
    not with a tensor that the engine knows to depend on the batch.
    """

    def __init__(self, model: nn.Module, public: Sequence[str]) -> None:
        self._model, self._patterns = model, tuple(public)
        self._released = {
            f"{path}.{name}".lstrip(".")
            for path, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, PrivateBatchNorm)
            for name, _ in module.named_buffers()
        }
        self.hold()

    def hold(self) -> None:
        """The buffers of now are right: the run begins, or a checkpoint was loaded."""
        self._held = {name: Snapshot(buffer, copied=True) for name, buffer in self._find().items()}

    def _find(self) -> dict[str, Tensor]:
        """All that are watched, read anew: an assignment in ``forward`` puts another object in a buffer's place."""
        found = members(self._model, "_buffers")
        return {name: buffer for name, buffer in found.items() if name not in self._released}

    def put_back(self) -> list[str]:
        """Undo every change, and name the buffers that had one."""
        found = self._find()
        for name, buffer in found.items():
            if type(buffer) is not Traced and any(fnmatchcase(name, pattern) for pattern in self._patterns):
                held = self._held.get(name)
                if held is None or held.tensor is not buffer:
                    self._held[name] = Snapshot(buffer, copied=True)
                else:
                    held.renew()
        return put_back(self._model, "_buffers", self._held, found)[0] if found or self._held else []

    def check(self) -> None:
        """Put back, and refuse, a buffer that was written to."""
        changed = self.put_back()
        if changed:
            raise RuntimeError(
                f"buffer {', '.join(map(repr, changed))} changed while training and was put back: it would carry "
                "statistics of the records without noise. Use tacit.private_batch_norm, put such layers in eval mode, "
                "or list the buffer in public_buffers if what is written to it does not depend on the records."
            )
