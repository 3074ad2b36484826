"""Mean and standard deviation of each channel of the inputs, learned from records privately and paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.features import Statistics
from tacit.ledger import Ledger, Step
from tacit.randomness import Source

_LEAST = 0.05  # of a standard deviation: noise can make the difference of the moments small or negative


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of inputs: for each channel the mean, which is subtracted, and the divisor."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, inputs: Tensor) -> Tensor:
        """Return the inputs (n, channels, height, width), normalised."""
        mean, std = (inputs.new_tensor(values)[None, :, None, None] for values in (self.mean, self.std))
        return (inputs - mean) / std


def charges(noise_multiplier: float, records: int) -> tuple[Step, ...]:
    """Return what `moments` will record."""
    return _statistics(noise_multiplier).charges(records)


def moments(inputs: Tensor, *, noise_multiplier: float, ledger: Ledger, source: Source) -> Tensor:
    """Return the mean and the mean square of each channel of inputs (n, channels, height, width), with Gaussian noise.

    Formal guarantee. A record is one input, and contributes a vector of 2 · channels numbers: its own mean and mean
    square of each channel, at most 1 each because inputs lie in [-1, 1]; what is longer is clipped (`Statistics`,
    which states the theorem). All records take part and their number, the divisor, is public. Recorded in the ledger
    before anything is computed. Whatever is made of the released numbers is post-processing.
    """

    def rows(chosen: object) -> Tensor:
        wanted = inputs[torch.as_tensor(chosen)]
        return torch.cat([wanted.flatten(2).mean(dim=2), wanted.square().flatten(2).mean(dim=2)], dim=1)[..., None]

    return _statistics(noise_multiplier).release(
        rows, channels=2 * inputs.shape[1], records=len(inputs), ledger=ledger, source=source
    )


def scale(released: Sequence[Tensor]) -> Scale:
    """From the moments that one or several participants have released, averaged."""
    mean, square = torch.stack(list(released)).mean(dim=0).chunk(2)
    variance = (square - mean.square()).clamp(min=_LEAST**2)
    return Scale(mean=tuple(mean.tolist()), std=tuple(variance.sqrt().tolist()))


def _statistics(noise_multiplier: float) -> Statistics:
    return Statistics(noise_multiplier=noise_multiplier, sampling_rate=1.0, bound=1.0)
