"""Frozen layers that open an `nn.Sequential`, run on a few records at a time.

Features of frozen layers need no graph, so nothing between the input and the features has to exist for the whole batch
at once: a part of the records goes through all the layers before the next. Every part has the same number of rows (the
last one is filled up with zeros), so how a record is rounded does not depend on how many there are.

Only layers whose code is PyTorch's own and treats records one by one, and which nobody else watches by a hook. They are
hooked while the model runs: when the Sequential calls the first one, the features are computed; its walk through the
layers then carries no record at all, and the last one hands on the features.
"""

from __future__ import annotations

import copy
import math
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as calling

from tacit.gradients.layout import Layout
from tacit.gradients.problems import Problems
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import (
    differentiates_forward,
    forward_hooks,
    forward_pre_hooks,
    get_frame,
    global_forward_hooks,
)
from tacit.gradients.traced import Traced, mark, plain

PART = 1 << 24
"""About how many bytes the first layer's output may have for one part. (The GNU C library keeps 16 MB for the next.)"""

WHOLE = 32
"""Parts of more records have a multiple of it: PyTorch may round the last entries of a tensor in another way where
they do not fill a vector."""

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
_METHODS = {
    kind: {
        n: getattr(kind, n)
        for of in kind.__mro__
        if issubclass(of, nn.Module) and of is not nn.Module
        for n in vars(of)
    }
    for kind in _FOLLOWING
}
"""All that a class defines beyond `nn.Module`."""
_WALK = nn.Sequential.forward.__code__


class Prefixes:
    """The frozen beginnings of a model's Sequentials. Layers are hooked between `put` and `remove` only."""

    def __init__(self, model: nn.Module, recorder: Recording) -> None:
        self._recorder = recorder
        self._containers = [m for m in model.modules() if type(m) is nn.Sequential and len(beginning(m)) > 1]
        self._hooked: list[Prefix] = []

    def put(self) -> None:
        if self._hooked:
            self.remove()
        for container in self._containers:
            layers = beginning(container)
            if len(layers) > 1:
                self._hooked.append(Prefix(container, layers, self._recorder))
                self._hooked[-1].put()

    def remove(self) -> None:
        for prefix in self._hooked:
            prefix.remove()
        self._hooked = []


class Prefix:
    """The frozen layers that one Sequential begins with, during one call of the model."""

    def __init__(self, container: nn.Sequential, layers: tuple[nn.Module, ...], recorder: Recording) -> None:
        self._container, self._layers, self._recorder = container, layers, recorder
        self._features: dict[int, tuple[Recording, Tensor]] = {}
        """What is to be handed on, in each thread, and who follows the empty batch that stands for it."""

    def put(self) -> None:
        self._layers[0].register_forward_pre_hook(self._run)
        self._layers[-1].register_forward_hook(self._hand_on)

    def remove(self) -> None:
        """By looking for them: Ctrl-C may have come before there was a handle."""
        for hooks in (forward_pre_hooks(self._layers[0]), forward_hooks(self._layers[-1])):
            for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
                del hooks[key]

    def __deepcopy__(self, memo: Any) -> Prefix:
        return self  # in a copy of the layers that somebody makes meanwhile: it does nothing there

    def _run(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """The first layer is called: if by the Sequential, compute the features and give the layers nobody to see."""
        self._features.pop(get_ident(), None)  # of a call that was interrupted
        if not self._is_called_by_container(args) or not self._is_possible(args[0]):
            return None
        features = self._computed(args[0])
        if features is None:
            return None
        nobody = _recorder_for(self._recorder, 0)
        self._features[get_ident()] = nobody, features
        return mark(plain(args[0])[:0], nobody, Layout(0))

    def _hand_on(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        nobody, features = self._features.get(get_ident(), (None, None))
        if nobody is None or not nobody.follows(args[0]):
            return None
        del self._features[get_ident()]
        return features

    def _is_called_by_container(self, args: tuple[Any, ...]) -> bool:
        """Return whether it is the Sequential's own code that called this layer: nobody else sees what lies between."""
        frame: FrameType | None = get_frame(2)
        while frame is not None and frame.f_code.co_filename == calling.__file__:
            frame = frame.f_back
        if frame is None or frame.f_code is not _WALK or len(args) != 1:
            return False
        return frame.f_locals["self"] is self._container and frame.f_locals["input"] is args[0]

    def _is_possible(self, x: Any) -> bool:
        layers = self._layers
        if not self._recorder.follows(x) or x.requires_grad or differentiates_forward():
            return False
        if beginning(self._container)[: len(layers)] != layers or x.ndim != layers[0].weight.ndim:
            return False
        if any(global_forward_hooks):
            return False
        before = [list(forward_pre_hooks(layer).values()) for layer in layers]
        after = [list(forward_hooks(layer).values()) for layer in layers]
        nobody: list[list[Any]] = [[] for _ in layers[1:]]
        return before == [[self._run], *nobody] and after == [*nobody, [self._hand_on]]

    def _computed(self, given: Tensor) -> Tensor | None:
        batch = self._recorder.batch or 0
        each = _rows_of_a_record(given, batch)
        records = max(2, PART // (_bytes(self._layers[0], given) * max(1, each)))  # one alone could not be seen to mix
        records -= records % WHOLE if records > WHOLE else 0
        if not each or batch < 2 * records:
            return None
        x, rows = plain(given), records * each
        features: Tensor | None = None
        for start in range(0, len(x), rows):
            part = x[start : start + rows]
            filled = torch.zeros_like(x[:rows])
            filled[: len(part)] = part
            out = self._after_layers(filled, records, each)
            if out is None:
                return None
            if features is None:
                features = _like(out, len(x))
            features[start : start + rows] = out[: len(part)]
        assert features is not None
        return mark(features, self._recorder, Layout(0, each))

    def _after_layers(self, part: Tensor, records: int, each: int) -> Tensor | None:
        """Nothing where it does not come out as usual: the whole batch will say what is wrong."""
        recorder = _recorder_for(self._recorder, records)
        out = mark(part, recorder, Layout(0, each))
        try:
            for layer in self._layers:
                out = layer.forward(out)
        except (RuntimeError, TypeError, ValueError):
            return None
        usual = recorder.follows(out) and not out.requires_grad and _rows_of_a_record(out, records) == each
        return plain(out) if usual else None


def beginning(container: nn.Sequential) -> tuple[nn.Module, ...]:
    """The frozen layers it begins with; the first and the last of them, which are hooked, occur in it once."""
    walk, layers = list(container), list[nn.Module]()
    for layer in walk:
        if type(layer) not in (_FOLLOWING if layers else _CONVOLUTIONS):
            break
        if not _is_pytorchs(layer):
            break
        counts = isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
        if counts and (layer.training or layer.running_mean is None):
            break
        values = (*layer.parameters(recurse=False), *layer.buffers(recurse=False), *vars(layer).values())
        if any(_is_trained_or_data(v) for v in values):
            break
        layers.append(layer)
    while layers and sum(layer is layers[-1] for layer in walk) > 1:
        layers.pop()
    return tuple(layers) if layers and sum(layer is layers[0] for layer in walk) == 1 else ()


def _is_pytorchs(layer: nn.Module) -> bool:
    """Return whether nobody has put code of their own into a layer or its class."""
    methods = _METHODS[type(layer)]
    return methods.keys().isdisjoint(vars(layer)) and all(getattr(type(layer), k) is f for k, f in methods.items())


def _is_trained_or_data(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(type(v) is Traced for v in value)
    return isinstance(value, Tensor) and (value.requires_grad or type(value) is Traced)


def _recorder_for(recorder: Recording, records: int) -> Recording:
    """One for a part of the batch. (Other threads follow the whole batch meanwhile.)"""
    found = copy.copy(recorder)
    found.batch, found.problems = records, Problems(recorder.model)
    return found


def _rows_of_a_record(x: Any, batch: int) -> int:
    """How many consecutive rows each record has, in the records' order; 0 where they lie in any other way."""
    tag = x._tag
    usual = isinstance(tag, Layout) and tag.owner is None and not tag.by_data and tag.dim == 0
    usual = usual and len(x) == batch * tag.inner
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
