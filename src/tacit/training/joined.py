"""Sources of noise by way of which the sums of several processes come together."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tacit.randomness import SecureSource, SeededSource


class Joined(SecureSource):
    """Keyed by the operating system in each process; sums pass through it to join those of the others."""

    def __init__(self, share: float, add_up_: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.share, self._add_up_ = share, add_up_

    def join_(self, noisy: Tensor) -> Tensor:
        self._add_up_(noisy)
        return noisy


class SeededJoined(SeededSource):
    """For debugging: the first process has the stream of a run alone, every other one its own."""

    def __init__(self, seed: int, rank: int, share: float, add_up_: Callable[[Tensor], None]) -> None:
        super().__init__(seed)
        self.share, self._add_up_ = share, add_up_
        if rank:
            self.branch(f"process {rank}")

    def join_(self, noisy: Tensor) -> Tensor:
        self._add_up_(noisy)
        return noisy
