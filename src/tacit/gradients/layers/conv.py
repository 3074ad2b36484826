"""Convolutions and transposed convolutions with trainable weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tacit.gradients.factors.contribution import Contribution, Dense, own_sums
from tacit.gradients.layers.conv_kernel import Formed, Geometry, can_be_formed
from tacit.gradients.layers.conv_unfold import Convolution
from tacit.gradients.layers.generic import fallback, finish
from tacit.gradients.layers.registry import bare, bound, layout_of, leading, operation, rule_of_one, trainable
from tacit.gradients.layout import by_example
from tacit.gradients.recording import Recording
from tacit.gradients.remembered import is_regular
from tacit.gradients.traced import Traced, mark, plain


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value) * (rank if len(value) == 1 else 1)


@operation("conv1d conv2d conv3d")
def convolution(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias, stride, padding, dilation, groups = bound(
        "input weight bias stride padding dilation groups", args, kwargs, stride=1, padding=0, dilation=1, groups=1
    )
    rank = weight.ndim - 2
    stride, dilation = _tuple(stride, rank), _tuple(dilation, rank)
    if isinstance(padding, str):
        if padding == "same":
            ends = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
            x = F.pad(x, [p for e in reversed(ends) for p in (e // 2, e - e // 2)])
        padding = 0
    padding = _tuple(padding, rank)
    layout = layout_of(recorder, x)
    call = (x, weight, bias, stride, padding, dilation, groups)
    if layout is None or layout.dim != 0 or x.ndim != rank + 2:
        return fallback(recorder, func.__name__, func, call, {})
    image, geometry = plain(x), Geometry(tuple(weight.shape[2:]), stride, padding, dilation, groups)
    out = func(image, bare(weight), bare(bias), *call[3:])
    return _tap_convolution(recorder, func, call, out, image, geometry, transposed=False)


@operation("conv_transpose1d conv_transpose2d conv_transpose3d")
def transposed_convolution(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, bias, stride, padding, output_padding, groups, dilation = bound(
        "input weight bias stride padding output_padding groups dilation",
        args,
        kwargs,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        dilation=1,
    )
    rank = weight.ndim - 2
    stride, padding, dilation = _tuple(stride, rank), _tuple(padding, rank), _tuple(dilation, rank)
    layout = layout_of(recorder, x)
    call = (x, weight, bias, stride, padding, _tuple(output_padding, rank), groups, dilation)
    if layout is None or layout.dim != 0 or x.ndim != rank + 2:
        return fallback(recorder, func.__name__, func, call, {})
    image, geometry = plain(x), Geometry(tuple(weight.shape[2:]), stride, padding, dilation, groups)
    out = func(image, bare(weight), bare(bias), *call[3:])
    return _tap_convolution(recorder, func, call, out, image, geometry, transposed=True)


def _tap_convolution(
    recorder: Recording,
    func: Any,
    call: Any,
    out: Tensor,
    image: Tensor,
    geometry: Geometry,
    *,
    transposed: bool,
) -> Any:
    weight, bias = call[1:3]
    layout, batch = layout_of(recorder, call[0]), recorder.batch
    assert layout is not None
    assert batch is not None

    def make(grad: Tensor) -> list[tuple[Tensor, Contribution]]:
        g, a = by_example(grad, layout, batch), by_example(image.detach(), layout, batch)
        pairs: list[tuple[Tensor, Contribution]] = []
        if trainable(bias):
            pairs.append((bias, Dense(own_sums(g.flatten(3), (1, 3)))))
        if trainable(weight):
            windows, rows = (g, a) if transposed else (a, g)
            if can_be_formed(windows, rows, weight.shape, geometry):
                pairs.append((weight, Formed(windows, rows, weight.shape, geometry)))
            else:
                pairs.append((weight, Convolution(windows, rows, weight.detach(), geometry)))
        return pairs

    out = recorder.tap(out, [image] if trainable(weight) else [], make)
    if is_regular(layout) and Traced not in (type(weight), type(bias)):
        return mark(out, recorder, layout)
    return finish(recorder, func.__name__, func, call, {}, out)


rule_of_one("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")(leading)
