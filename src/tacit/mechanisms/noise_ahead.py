"""Noise for sums on a device, drawn on the CPU and copied there while the device computes gradients.

The copies start from two pieces of pinned memory, taken in turn, and run in a stream of their own: the source draws one
piece while the other is copied, and neither waits for the kernels of the backward pass.
"""

from __future__ import annotations

import torch

from tacit._transfer import pins
from tacit.randomness import Source

PIECE = 1 << 18
"""The number of values drawn and copied at a time."""


class NoiseAhead:
    """Standard normal values on a device for ``count`` coordinates of a step.

    Formal guarantee: `take` hands out every value of a `draw` at most once, and none of an earlier draw: `draw` and
    `discard` begin with nothing to hand out, and a draw that fails leaves it so.
    """

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count, self.dtype, self.device = count, dtype, device
        self._left = 0
        self._values = torch.empty(count, dtype=dtype, device=device)
        room = min(count, PIECE)
        self._rooms = [torch.empty(room, dtype=dtype, device="cpu", pin_memory=True) for _ in range(2)]
        self._copied = [torch.Event(device), torch.Event(device)]
        self._stream = torch.Stream(device)
        self._free = torch.Event(device)
        """An event that follows the last kernel, of an earlier step or owner, that uses this memory."""
        self._free.record(torch.accelerator.current_stream(device))

    @staticmethod
    def suits(device: torch.device) -> bool:
        """Return whether copies to this device can run beside the host's work."""
        return pins(device.type)

    def discard(self) -> None:
        """Hand out nothing until the next draw. Kernels that follow wait for copies that are still under way."""
        if self._left == self.count:
            torch.accelerator.current_stream(self.device).wait_stream(self._stream)
        self._left = 0

    def draw(self, source: Source) -> None:
        """Draw the noise of a step, and start copying it."""
        self.discard()
        self._stream.wait_event(self._free)
        for number, start in enumerate(range(0, self.count, PIECE)):
            slot = number % 2
            values = self._rooms[slot][: min(PIECE, self.count - start)]
            self._copied[slot].synchronize()  # of two pieces ago; not of what the device computes
            source.normal_(values)
            with self._stream:
                self._values[start : start + len(values)].copy_(values, non_blocking=True)
            self._copied[slot].record(self._stream)
        self._left = self.count

    def take(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Return so many values to be overwritten, or None if they were not drawn; later kernels wait for them."""
        if count > self._left or (dtype, device) != (self.dtype, self.device):
            return None
        if self._left == self.count:
            torch.accelerator.current_stream(self.device).wait_stream(self._stream)
        start = self.count - self._left
        self._left -= count
        return self._values[start : start + count]

    def release(self) -> None:
        """Mark the point in the queue after which no kernel uses the values taken."""
        self.discard()
        self._free.record(torch.accelerator.current_stream(self.device))
