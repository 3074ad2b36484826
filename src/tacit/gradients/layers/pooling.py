"""Maxima over windows of images, compiled: as PyTorch finds them, many times as fast.

The place of a maximum in its window takes a byte, where PyTorch notes eight and keeps the image as well; where no
gradient is needed, as for the features of frozen layers, none is noted at all (and of two zeros that differ in their
signs it may be the other that is kept). Of several entries that are not numbers another may get the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tacit._compiled import Kernels, kernels
from tacit._threads import threads
from tacit.gradients.kernels.loops import readable
from tacit.gradients.layers.registry import ALWAYS, bound, layout_of, leading, operation, rule_of_one
from tacit.gradients.recording import Recording
from tacit.gradients.tap import OWN, differentiates_forward
from tacit.gradients.traced import plain

MOST_ENTRIES = 256
"""As many as a window may have where places are noted."""


@operation("max_pool2d", ALWAYS)
def max_pool(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, kernel, stride, padding, dilation, ceil = bound(
        "input kernel_size stride padding dilation ceil_mode", args, kwargs, padding=0, dilation=1, ceil_mode=False
    )
    noted = torch.is_grad_enabled() and x.requires_grad
    if ceil or not recorder.batch or layout_of(recorder, x) is None or differentiates_forward(plain(x)):
        return recorder.carry_out(func, args, kwargs)
    steps = kernel if stride is None or (isinstance(stride, (tuple, list)) and not stride) else stride
    sizes = x.shape[-2:], _pair(kernel), _pair(steps), _pair(padding)
    usual = x.ndim in (3, 4) and x.numel() and _is_usual(*sizes) and _pair(dilation) == (1, 1) and readable(plain(x))
    if kernels is None or not usual or (noted and math.prod(sizes[1]) > MOST_ENTRIES):
        return recorder.carry_out(func, args, kwargs)
    flat = tuple(n for pair in sizes for n in pair)
    out = Pool.apply(plain(x), flat) if noted else _maxima(plain(x).detach(), flat)  # type: ignore[no-untyped-call]
    return recorder.finish("max_pool2d", func, args, kwargs, out, recorder.scan(args, kwargs)[0])


class Pool(torch.autograd.Function):
    """Maxima, and their places for the way back. ``sizes``: height, width, and two each of kernel, stride, padding."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, sizes: tuple[int, ...]) -> Tensor:
        out = images.new_empty(_pooled(images, sizes))
        places = torch.empty(out.shape, dtype=torch.uint8)
        _compiled().max_pool_placed(images, places, out, *sizes, threads())
        ctx.sizes, ctx.made_by = sizes, OWN
        ctx.save_for_backward(places)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        (places,) = ctx.saved_tensors
        images = torch.empty((*places.shape[:-2], *ctx.sizes[:2]), dtype=torch.float32)
        given = grads[0].detach().resolve_neg().contiguous()
        _compiled().max_unpool(given, places, images, *ctx.sizes, threads())
        return images, None


def _maxima(images: Tensor, sizes: tuple[int, ...]) -> Tensor:
    out = images.new_empty(_pooled(images, sizes))
    _compiled().max_pool(images, out, *sizes, threads())
    return out


def _pooled(images: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
    lasts = zip(sizes[:2], sizes[2:4], sizes[4:6], sizes[6:])
    return (*images.shape[:-2], *((n + 2 * p - k) // s + 1 for n, k, s, p in lasts))


def _pair(value: Any) -> tuple[int, ...]:
    """Return two numbers; an empty tuple for anything else."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values):
        return ()
    return tuple(int(v) for v in (values * 2 if len(values) == 1 else values))


def _is_usual(*sizes: Sequence[int]) -> bool:
    """Return whether every window has an entry of the image; PyTorch raises the error for others."""
    return all(len(each) == 2 for each in sizes) and all(
        0 < s < 1 << 31 and 0 <= 2 * p <= k and 0 < k <= min(n + 2 * p, 2 * n) for n, k, s, p in zip(*sizes)
    )


def _compiled() -> Kernels:
    assert kernels is not None, "max_pool has looked"
    return kernels


rule_of_one(
    """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices
    max_pool2d_with_indices max_pool3d_with_indices"""
)(leading)
