"""Plan which modules run one example at a time.

The plan is made once, on copies of the model and at most seven examples, before the first batch. The model is run with
every operation followed; the module in which something cannot be followed is isolated, and the run begins again from
the start, until nothing stands in the way. A module that cannot be cut along the batch gives way to the one around it,
up to the whole model. Afterwards the plan stays as it is: isolating a module later because of one record would let that
record change everybody's rounding.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from tacit.gradients.clip import Measured
from tacit.gradients.guard.backward import custom_node
from tacit.gradients.guard.guard import BatchGuard
from tacit.gradients.guard.hidden_calls import Unseen
from tacit.gradients.guard.model_copies import copied, silenced
from tacit.gradients.guard.run_in_parts import MOST, Cut, outputs_of
from tacit.gradients.guard.standing_still import Still, seeded
from tacit.gradients.inputs import divisions
from tacit.gradients.isolation.compare import Compared, Mixes
from tacit.gradients.isolation.isolate import Arguments, Installed, Plan
from tacit.gradients.layers.loss_mean import scales
from tacit.gradients.layout import Layout, Total
from tacit.gradients.libraries import data_independent
from tacit.gradients.nested import tensors
from tacit.gradients.problems import CannotCut, Refused, ValuesRead, innermost
from tacit.gradients.recorder import Recorder
from tacit.gradients.torch_internals import without_subclasses
from tacit.gradients.traced import Traced

log = logging.getLogger(__name__)

ATTEMPTS = 40
"""Runs of the model after which planning gives up."""

FEWEST = 3
"""Examples that a plan is made with; of a smaller batch some are taken several times."""


class Obstacle(Exception):
    """An obstacle to a plan, and the module where it was met.

    With ``output`` it stands in the way of one of several outputs only, on which the user's loss may not depend. With
    ``differs`` a module gave other outputs alone than together; with ``operation`` the guard refused an operation.
    """

    def __init__(
        self, module: str | None, reason: str, *, output: bool = False, operation: bool = False, differs: bool = False
    ) -> None:
        super().__init__(reason)
        self.module, self.reason, self.output = module, reason, output
        self.operation, self.differs = operation, differs


_REMEDY = (
    ". Its gradients are exact, and it is slower there. To avoid that, keep values of the batch in tensors "
    "(torch.where instead of `if`) and use operations of PyTorch in place of custom autograd functions"
)


def make_plan(recorder: Recorder, args: Any, kwargs: Any, isolate: Sequence[str] = ()) -> Plan:
    """Return the modules to be isolated, `isolate` among them; nothing where no plan was found.

    Without a plan the batch is followed as a whole, and the obstacle is refused there.
    """
    names, reasons = list(isolate), dict[str, str]()
    final = set(isolate)
    """Modules that must mean the same alone: they were asked for, or an operation in them combines examples."""
    doubtful = False
    """True if an operation in a module combines examples, or the module meant something else alone and gave way."""
    without: list[str] | None = None
    """The names before an output that mixes was met: whether the loss depends on that will show."""
    for _ in range(ATTEMPTS):
        try:
            every = without is None or names != without
            plan = attempt(recorder, args, kwargs, names, every_output=every)
            if doubtful:  # a gate that begins at zero may hide that examples are combined
                attempt(recorder, args, kwargs, names, every_output=every, moved=True)
        except Obstacle as error:
            chosen = None
            if error.module is not None and not (error.differs and error.module in final):
                if error.output and without is None:
                    without = names
                chosen = widened(recorder.model, names, error.module)
            log.debug("%s: %s", error.module, error)
            if chosen is None and without is not None and names != without:
                names = without
                continue
            if chosen is None:
                if names:
                    log.warning("the model cannot run one example at a time where it would have to: %s", error)
                return {}
            added = [name for name in chosen if name not in names]
            reasons |= {name: str(error) for name in added}
            final |= set(added) if error.operation else set()
            doubtful = doubtful or error.differs or error.operation
            names = chosen
        else:
            _tell(recorder.model, plan, reasons)
            return plan
    return {}


def _tell(model: nn.Module, plan: Plan, reasons: dict[str, str]) -> None:
    """Say once for every kind of layer that it runs one example at a time."""
    kinds: dict[str, list[str]] = {}
    for name in plan:
        kinds.setdefault(_pattern(name), []).append(name)
    for names in kinds.values():
        kind = type(model.get_submodule(names[0])).__name__
        several = f" and {len(names) - 1} more like it run" if len(names) > 1 else " runs"
        reason, remedy = reasons.get(names[0], "it was asked for"), "" if names[0] not in reasons else _REMEDY
        log.warning("%s (%s)%s one example at a time: %s%s", names[0] or "the model", kind, several, reason, remedy)


def widened(model: nn.Module, names: Sequence[str], culprit: str) -> list[str] | None:
    """Return the names with `culprit` and the modules of its kind in other layers, or with the module around it.

    None if the whole model was isolated already.
    """
    around = next((name for name in names if name in ("", culprit) or culprit.startswith(f"{name}.")), None)
    if around == "":
        return None
    if around is not None:
        culprit = around.rpartition(".")[0]
    while isinstance(model.get_submodule(culprit), (nn.ModuleList, nn.ModuleDict)):
        culprit = culprit.rpartition(".")[0]
    pattern, kind = _pattern(culprit), type(model.get_submodule(culprit))
    alike = [n for n, m in model.named_modules() if _pattern(n) == pattern and type(m) is kind]
    kept = [n for n in names if not any(n == other or n.startswith(f"{other}." if other else "") for other in alike)]
    return kept + alike


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def attempt(
    recorder: Recorder, args: Any, kwargs: Any, names: Sequence[str], *, every_output: bool = True, moved: bool = False
) -> Plan:
    """Run a copy of the model with these modules isolated; return how their outputs are put together.

    With ``moved`` the copy has other parameters nearby, none of which is zero.
    Raises `Obstacle` where something cannot be followed, and where an isolated module's output for an example is
    another one alone than beside others.
    """
    batch = recorder.batch or 0
    parts = divisions((args, kwargs))
    if parts and "" not in names:
        raise Obstacle("", "it is given a list with an entry for each example, or one object for all of them")
    whole = not all(part.mergeable for part in parts)
    size = batch if whole else min(max(batch, FEWEST), MOST)
    examples = [i % batch for i in range(size)]
    if any(type(t) is Traced and not _is_regular(t._tag) for t in tensors((args, kwargs))):
        raise Obstacle(None, "an input is not made of rows in the order of the examples")
    copies: dict[int, Any] = {}
    try:
        twin = silenced(copied(recorder.model, copies))
    except Exception as error:  # whatever a model raises that cannot be copied
        raise Obstacle(None, f"the model cannot be copied: {type(error).__name__}") from error
    if moved:
        _move(twin)
    own = Recorder(twin, recorder.reduction, BatchGuard)
    own.batch, own.planned_for = size, recorder
    given = Cut(own, examples, batch, lists=False, copies=copies).of((args, kwargs))
    trial = Installed(own, twin, {name: () for name in names}, kind=Compared)
    try:
        with seeded(0), data_independent.paths(), Still(twin), trial:
            _follow(own, twin, given, every_output)
    except Obstacle:
        raise
    except Exception as error:  # whatever the model's own code raises on tensors that are followed
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if is_internal(error, frames[-1]):
            raise
        differs = isinstance(error, Mixes)
        raise Obstacle(innermost(reversed(frames), twin) or "", _in_short(error), differs=differs) from error
    finally:
        own.active = False
    return trial.found()


def _in_short(error: Exception) -> str:
    """Describe an obstacle; of an error that is not the engine's, its kind alone: its text may tell of records."""
    if isinstance(error, (Refused, ValuesRead)):
        return error.short
    return (
        str(error) if isinstance(error, (CannotCut, Mixes)) else f"it raised {type(error).__name__} on followed tensors"
    )


def _move(twin: nn.Module) -> None:
    """Replace a copy's parameters, which are the model's own, by others nearby."""
    source, replaced = torch.Generator().manual_seed(0), dict[int, nn.Parameter]()
    for module in twin.modules():
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not p.is_floating_point():
                continue
            if id(p) not in replaced:
                size = float(p.detach().float().square().mean().sqrt()) or 1.0
                noise = torch.randn(p.shape, generator=source).to(p.device, p.dtype)
                replaced[id(p)] = nn.Parameter(p.detach() + 0.1 * size * noise, p.requires_grad)
            setattr(module, name, replaced[id(p)])  # recurrent layers keep a list of their own up to date


def is_internal(error: Exception, innermost_frame: FrameType) -> bool:
    """Return whether an error is a mistake in this package: isolating a module would only hide it.

    An operation that the model calls wrongly fails in a frame of this package too; PyTorch raises no such errors there
    except TypeError, whose text then names the operation's arguments.
    """
    if not innermost_frame.f_globals.get("__name__", "").startswith("tacit.gradients."):
        return False
    return isinstance(error, (AttributeError, NameError, AssertionError)) or (
        isinstance(error, TypeError) and str(error).startswith("'NoneType' object")
    )


def _is_regular(tag: Any) -> bool:
    return isinstance(tag, Layout) and tag.owner is None


def _follow(own: Recorder, twin: nn.Module, given: Arguments, every_output: bool) -> None:
    """Run forward and backward passes with every operation followed, and raise the first obstacle."""
    unseen = Unseen(own)
    watch = _CustomFunctions(own, unseen)
    own.inside = True
    unseen.put()
    try:
        with watch:
            output = twin(*given[0], **given[1])
    finally:
        own.inside = False
        unseen.remove()
    if own.problems.found:
        module = own.problems.modules[0] if own.problems.modules else None
        raise Obstacle(module, own.problems.found[0], operation=True)
    found = [t for t in outputs_of(output) if own.follows(t) and t.requires_grad]
    usable = [t for t in found if isinstance(t._tag, (Layout, Total))]  # type: ignore[attr-defined]
    if len(usable) < len(found) and (every_output or not usable):
        own.problems.confirm("an output of the model mixes examples")
        module = own.problems.modules[0] if own.problems.modules else None
        raise Obstacle(module, own.problems.found[0], output=bool(usable), operation=True)
    if usable:
        own.reduction = None
        torch.autograd.backward([t.float().sum() for t in usable if not t.is_complex()])
        if own.planned_for is not None:
            own.planned_for.scales = scales(own)
        own.reduction, own.seeds, own.inner_seeds = "sum", [], []  # mean or sum is no question here
        Measured(own).squares()


class _CustomFunctions:
    """Finds the innermost module whose forward built a node of an autograd function that is not followed."""

    def __init__(self, recorder: Recorder, unseen: Unseen) -> None:
        self._recorder, self._unseen = recorder, unseen
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for name, module in self._recorder.model.named_modules():
            self._handles.append(module.register_forward_hook(self._look(name), with_kwargs=True))

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _look(self, name: str) -> Any:
        def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._recorder.isolating:
                return
            self._unseen.looks_away = True  # the engine's own reading is none of the model's
            with without_subclasses():
                before = {t.grad_fn for t in outputs_of((args, kwargs))}
                followed = [t for t in outputs_of(output) if type(t) is Traced]  # others are of parameters alone
                found = custom_node(followed, before) is not None
            self._unseen.looks_away = False
            if found:
                raise Obstacle(name, "it has a custom autograd function of parameters and the batch")

        return look
