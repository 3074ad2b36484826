"""Frozen layers that open an `nn.Sequential`, run on a few records at a time.

Features of frozen layers need no graph, so nothing between the input and the features has to exist for the whole batch
at once: a part of the records goes through all the layers before the next. Every part has the same number of records
(the last one overlaps the one before), so how a record is rounded does not depend on how many there are.

Only layers whose code is PyTorch's own and treats records one by one; no other hook may watch them. While the
Sequential walks through these layers they see no record at all, and the last one hands on the features.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as module_hooks

from tacit.gradients.layout import Layout
from tacit.gradients.recorder import Recorder
from tacit.gradients.traced import mark, plain

PART = 1 << 24
"""About as many bytes the first layer's outputs have in one part: memory that `malloc` keeps and gives again."""

WHOLE = 32
"""With so many records tensors are whole vectors: PyTorch may round the entries that are left in another way."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Where a run of layers may begin: what comes out is memory of its own, which later layers may overwrite."""

_FOLLOWING: frozenset[type[nn.Module]] = frozenset(
    {
        *_CONVOLUTIONS,
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.Identity),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.Flatten),
    }
)
_KNOWN: tuple[type[nn.Module], ...] = (nn.Sequential, *_FOLLOWING)
_FORWARDS = {kind: kind.forward for kind in _KNOWN}


def in_parts(model: nn.Module, recorder: Recorder) -> list[Any]:
    """Let every Sequential of the model run its frozen beginning in parts; returns what to `remove()` to undo it."""
    handles: list[Any] = []
    for container in model.modules():
        if type(container) is nn.Sequential:
            layers = _beginning(container)
            if len(layers) > 1:
                handles += Prefix(container, layers, recorder).handles
    return handles


class Prefix:
    """The frozen layers that one Sequential begins with."""

    def __init__(self, container: nn.Sequential, layers: tuple[nn.Module, ...], recorder: Recorder) -> None:
        self._container, self._layers, self._recorder = container, layers, recorder
        self._entering: Tensor | None = None
        self._features: Tensor | None = None
        self.handles = [
            container.register_forward_pre_hook(self._enter),
            layers[0].register_forward_pre_hook(self._run),
            layers[-1].register_forward_hook(self._hand_on),
            container.register_forward_hook(self._leave, always_call=True),
        ]

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._features = None
        self._entering = args[0] if len(args) == 1 and self._is_possible(args[0]) else None

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._entering = self._features = None

    def _run(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """The first layer is called: if by the Sequential, compute the features and give the layers nobody to see."""
        given, self._entering = self._entering, None
        if given is None or len(args) != 1 or args[0] is not given:
            return None
        self._features = self._computed(given)
        return None if self._features is None else plain(given)[:0]

    def _hand_on(self, module: nn.Module, args: Any, output: Any) -> Any:
        features, self._features = self._features, None
        return features if features is not None and isinstance(output, Tensor) and not len(output) else None

    def _is_possible(self, x: Any) -> bool:
        layers, recorder = self._layers, self._recorder
        if not recorder.follows(x) or x.requires_grad or forward_ad._current_level >= 0:
            return False
        watched = module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks
        if watched or "forward" in vars(self._container) or not _is_unchanged(nn.Sequential):
            return False
        if _beginning(self._container)[: len(layers)] != layers or x.ndim != layers[0].weight.ndim:
            return False
        return all(_hooks(layer) == (layer is layers[0]) + (layer is layers[-1]) for layer in layers)

    def _computed(self, given: Tensor) -> Tensor | None:
        recorder, batch = self._recorder, self._recorder.batch or 0
        each = _rows_of_a_record(given, batch)
        records = max(1, PART // (_bytes(self._layers[0], given) * max(1, each)))
        records -= records % WHOLE if records > WHOLE else 0
        if not each or batch < 2 * records:
            return None
        x, rows, tag = plain(given), records * each, Layout(0, each)
        features: Tensor | None = None
        for end in (*range(rows, len(x), rows), len(x)):
            recorder.batch = records
            try:
                part = mark(x[end - rows : end].clone(), recorder, tag)  # begins with a line of memory
                for layer in self._layers:
                    part = layer.forward(part)
            finally:
                recorder.batch = batch
            if not recorder.follows(part) or part.requires_grad or _rows_of_a_record(part, records) != each:
                return None
            if features is None:
                features = _like(plain(part), len(x))
            features[end - rows : end] = plain(part)
        assert features is not None
        return mark(features, recorder, tag)


def _beginning(container: nn.Sequential) -> tuple[nn.Module, ...]:
    """The frozen layers it begins with, each once."""
    layers: list[nn.Module] = []
    for layer in container:
        if type(layer) not in (_FOLLOWING if layers else _CONVOLUTIONS) or any(layer is each for each in layers):
            break
        trained = any(p.requires_grad for p in layer.parameters())
        counts = isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None)
        if trained or counts or "forward" in vars(layer) or not _is_unchanged(type(layer)):
            break
        layers.append(layer)
    return tuple(layers)


def _rows_of_a_record(x: Any, batch: int) -> int:
    """How many consecutive rows each record has, in the records' order; 0 where they lie in any other way."""
    tag = x._tag
    usual = isinstance(tag, Layout) and tag.owner is None and tag.dim == 0 and len(x) == batch * tag.inner
    return tag.inner if usual else 0


def _is_unchanged(kind: type[nn.Module]) -> bool:
    return kind.forward is _FORWARDS[kind]


def _hooks(layer: nn.Module) -> int:
    return sum(
        map(len, (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks))
    )


def _bytes(first: Any, x: Tensor) -> int:
    """About as many bytes a row has after the first layer."""
    places = math.prod(x.shape[2:]) // math.prod(first.stride)
    return int(max(1, places * first.out_channels * x.element_size()))


def _like(part: Tensor, rows: int) -> Tensor:
    """Memory for this many rows, arranged as a part's."""
    shape = (rows, *part.shape[1:])
    arranged = part.stride(0) == math.prod(part.shape[1:])
    return part.new_empty_strided(shape, part.stride()) if arranged else part.new_empty(shape)
