"""Clipping of a batch whose last rows only fill it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.gradients.clipping import Clipping


@dataclass(frozen=True)
class FirstRows:
    """Apply ``clipping`` to the first ``real`` rows; the others get weight zero, and the strategy does not see them.

    Formal guarantee: a row of weight zero adds nothing to a sum, whatever is in it, and a row's weight depends on that
    row alone; so the bound of ``clipping`` holds for the records.
    """

    clipping: Clipping
    real: int

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        return self.clipping.partition(shapes)

    def weights(self, norms: Tensor) -> Tensor:
        weights = self.clipping.weights(norms[: self.real])
        return torch.cat([weights, weights.new_zeros(len(norms) - self.real, norms.shape[1])])
