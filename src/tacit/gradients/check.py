"""Problems that are visible before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.gradients.layout import Layout, select_examples
from tacit.gradients.nested import mapped, tensors
from tacit.gradients.problems import ValuesRead, refuse
from tacit.gradients.traced import Traced

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}


def module_problems(model: nn.Module) -> list[str]:
    """Modules that are known to mix examples or to keep statistics of them, each with its remedy."""
    problems = []
    scripted: set[nn.Module] = set()
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if getattr(module, "_orig_mod", None) is not None or getattr(module, "_compiled_call_impl", None) is not None:
            problems.append(
                f"{where} is compiled, and compiled code hides its operations: give the module before torch.compile"
            )
        if isinstance(module, torch.jit.ScriptModule) and module not in scripted:
            scripted.update(module.modules())  # those within it come with it
            problems.append(
                f"{where} is scripted or traced (torch.jit), which hides its operations: give the module it was made of"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            if module.track_running_stats and module.training:
                problems.append(
                    f"{where} keeps running statistics of the examples, un-noised: set track_running_stats=False"
                )
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training or not module.track_running_stats:
                problems.append(
                    f"{where} normalises with statistics of the whole batch: replace it by nn.GroupNorm, "
                    "or call .eval() on it to use fixed statistics"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.max_norm is not None:
                problems.append(f"{where} has max_norm, which changes weights by what was looked up: leave it out")
            if module.scale_grad_by_freq and module.weight.requires_grad:
                problems.append(f"{where} has scale_grad_by_freq, which counts over the batch: set it to False")
    return problems


def check(model: nn.Module, *args: Any, batch_dim: Any = 0, rows_per_record: int = 1, **kwargs: Any) -> None:
    """Raise a ValueError that lists everything that stands in the way of per-example gradients.

    The modules are looked at, the model is run once on the given batch (a few examples are enough) with every operation
    followed, and each example is run alone: its outputs must be those it had in the batch. The last step finds mixing
    that no single operation shows (through shapes, counts or code the engine cannot see). Dropout is switched off
    meanwhile; buffers and the random state are restored. A model whose output is random otherwise skips the last step.
    """
    from tacit.gradients.tape import Engine

    problems = module_problems(model)
    refuse(problems)
    with _undisturbed(model), _NoDropout():
        engine = Engine(model, batch_dim=batch_dim, rows_per_record=rows_per_record)
        try:
            inputs, named = engine._inputs.marked(args, kwargs)
            engine._recorder.inside = True
            try:
                output = model.forward(*inputs, **named)
            except ValuesRead as error:
                refuse([str(error)])
                raise
            finally:
                engine._recorder.inside = False
            engine._recorder.problems.check()
            problems += _disagreements(engine, model, inputs, named, output)
        finally:
            engine.detach()
    refuse(problems)


def _disagreements(engine: Any, model: nn.Module, args: Any, kwargs: Any, output: Any) -> list[str]:
    batch = engine.batch_size
    whole = [t for t in tensors(output) if type(t) is Traced and isinstance(t._tag, Layout) and t._tag.owner is None]
    layouts = [t._tag for t in whole if isinstance(t._tag, Layout)]
    engine._recorder.active = False
    bare = [t.as_subclass(Tensor).detach() for t in whole]
    indices = [i for i, t in enumerate(tensors(output)) if any(t is w for w in whole)]
    with torch.no_grad():
        again = [tensors(model.forward(*_plain(args), **_plain(kwargs)))[i] for i in indices]
        if any(not torch.equal(a, b) for a, b in zip(bare, again)) and not all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(bare, again)
        ):
            return []
        for b in range(min(batch, 4)):
            single = tensors(model.forward(*_one(args, batch, b), **_one(kwargs, batch, b)))
            for i, full, layout in zip(indices, bare, layouts):
                share = select_examples(full, layout, batch, b, b + 1)
                tolerance = _TOLERANCE.get(full.dtype, 3e-2)
                size = float(share.abs().max()) if share.numel() and share.is_floating_point() else 1.0
                alone = single[i] if i < len(single) else None
                if (
                    alone is None
                    or alone.shape != share.shape
                    or not torch.allclose(
                        alone.double(), share.double(), rtol=tolerance, atol=tolerance * size, equal_nan=True
                    )
                ):
                    return [
                        f"the model's output for example {b} changes when other examples are in the batch: somewhere "
                        "examples influence each other (through an index, `.item()`, control flow or a count)"
                    ]
    return []


class _NoDropout(TorchFunctionMode):
    """Every dropout becomes the identity."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if "dropout" in name and args and isinstance(args[0], Tensor):
            return args[0]
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    kept = [(b, b.clone()) for b in model.buffers()]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for b, value in kept:
                    b.copy_(value)


def _plain(value: Any) -> Any:
    return mapped(value, lambda t: t.as_subclass(Tensor))


def _one(value: Any, batch: int, b: int) -> Any:
    def cut(t: Tensor) -> Tensor:
        if type(t) is not Traced or not isinstance(t._tag, Layout):
            return t
        return select_examples(t.as_subclass(Tensor), t._tag, batch, b, b + 1)

    return mapped(value, cut)
