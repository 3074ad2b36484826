"""Problems with per-example gradients: gathered where they are met, told all at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
from torch import nn

from tacit.gradients.torch_internals import get_frame

log = logging.getLogger("tacit.gradients")
_INSTALLED = ("site-packages", "dist-packages", Path(os.__file__).parent.name)
"""Directories of code that is not the user's own: installed packages and Python itself."""
_ELSEWHERE = "the loss"
"""Where code runs that is no module's."""


EARLIER = (
    "a tensor computed from an earlier batch takes part in this one (a state, an average or a queue that is kept), and "
    "with it records whose influence the noise of this step does not cover; compute it from each example, or begin anew"
)
"""Why a tensor of an earlier batch may not take part."""

FAILED = (
    "an operation on the batch failed and the model went on in another way for all examples; use an operation that "
    "answers for each example (torch.linalg.cholesky_ex, a comparison) with torch.where"
)
"""Why a model may not catch the error of an operation: the values of one example can be its cause."""

TRANSFORMED = (
    "torch.vmap, torch.func.grad and the like hide operations on the batch; use operations on whole tensors, or "
    "torch.autograd.grad"
)
"""Why the batch may not be wrapped by torch.func."""


class Refused(ValueError):
    """A model or loss whose examples cannot be told apart; `short` is the first problem."""

    def __init__(self, message: str, short: str) -> None:
        super().__init__(message)
        self.short = short


def refuse(problems: list[str]) -> None:
    """Raise an error that lists the problems, if there are any."""
    if problems:
        listed = "\n".join(f"  - {p}" for p in problems)
        raise Refused(f"this model has no per-example gradients:\n{listed}", problems[0])


class CannotCut(RuntimeError):
    """Why a module cannot run one example at a time; the module around it may."""


class ValuesRead(RuntimeError):
    """The model's own code looked at values of the batch; `short` says so in half a sentence."""

    def __init__(self, message: str, short: str) -> None:
        super().__init__(message)
        self.short = short


class Problems:
    """The problems of the current batch, each with the module where it was met."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found: list[str] = []
        self._before: list[str] = []
        self._reasons: set[str] = set()
        self._suspects: dict[str, str] = {}
        self.slow: set[str] = set()
        self.modules: list[str] = []
        """The names of the modules where problems were found, first the first."""

    def add(self, reason: str) -> None:
        """Note the first place where a reason was met: later layers only repeat it."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._found.append(self._suspects.get(reason) or f"{self.where()}: {reason}{own_line()}")
            self._note(self.module())

    def _note(self, module: str | None) -> None:
        if module is not None:
            self.modules.append(module)

    @property
    def found(self) -> list[str]:
        return list(self._found)

    def suspect(self, reason: str) -> None:
        """Something that is a problem only if the loss comes to depend on it."""
        if reason not in self._suspects:
            self._suspects[reason] = f"{self.where()}: {reason}{own_line()}"
            self._note(self.module())

    def confirm(self, reason: str) -> None:
        """The loss depends on the suspects: they are problems, or else `reason` is."""
        self._found += [text for known, text in self._suspects.items() if known not in self._reasons]
        if not self._found:
            self.add(reason)

    def enter(self) -> None:
        """The model is called."""
        self._before = list(self._found)

    def fail(self) -> None:
        """The call came to no end: its problems are of a batch that will not be used."""
        self._found = list(self._before)
        self._reasons = {reason for reason in self._reasons if any(reason in text for text in self._found)}

    def check(self) -> None:
        """Raise the problems that were found."""
        if self._found:
            found = self._found
            self.forget()
            refuse(found)

    def refuse_now(self, reason: str) -> None:
        """Raise at once, with what was found before."""
        self.add(reason)
        self.check()

    def forget(self) -> None:
        self._found, self._before, self._suspects, self._reasons = [], [], {}, set()

    def refuse_reading(self, name: str) -> NoReturn:
        raise ValuesRead(
            f"{self.where()}: `{name.strip('_')}` reads values of the batch into Python inside the model, where they "
            "can decide (in an `if`, an index, a factor) what happens to all examples. Keep the decision in tensors "
            "(torch.where, masks) and per example, take sizes from shapes or constants; to log or print values, keep "
            "the tensor and read it after backward (for torch.distributions, pass validate_args=False; to Hugging Face "
            f"models, an attention mask of four dimensions){own_line()}",
            f"it reads values of the batch (`{name.strip('_')}`)",
        )

    def refuse_writing(self, name: str) -> None:
        """Raise at once for a write in place that is not followed."""
        self.refuse_now(
            f"`{name}` writes data of the batch in place in a way the engine does not follow; use the form that "
            "returns a new tensor (no trailing underscore, no out=)"
        )

    def refuse_printing(self, name: str) -> None:
        """Refuse text of the batch while the model runs; after it failed a debugger may show it."""
        if self.where() != _ELSEWHERE:
            self.refuse_reading(name)

    def refuse_size(self, name: str) -> NoReturn:
        raise ValuesRead(
            f"{self.where()}: `{name.strip('_')}` reads a size that data of the batch decided (how many rows a mask "
            "picked, how long the longest sequence is) into Python inside the model, where it acts on all examples. "
            "Use flatten(1) or reshape(-1, …) and sizes of other dimensions, or those of the model's inputs and "
            f"constants; pad_packed_sequence takes total_length={own_line()}",
            f"it has sizes that values of the batch decide (`{name.strip('_')}`)",
        )

    def report_slow(self, name: str) -> None:
        if name not in self.slow:
            self.slow.add(name)
            log.warning(
                "%s: `%s` has no fast rule; its per-example gradients use torch.func (correct, slower)",
                self.where(),
                name,
            )

    def where(self) -> str:
        """The module whose code is running, by its name in the model and its class."""
        name = self.module()
        if name is None:
            return _ELSEWHERE
        kind = type(self._model.get_submodule(name)).__name__
        return f"{name or kind} ({kind})"

    def module(self) -> str | None:
        """Return the name of the module whose code is running; None outside the model."""
        frames = []
        frame: FrameType | None = get_frame(1)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return innermost(frames, self._model)


def own_line() -> str:
    """Return the line of the user's own code that is running, for the end of a message; nothing if there is none.

    Only the file's name: a log needs no paths.
    """
    frame: FrameType | None = get_frame(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        path = Path(frame.f_code.co_filename)
        if package not in ("tacit", "torch") and not (set(_INSTALLED) & set(path.parts)) and path.name[0] != "<":
            return f" ({path.name}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""


def innermost(frames: Iterable[FrameType], model: nn.Module) -> str | None:
    """Return the name of the module of `model` that the first frame of one belongs to."""
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    for frame in frames:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            return names[id(owner)]
    return None


def module_problems(model: nn.Module) -> list[str]:
    """Modules that are known to mix examples or to keep statistics of them, each with its remedy."""
    problems = []
    scripted: set[nn.Module] = set()
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule) and module not in scripted:
            scripted.update(module.modules())  # those within it come with it
            problems.append(
                f"{where} is scripted or traced (torch.jit), which hides its operations: give the module it was made of"
            )
        if isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)):
            if module.track_running_stats and module.training:
                problems.append(
                    f"{where} keeps running statistics of the examples, un-noised: set track_running_stats=False"
                )
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)):
            if module.training or not module.track_running_stats:
                problems.append(
                    f"{where} normalises with statistics of the whole batch: replace it by nn.GroupNorm or by "
                    "private batch normalisation with tacit.fix(model), or call .eval() on it to use fixed statistics"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.max_norm is not None:
                problems.append(f"{where} has max_norm, which changes weights by what was looked up: leave it out")
            if module.scale_grad_by_freq and module.weight.requires_grad:
                problems.append(f"{where} has scale_grad_by_freq, which counts over the batch: set it to False")
    return problems
