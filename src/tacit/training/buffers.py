"""Watch a model's buffers, because values that a forward pass writes there would leave the run without noise."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from tacit.gradients.traced import Traced
from tacit.training.batch_norm import PrivateBatchNorm
from tacit.training.snapshot import Snapshot, members, put_back


class WatchedBuffers:
    """The buffers that must not change, from the run's beginning to its end.

    These are all buffers but those of `PrivateBatchNorm`, which are released, and the public ones. The model may write
    to a public buffer, but not a tensor that the engine knows to depend on the batch.
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
        """Take the current buffers as the right ones: at the beginning of the run, or after a checkpoint was
        loaded."""
        self._held = {name: Snapshot(buffer, copied=True) for name, buffer in self._find().items()}

    def _find(self) -> dict[str, Tensor]:
        """Return the watched buffers, read anew, because an assignment in ``forward`` replaces a buffer's object."""
        found = members(self._model, "_buffers")
        return {name: buffer for name, buffer in found.items() if name not in self._released}

    def put_back(self) -> list[str]:
        """Undo every change, and return the names of the changed buffers."""
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
        """Restore changed buffers, and raise an error if there are any."""
        changed = self.put_back()
        if changed:
            raise RuntimeError(
                f"buffer {', '.join(map(repr, changed))} changed while training and was restored, because it would "
                "carry statistics of the records without noise. Use tacit.private_batch_norm, put such layers in eval "
                "mode, or list the buffer in public_buffers if its values do not depend on the records."
            )
