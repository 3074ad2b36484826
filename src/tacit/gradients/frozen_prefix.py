"""Frozen layers that open an `nn.Sequential`, run on a few records at a time.

Features of frozen layers need no graph, so nothing between the input and the features has to exist for the whole batch
at once: a part of the records goes through all the layers before the next. Every part has the same number of rows (the
last one is filled up with zeros), so how a record is rounded does not depend on how many there are.

Only PyTorch's own layers that treat records one by one, and that have no hooks.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.layout import Layout
from tacit.gradients.problems import Problems
from tacit.gradients.recording import Recording
from tacit.gradients.tap import differentiates_forward
from tacit.gradients.torch_internals import forward_hooks, forward_pre_hooks, global_forward_hooks
from tacit.gradients.traced import Traced, mark, plain

PART = 1 << 24
"""About how many bytes the first layer's output may have for one part. (The GNU C library keeps 16 MB for the next.)"""

WHOLE = 32
"""Parts of more records have a multiple of it: PyTorch may round the last entries of a tensor in another way where
they do not fill a vector."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Where a run of layers may begin: what comes out is memory of its own, which later layers may overwrite."""

_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_FOLLOWING: frozenset[type[nn.Module]] = frozenset(
    {
        *_CONVOLUTIONS,
        *_COUNTING,
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.Identity),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.GroupNorm, nn.LayerNorm, nn.Flatten),
    }
)
_FORWARDS: dict[type[nn.Module], Any] = {kind: getattr(kind, "forward") for kind in (*_FOLLOWING, nn.Sequential)}  # noqa: B009 (stubs)
"""The forward functions of these classes, to notice one that was replaced."""


class Prefix:
    """Stands in for the forward of a Sequential whose first layers are frozen."""

    def __init__(self, container: nn.Sequential, recorder: Recording) -> None:
        self._container, self._recorder = container, recorder
        self._original = container.forward
        vars(container)["forward"] = self

    def __reduce__(self) -> Any:
        """A copy of the container, or one in a file, has its own forward."""
        return _own_forward, (self._container,)

    def remove(self) -> None:
        """Give the container its own forward back, unless it has another by now."""
        if vars(self._container).get("forward") is self:
            del vars(self._container)["forward"]

    def __call__(self, input: Tensor) -> Any:
        layers = beginning(self._container) if self._is_possible(input) else ()
        features = self.features(layers, input) if len(layers) > 1 else None
        if features is None:
            return self._original(input)  # type: ignore[no-untyped-call]
        for layer in list(self._container)[len(layers) :]:
            features = layer(features)
        return features

    def _is_possible(self, x: Any) -> bool:
        if not self._recorder.inside or not self._recorder.follows(x) or x.requires_grad:
            return False
        if nn.Sequential.forward is not _FORWARDS[nn.Sequential]:
            return False
        return not differentiates_forward(plain(x)) and not any(global_forward_hooks)

    def features(self, layers: tuple[nn.Module, ...], given: Tensor) -> Tensor | None:
        """Return what the layers make of all records, a part at a time; None where that would not pay or not be usual.

        Then the whole batch will say what is wrong.
        """
        batch, first = self._recorder.batch or 0, layers[0]
        each = _rows_of_a_record(given, batch)
        records = max(2, PART // (_bytes(first, given) * max(1, each)))  # one alone could not be seen to mix
        records -= records % WHOLE if records > WHOLE else 0
        if not each or batch < 2 * records or given.ndim != first.weight.ndim:
            return None
        x, rows = plain(given), records * each
        features: Tensor | None = None
        for start in range(0, len(x), rows):
            part = x[start : start + rows]
            filled = torch.zeros_like(x[:rows])
            filled[: len(part)] = part
            out = self._after_layers(layers, filled, records, each)
            if out is None:
                return None
            if features is None:
                features = _like(out, len(x))
            features[start : start + rows] = out[: len(part)]
        assert features is not None
        return mark(features, self._recorder, Layout(0, each))

    def _after_layers(self, layers: tuple[nn.Module, ...], part: Tensor, records: int, each: int) -> Tensor | None:
        recorder = copy.copy(self._recorder)  # one for a part of the batch
        recorder.batch, recorder.problems = records, Problems(recorder.model)
        out: Any = mark(part, recorder, Layout(0, each))
        try:
            for layer in layers:
                out = layer.forward(out)
        except (RuntimeError, TypeError, ValueError):
            return None
        usual = recorder.follows(out) and not out.requires_grad and _rows_of_a_record(out, records) == each
        return plain(out) if usual else None


def _own_forward(container: nn.Sequential) -> Any:
    return nn.Sequential.forward.__get__(container)


def put_prefixes(model: nn.Module, recorder: Recording) -> list[Prefix]:
    """Let the Sequentials of a model whose first layers are frozen run these in parts, until each is removed."""
    plain_ones = [m for m in model.modules() if type(m) is nn.Sequential and "forward" not in vars(m)]
    return [Prefix(each, recorder) for each in plain_ones if len(beginning(each)) > 1]


def beginning(container: nn.Sequential) -> tuple[nn.Module, ...]:
    """The frozen layers it begins with: PyTorch's own, with no hook and nothing of the batch in them."""
    layers: list[nn.Module] = []
    for layer in container:
        if type(layer) not in (_FOLLOWING if layers else _CONVOLUTIONS) or not _is_as_it_was_made(layer):
            break
        if isinstance(layer, _COUNTING) and (layer.training or layer.running_mean is None):
            break
        values = (*layer.parameters(recurse=False), *layer.buffers(recurse=False), *vars(layer).values())
        if any(_is_trained_or_data(v) for v in values):
            break
        layers.append(layer)
    return tuple(layers)


def _is_as_it_was_made(layer: nn.Module) -> bool:
    hooked = forward_hooks(layer) or forward_pre_hooks(layer)
    changed = type(layer).forward is not _FORWARDS[type(layer)]
    return (
        not hooked and not changed and not any(callable(v) and hasattr(type(layer), k) for k, v in vars(layer).items())
    )


def _is_trained_or_data(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(type(v) is Traced for v in value)
    return isinstance(value, Tensor) and (value.requires_grad or type(value) is Traced)


def _rows_of_a_record(x: Any, batch: int) -> int:
    """How many consecutive rows each record has, in the records' order; 0 where they lie in any other way."""
    tag = x._tag
    usual = isinstance(tag, Layout) and tag.owner is None and tag.dim == 0 and len(x) == batch * tag.inner
    return tag.inner if usual else 0


def _bytes(first: Any, x: Tensor) -> int:
    """About how many bytes a row has after the first layer."""
    outputs: int = first.weight.shape[0]
    return max(1, math.prod(x.shape[2:]) * outputs * x.element_size())


def _like(part: Tensor, rows: int) -> Tensor:
    """Memory for this many rows, arranged as a part's."""
    shape = (rows, *part.shape[1:])
    arranged = part.stride(0) == math.prod(part.shape[1:])
    return part.new_empty_strided(shape, part.stride()) if arranged else part.new_empty(shape)
