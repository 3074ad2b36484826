"""Maxima over windows of what needs no gradient, such as the features of frozen layers.

PyTorch also notes where each maximum was found, eight bytes for every value, and takes many times as long.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from tacit._compiled import kernels
from tacit.gradients.narrow import readable
from tacit.gradients.operations import bound, layout_of, operation
from tacit.gradients.recorder import Recorder
from tacit.gradients.threads import threads
from tacit.gradients.traced import plain


@operation("max_pool2d", always=True)
def max_pool(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    x, kernel, stride, padding, dilation, ceil = bound(
        "input kernel_size stride padding dilation ceil_mode", args, kwargs, padding=0, dilation=1, ceil_mode=False
    )
    needs_places = torch.is_grad_enabled() and x.requires_grad
    if ceil or needs_places or not recorder.batch or layout_of(recorder, x) is None:
        return recorder.carry_out(func, args, kwargs)
    images = plain(x).detach()
    sizes = images.shape[-2:], _pair(kernel), _pair(stride if stride not in (None, [], ()) else kernel), _pair(padding)
    usual = images.ndim > 2 and _is_usual(*sizes) and _pair(dilation) == (1, 1)
    if kernels is None or not usual or not readable(images):
        return recorder.carry_out(func, args, kwargs)
    space = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(*sizes)]
    out = images.new_empty((*images.shape[:-2], *space))
    kernels.max_pool(images.numpy(), out.numpy(), *(n for pair in sizes for n in pair), threads())
    return recorder.finish("max_pool2d", func, args, kwargs, out, recorder.scan(args, kwargs)[0])


def _pair(value: Any) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(operator.index(v) for v in (values * 2 if len(values) == 1 else values))


def _is_usual(*sizes: Sequence[int]) -> bool:
    """Whether every window has an entry of the image; what is wrong with others is for PyTorch to say."""
    return all(len(each) == 2 for each in sizes) and all(
        s > 0 and 0 <= 2 * p <= k and 0 < k <= n + 2 * p and n for n, k, s, p in zip(*sizes)
    )
