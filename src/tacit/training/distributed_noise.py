"""Noise sources that all-reduce the sums of several processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tacit.randomness import SecureSource, SeededSource


class ReducedNoise(SecureSource):
    """Adds this process's share of the noise, with a key of the operating system, and all-reduces the sums."""

    def __init__(self, share: float, add_up_: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.share, self._add_up_ = share, add_up_

    def join_(self, noisy: Tensor) -> Tensor:
        return _joined(noisy, self._add_up_)


class SeededReducedNoise(SeededSource):
    """For debugging: the first process has the stream of a run alone, every other one its own."""

    def __init__(self, seed: int, rank: int, share: float, add_up_: Callable[[Tensor], None]) -> None:
        super().__init__(seed)
        self.share, self._add_up_ = share, add_up_
        if rank:
            self.branch(f"process {rank}")

    def join_(self, noisy: Tensor) -> Tensor:
        return _joined(noisy, self._add_up_)


def _joined(noisy: Tensor, add_up_: Callable[[Tensor], None]) -> Tensor:
    """Return the sum of ``noisy`` over all processes, in float64. In float32 each addition would round by an amount
    that grows with the whole noise.
    """
    if noisy.dtype != torch.float32:
        add_up_(noisy)
        return noisy
    wide = noisy.double()
    add_up_(wide)
    return noisy.copy_(wide)
