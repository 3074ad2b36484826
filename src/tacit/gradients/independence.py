"""Whether what a model says of an example depends on who else is in the batch, found by running parts of the batch.

What operations show is followed one by one. This finds, in one batch, what they do not show: examples that influence
each other through sizes, counts, places in the batch, or code that PyTorch does not see.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.gradients.layout import Layout, select_examples
from tacit.gradients.nested import rebuilt, tensors
from tacit.gradients.problems import Problems
from tacit.gradients.recorder import Recorder
from tacit.gradients.traced import Traced, mark, plain

MOST = 7
"""Examples that are compared: the first of the batch. One half is then even in number and the other odd."""

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_HALF = 3e-2

_INFLUENCE = (
    "the model's output for an example changes with the other examples in the batch: somewhere they influence each "
    "other where no operation shows it (through the batch's size, an example's place in it, a number read out, code "
    "outside PyTorch); compute each example's output from that example and constants alone"
)


_COMPARED = -1
"""The epoch of what is computed here: if a model keeps something of it, that is known to be of another batch."""


def influence(recorder: Recorder, args: Any, kwargs: Any) -> list[str]:
    """What is wrong with a model that was run on these arguments, which know whose their entries are.

    The first examples are run together and in two halves, each half in reverse order: everybody's outputs must be the
    same. What the model keeps in attributes, buffers and generators is put back after each run; dropout and noise stand
    still. Not compared: a model that is random otherwise, or writes to its parameters (which a run sees by itself),
    inputs that are packed sequences, and what is beyond the width that outputs have in common.
    """
    batch = recorder.batch or 0
    several = list(range(min(batch, MOST)))
    given = [t._tag for t in tensors((args, kwargs)) if type(t) is Traced and isinstance(t._tag, Layout)]
    if len(several) < 2 or not given or any(tag.owner is not None for tag in given):
        return []
    together, again = (_run(recorder, args, kwargs, several, seed) for seed in (0, 1))
    if together is None or again is None or not _are_same(together, several, again, several):
        return []
    middle = len(several) // 2
    for half in (several[:middle][::-1], several[middle:][::-1]):
        apart = _run(recorder, args, kwargs, half)
        if apart is not None and not _are_same(together, several, apart, half):
            return [_INFLUENCE]
    return []


def _run(recorder: Recorder, args: Any, kwargs: Any, examples: Sequence[int], seed: int = 0) -> list[Tensor] | None:
    """The outputs for these examples, which know whose their entries are; None if parameters were written to."""
    model, batch = recorder.model, recorder.batch or 0
    with _followed(recorder, len(examples)), undisturbed(model, seed), _Still():
        for module in model.modules():
            if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
                module.dropout = 0.0  # which they hand to code that shows no dropout
        args, kwargs = _cut(recorder, (args, kwargs), examples, batch)
        places = _places(model)
        found = tensors(model.forward(*args, **kwargs))
        return found if _places(model) == places else None


@contextmanager
def _followed(recorder: Recorder, batch: int) -> Iterator[None]:
    """The engine follows a batch of this many examples, and then the one before again."""
    kept = recorder.batch, recorder.epoch, recorder.problems, recorder.inside, recorder.free
    recorder.batch, recorder.epoch, recorder.free = batch, _COMPARED, False
    recorder.problems, recorder.inside = Problems(recorder.model), True
    recorder.problems.slow = kept[2].slow
    try:
        yield
    finally:
        recorder.batch, recorder.epoch, recorder.problems, recorder.inside, recorder.free = kept


def _places(model: nn.Module) -> list[tuple[int, int, int]]:
    """Which tensors the parameters are, where they lie, and how often they were written to."""
    return [(id(p), p.data_ptr(), p._version) for p in model.parameters()]


def _cut(recorder: Recorder, value: Any, examples: Sequence[int], batch: int) -> Any:
    """These examples of everything in the arguments that has a part for each."""
    if isinstance(value, Tensor):
        tag = value._tag if type(value) is Traced else None
        if not isinstance(tag, Layout):
            return value
        bare = plain(value).detach()
        places = torch.arange(bare.shape[tag.dim], device=bare.device).view(-1, batch, tag.inner)
        rows = bare.index_select(tag.dim, places[:, list(examples)].flatten())
        return mark(rows, recorder, Layout(tag.dim, tag.inner))
    if isinstance(value, (tuple, list)):
        if len(value) == batch and not tensors(value) and type(value) in (tuple, list):  # lengths or names, say
            return type(value)(value[i] for i in examples)
        return rebuilt(value, [_cut(recorder, v, examples, batch) for v in value])
    if isinstance(value, dict):
        return {k: _cut(recorder, v, examples, batch) for k, v in value.items()}
    return value


def _are_same(a: list[Tensor], of_a: Sequence[int], b: list[Tensor], of_b: Sequence[int]) -> bool:
    """Whether the examples that two runs have in common have the same outputs in both."""
    for x, y in zip(a, b):
        mine, other = getattr(x, "_tag", None), getattr(y, "_tag", None)
        if not isinstance(mine, Layout) or not isinstance(other, Layout):
            continue
        for place, example in enumerate(of_b):
            at = of_a.index(example)
            own = select_examples(plain(x).detach(), mine, len(of_a), at, at + 1)
            if not _is_same(own, select_examples(plain(y).detach(), other, len(of_b), place, place + 1)):
                return False
    return True


def _is_same(a: Tensor, b: Tensor) -> bool:
    if a.ndim != b.ndim:
        return False
    for dim, sizes in enumerate(zip(a.shape, b.shape)):
        a, b = a.narrow(dim, 0, min(sizes)), b.narrow(dim, 0, min(sizes))
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    tolerance = _HALF if torch.is_autocast_enabled(a.device.type) else _TOLERANCE.get(a.dtype, _HALF)
    largest = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
    return torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance * largest, equal_nan=True)


_STANDING = {"rand": 0.5, "rand_like": 0.5, "uniform_": 0.5, "bernoulli": 1.0, "bernoulli_": 1.0} | dict.fromkeys(
    ("randn", "randn_like", "normal_"), 0.0
)


class _Still(TorchFunctionMode):
    """Every dropout is the identity, and noise is what it is in the middle."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if "dropout" in name and args and isinstance(args[0], Tensor):
            return args[0]
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        found = func(*args, **kwargs)
        return found.fill_(_STANDING[name]) if name in _STANDING else found


@contextmanager
def undisturbed(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Everything random begins with a seed, and the model and all generators are left as they were found."""
    modules = [(module, dict(vars(module)), _contents(module)) for module in model.modules()]
    generators = [(g, g.get_state()) for m in model.modules() for g in vars(m).values() if type(g) is torch.Generator]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (the model may use it)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            _copy_buffers(model)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            for module, attributes, contents in modules:
                _refill(vars(module), attributes)
                for value, content in contents:
                    _refill(value, content)
            for generator, state in generators:
                generator.set_state(state)
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def _copy_buffers(model: nn.Module) -> None:
    """In the place of buffers, to which nothing is then written that the graph of the batch may hold."""
    copies: dict[int, Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    return [(v, v.copy()) for v in vars(module).values() if isinstance(v, (list, dict, set))]


def _refill(value: Any, content: Any) -> None:
    """Never empty in between: Ctrl-C may come at any time."""
    if isinstance(value, list):
        value[:] = content
    elif isinstance(value, dict):
        value.update(content)
        for key in [key for key in value if key not in content]:
            del value[key]
    else:
        value.update(content)
        value.intersection_update(content)
