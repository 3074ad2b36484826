"""Convolutions as linear maps of their windows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import cleared, precise
from tacit.gradients.factors.outer import Outer
from tacit.gradients.layers.conv_kernel import Geometry
from tacit.gradients.precision import Call


class Convolution(Outer):
    """A convolution is a linear map of its windows; the windows are cut out again when needed, a chunk at a time.

    `image` is [batch, images per example, channels, *space]; `grad` likewise. For a transposed convolution the roles
    are exchanged by the caller: the windows are then those of the output gradient.
    """

    def __init__(self, image: Tensor, grad: Tensor, weight: Tensor, geometry: Geometry) -> None:
        self.image, self.grad, self.weight, self.geometry = image, grad, weight, geometry
        self.batch, self.shape, self.blocks = image.shape[0], weight.shape, geometry.groups
        self.width_in = image.shape[2] // self.blocks * math.prod(geometry.kernel)
        self.width_out = grad.shape[2] // self.blocks
        self.space = tuple(grad.shape[3:])
        self.positions = grad.shape[1] * math.prod(self.space)
        self.sizes, self.order, self.output = (), (), None
        self.unsettled = self.positions > 1

    @property
    def sample(self) -> Tensor:
        return self.image

    def factor_numel(self) -> int:
        return self.image.numel() + self.grad.numel()

    def windows(self, image: Tensor) -> Tensor:
        """[n, channels, *space] → [n, groups, channels/groups × kernel, positions]."""
        geometry = self.geometry
        if all(k == 1 for k in geometry.kernel) and all(s == 1 for s in geometry.stride) and not any(geometry.padding):
            return image.reshape(image.shape[0], self.blocks, -1, math.prod(self.space))
        image = geometry.padded(image)
        n, c = image.shape[:2]
        steps = image.stride()[2:]
        view = image.as_strided(
            (n, c, *geometry.kernel, *self.space),
            (
                *image.stride()[:2],
                *(d * s for d, s in zip(geometry.dilation, steps)),
                *(d * s for d, s in zip(geometry.stride, steps)),
            ),
        )
        return view.reshape(n, self.blocks, self.width_in, -1)

    def factors(self, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        image, grad = precise(self.image[lo:hi]), precise(self.grad[lo:hi])
        n, each = image.shape[:2]
        a = self.windows(image.flatten(0, 1)).transpose(2, 3)
        g = grad.reshape(n * each, self.blocks, self.width_out, -1).transpose(2, 3)
        if each != 1:
            a = a.unflatten(0, (n, each)).transpose(1, 2).flatten(2, 3)  # type: ignore[no-untyped-call]
            g = g.unflatten(0, (n, each)).transpose(1, 2).flatten(2, 3)  # type: ignore[no-untyped-call]
        return a, g

    def term_sizes(self) -> Tensor:
        """As for any linear map, with Σ_t |a_t|² ≤ (windows that contain one entry)·|image|²: no windows are cut."""
        image, grad = precise(self.image), precise(self.grad)
        shared = 1
        for k, s, d in zip(self.geometry.kernel, self.geometry.stride, self.geometry.dilation):
            shared *= -(-k * math.gcd(s, d) // s)
        rows = [x.transpose(1, 2).unflatten(1, (self.blocks, -1)).flatten(0, 1) for x in (image, grad)]  # type: ignore[no-untyped-call]
        return self.over_blocks(*rows).mul_(shared)

    def adds_by_itself(self, records: int, dtype: torch.dtype) -> bool:
        return False  # kernels of convolutions do not add to what there is

    def contraction(self, weights: Tensor) -> Call:
        image, grad = precise(self.image), precise(self.grad)
        grad = grad * weights.to(grad.dtype).view(-1, *(1,) * (grad.ndim - 1))
        weight, geometry = precise(self.weight), self.geometry

        def call(lo: int, hi: int) -> Tensor:
            # The weight gradient of a transposed convolution is that of the ordinary one with input and output
            # exchanged, which is how image and grad are stored here; so one call serves both.
            found: Tensor = torch.ops.aten.convolution_backward(
                grad[lo:hi].flatten(0, 1),
                image[lo:hi].flatten(0, 1),
                weight,
                None,
                geometry.stride,
                geometry.padding,
                geometry.dilation,
                False,
                [0] * len(geometry.kernel),
                self.blocks,
                [False, True, False],
            )[1]
            return found

        return call

    def apart(self) -> Convolution:
        # Of the weight nothing but its shape is used.
        return Convolution(self.image, self.grad, torch.zeros_like(self.weight), self.geometry)

    def without(self, bad: Tensor) -> Convolution:
        return Convolution(cleared(self.image, bad), cleared(self.grad, bad), self.weight, self.geometry)
