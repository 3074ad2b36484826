"""Check the kinds and keywords of `make_private`'s arguments before it opens, attaches or charges anything."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torch import nn

from tacit.ledger import AdaptiveBudget, Budget, Ledger
from tacit.mechanisms import Flat, Strategy
from tacit.training.tally import Metric
from tacit.training.team import Parallel

P = ParamSpec("P")
R = TypeVar("R")

_ELSEWHERE = {
    "module": "give the model as the first argument",
    "data_loader": "give the data set (loader.dataset) as the third argument",
    "dataloader": "give the data set (loader.dataset) as the third argument",
    "train_dataset": "give the data set as the third argument",
    "max_grad_norm": "write clipping={value}",
    "clip_norm": "write clipping={value}",
    "target_epsilon": "write budget=tacit.Budget(epsilon={value}, delta=1e-5)",
    "target_delta": "write budget=tacit.Budget(epsilon=2.0, delta={value})",
    "epsilon": "write budget=tacit.Budget(epsilon={value}, delta=1e-5)",
    "delta": "write budget=tacit.Budget(epsilon=2.0, delta={value})",
    "expected_batch_size": "write lot_size={value}",
    "sample_rate": "write lot_size=, the sampling rate times the number of records",
    "max_physical_batch_size": "write batch_size={value}",
    "gradient_accumulation_steps": "write lot_size= for the records of a step and batch_size= for those in memory",
    "poisson_sampling": "write sampling='poisson' (the default) or sampling='allocation'",
    "loss_reduction": "write reduction={value}",
    "batch_first": "write batch_dim=0 (the default) or batch_dim=1",
    "noise_generator": "leave it out: noise comes from a secure generator; seed= is for debugging",
    "criterion": "leave it out: compute the loss in your loop",
    "grad_sample_mode": "leave it out: the engine follows every operation of PyTorch",
    "wrap_model": "leave it out: the model is not wrapped",
    "rand_on_empty": "leave it out: an empty lot is an empty batch",
    "secure_mode": "leave it out: noise comes from a secure generator",
    "workers": "write num_workers={value}",
    "collate": "write collate_fn=",
}
"""Remedies for keywords of other libraries, Opacus first of all."""


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` refuse unknown keywords with a sentence that says what to write."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = {name: value for name, value in kwargs.items() if name not in known}
        if unknown:
            remedies = "; ".join(f"{name}: {_remedy(name, value, known)}" for name, value in unknown.items())
            raise TypeError(f"make_private has no argument {', '.join(unknown)}. Instead of {remedies}.")
        return function(*args, **kwargs)

    return call


def _remedy(name: str, value: Any, known: Sequence[str]) -> str:
    if name in _ELSEWHERE:
        plain = isinstance(value, int | float | str)
        return _ELSEWHERE[name].format(value=repr(value) if plain else "…")
    near = get_close_matches(name, known, n=1)
    return f"write {near[0]}=" if near else "leave it out"


def check_kinds(
    *,
    model: Any,
    optimizer: Any,
    budget: Any,
    ledger: Any,
    metrics: Any,
    public_buffers: Any,
    purpose: Any,
    parallel: Any,
    noise_multiplier: Any,
    sampling: Any,
) -> None:
    """Refuse arguments of the wrong kind, each with what to write instead."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is {_kind(model)}; give the torch.nn.Module to train.")
    if isinstance(optimizer, type) or not all(hasattr(optimizer, name) for name in ("step", "param_groups", "state")):
        raise ValueError(
            f"optimizer is {_kind(optimizer)}; make one first: torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    for thing in (*model.modules(), optimizer):
        if type(thing).__module__.partition(".")[0] == "opacus":
            raise ValueError(
                f"{type(thing).__name__} belongs to Opacus, which would compute the gradients a second time; give "
                "make_private the model and optimizer as they were before PrivacyEngine.make_private."
            )
    if budget is not None and not isinstance(budget, Budget | AdaptiveBudget):
        epsilon = budget[0] if isinstance(budget, Sequence) and budget else budget
        shown = epsilon if _is_number(epsilon) else 2.0
        raise ValueError(f"budget is {budget!r}; write budget=tacit.Budget(epsilon={shown!r}, delta=1e-5).")
    if isinstance(budget, AdaptiveBudget) and sampling == "allocation":
        raise ValueError("an AdaptiveBudget has no proof with sampling='allocation'; use a Budget or Poisson sampling.")
    if ledger is not None and not isinstance(ledger, Ledger | str | Path):
        raise ValueError(f"ledger is {_kind(ledger)}; give the path of a file, or a tacit.Ledger.")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ValueError(f"metrics is {_kind(metrics)}; write metrics={{'loss': tacit.Metric(bound=5.0)}}.")
    for name, metric in (metrics or {}).items():
        if not isinstance(name, str) or not isinstance(metric, Metric):
            raise ValueError(
                f"metrics has {name!r}: {metric!r}; write metrics={{{str(name)!r}: tacit.Metric(bound=5.0)}}, where no "
                "record's value is larger than the bound."
            )
    if isinstance(public_buffers, str) or not all(isinstance(name, str) for name in public_buffers):
        raise ValueError(f"public_buffers is {public_buffers!r}; give a list of names or patterns: ['counter'].")
    if not isinstance(purpose, str):
        raise ValueError(f"purpose is {purpose!r}; it must be text.")
    if parallel is not None and not isinstance(parallel, Parallel):
        raise ValueError(f"parallel is {parallel!r}; write parallel=tacit.Parallel().")
    if noise_multiplier is not None and not callable(noise_multiplier) and not _is_number(noise_multiplier):
        raise ValueError(
            f"noise_multiplier is {noise_multiplier!r}; it must be a finite number above 0, or a function of the step."
        )


def strategy(clipping: Any, step: int | None = None) -> Strategy:
    """Return the clipping strategy that was given; a number S means ``Flat(S)``."""
    when = "" if step is None else f" at step {step}"
    if _is_number(clipping):
        if not 0 < clipping < math.inf:
            raise ValueError(f"clipping is {clipping!r}{when}; a clip norm must be a finite number above 0.")
        return Flat(float(clipping))
    if isinstance(clipping, type) or not callable(getattr(clipping, "bind", None)):
        raise ValueError(
            f"clipping is {clipping!r}{when}; give a clip norm (clipping=1.0), a strategy such as "
            "tacit.PerLayer(total=1.0), or a function of the step."
        )
    return clipping  # type: ignore[no-any-return]


def strategies(clipping: Any) -> Callable[[int], Strategy]:
    """Return the clipping strategy of each step."""
    if callable(clipping) and not hasattr(clipping, "bind"):
        return lambda step: strategy(clipping(step), step)
    chosen = strategy(clipping)
    return lambda step: chosen


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
