"""Convolutions whose gradients are formed record by record, compiled: no window of an image is copied."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._compiled import Kernels, kernels
from tacit._threads import threads
from tacit.gradients.factors.contribution import Contribution, Dense, chunks, cleared, precise, precise_dtype
from tacit.gradients.precision import TOGETHER, gather, pieces

Offsets = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the windows of a convolution lie in its image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def padded(self, image: Tensor) -> Tensor:
        """The image with its zeros around it, in contiguous memory."""
        if any(self.padding):
            image = F.pad(image, [p for pad in reversed(self.padding) for p in (pad, pad)])
        return image.contiguous()


class Formed(Contribution):
    """G_i = Σ_t g_t ⊗ a_t over the windows a_t of a convolution, formed for one record at a time, as often as needed.

    What is measured is what is added, bit for bit: the tensor that is formed is the record's gradient (as in `Dense`),
    whatever else is in the batch, and its terms never meet those of another record. So one position is all that
    `precision` has to know of, and terms that cancel do no harm.

    `image` is [batch, images per example, channels, *space]; `grad` likewise (see `Convolution`).
    """

    unsettled = True

    def __init__(self, image: Tensor, grad: Tensor, shape: Sequence[int], geometry: Geometry) -> None:
        self.image, self.grad, self.geometry = image, grad, geometry
        self.batch, self.shape = image.shape[0], torch.Size(shape)

    def settle(self) -> Contribution:
        """Keep the G_i where they are no larger than twice the factors."""
        if self.batch * self.shape.numel() <= 2 * (self.image.numel() + self.grad.numel()):
            return Dense(self.instantiate(0, self.batch))
        return self

    def windows(self, lo: int, hi: int) -> tuple[Any, ...]:
        """Return the kernels' arguments for the records lo … hi-1, at least one."""
        image, grad = (precise(x[lo:hi]).detach().resolve_neg() for x in (self.image, self.grad))
        image, grad = self.geometry.padded(image), grad.contiguous()
        starts, entries = offsets(self.geometry, tuple(image.shape[2:]), tuple(grad.shape[3:]))
        sizes = hi - lo, image.shape[1], self.geometry.groups, threads()
        return image, grad, starts, entries, *sizes

    def instantiate(self, lo: int, hi: int) -> Tensor:
        out = self._empty(hi - lo, *self.shape)
        if lo < hi:
            compiled().windows_form(*self.windows(lo, hi), out)
        return out

    def squares(self) -> Tensor:
        out = self._empty(self.batch)
        for lo, hi in chunks(self.batch, 4 * (self.image[:1].numel() + self.grad[:1].numel())):
            compiled().windows_squares(*self.windows(lo, hi), out[lo:hi])
        return out

    def assign(self, total: Tensor, weights: Tensor, positions: int) -> None:
        """One record after the other, chained as all calls of one record are (`gather`)."""

        def chain(out: Tensor, lo: int, hi: int) -> None:
            out.copy_(self.sum_up(weights, lo, hi))

        gather(total, 0, self.batch, 1, chain)

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        for lo, hi in pieces(self.batch, min(first, TOGETHER)):
            total += self.sum_up(weights, lo, hi)

    def sum_up(self, weights: Tensor, lo: int, hi: int) -> Tensor:
        out = self._empty(*self.shape)
        if lo == hi:
            return out.zero_()
        each = weights[lo:hi].to(torch.float32).contiguous()
        compiled().windows_sum(*self.windows(lo, hi), each, out)
        return out

    def _empty(self, *sizes: int) -> Tensor:
        return self.image.new_empty(sizes, dtype=torch.float32)

    def without(self, bad: Tensor) -> Formed:
        return Formed(cleared(self.image, bad), cleared(self.grad, bad), self.shape, self.geometry)


def compiled() -> Kernels:
    assert kernels is not None, "can_be_formed was not asked"
    return kernels


def can_be_formed(image: Tensor, grad: Tensor, shape: Sequence[int], geometry: Geometry) -> bool:
    """Return whether the loop is compiled for these types, and Gram matrices are not so much cheaper that they pay.

    By types, devices and the shape of a record, never by how many there are. (Where records have different numbers of
    images, the shape is that of the longest: assumption 4 of docs/finite-precision.md.)
    """
    if kernels is None or image.device.type != "cpu":
        return False
    if not precise_dtype(image) == precise_dtype(grad) == torch.float32:
        return False
    width, outputs = math.prod(shape[1:]), shape[0] // geometry.groups
    positions = grad.shape[1] * math.prod(grad.shape[3:])
    extent = math.prod(n + 2 * p for n, p in zip(image.shape[3:], geometry.padding)) * image.shape[2]
    return extent < 1 << 31 and 4 * positions * (width + outputs) >= 3 * width * outputs


@functools.lru_cache(maxsize=256)
def offsets(geometry: Geometry, image: tuple[int, ...], space: tuple[int, ...]) -> tuple[Offsets, Offsets]:
    """Where windows begin in one group of channels of an image [channels, *space], and where their entries lie then."""
    steps = [math.prod(image[d + 1 :]) for d in range(len(image))]
    channels = image[0] // geometry.groups
    strides = [s * step for s, step in zip(geometry.stride, steps[1:])]
    within = [steps[0], *(d * step for d, step in zip(geometry.dilation, steps[1:]))]
    return _grid(space, strides), _grid((channels, *geometry.kernel), within)


def _grid(sizes: Sequence[int], steps: Sequence[int]) -> Offsets:
    """Σ_d index_d·step_d for all indices, the last one fastest."""
    total = np.zeros(1, dtype=np.int64)
    for size, step in zip(sizes, steps):
        total = np.add.outer(total, np.arange(size) * step).reshape(-1)
    return total.astype(np.int32)
