"""Watch a model's parameters and buffers, so that no value of a batch stays in the model without noise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import nn

from tacit.training.buffers import WatchedBuffers
from tacit.training.parameters import WatchedParameters

log = logging.getLogger("tacit")


class WatchedModel:
    """Buffers are watched through the whole run, parameters from the batch to ``optimizer.step()``."""

    def __init__(self, model: nn.Module, public_buffers: Sequence[str]) -> None:
        self.buffers, self.weights = WatchedBuffers(model, public_buffers), WatchedParameters(model)

    def check(self) -> None:
        """Restore written buffers and parameters, and raise an error if there are any."""
        try:
            self.buffers.check()
        finally:
            self.weights.check()

    def undo(self) -> None:
        """Undo what a lot that was left half-way wrote into the model; an interruption does not stop it."""
        try:
            self._undo()
        except BaseException:  # an impatient Ctrl-C
            self._undo()
            raise

    def _undo(self) -> None:
        try:
            changed = self.buffers.put_back()
        finally:
            weights = self.weights.put_back()
        changed += weights
        if changed:
            lost = self.weights.what_is_lost()
            log.warning("%s changed in a lot that was not completed; that was undone%s", ", ".join(changed), lost)
