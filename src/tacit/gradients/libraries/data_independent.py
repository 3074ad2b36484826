"""Ask libraries for their data-independent code paths while the engine follows a pass.

Libraries look at values of the batch to choose between two ways of computing the same thing. While a followed pass
runs in a thread, their functions are replaced in that thread by ones that need no values:

- Hugging Face models drop an attention mask without padding, for example. For tracing compilers `transformers` has a
  switch, `is_tracing`, that always takes the way that needs no values.
- Its mixtures of experts ask which experts were chosen (see `experts`). Some masks are made of functions of positions
  under `torch.vmap`, and DeBERTa's own loss looks for the labels that count (see `transformers_models`).
- Reentrant checkpointing hides a part of the model in a custom autograd function. Checkpointing without it computes
  the same.
- Other custom autograd functions are followed (see `layers.custom_functions`).
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import checkpoint as checkpointing

from tacit.gradients.layers.custom_functions import follow_function
from tacit.gradients.libraries.experts import experts_forward, switch_experts_forward
from tacit.gradients.libraries.transformers_models import classification_forward, expanded_mask
from tacit.gradients.torch_internals import apply_of, function_base, get_frame

_thread = threading.local()


def is_following() -> bool:
    """Return whether a followed pass runs in this thread."""
    return bool(getattr(_thread, "passes", 0))


class _Switch:
    """A library's function, and another that answers instead in a thread whose pass is followed."""

    def __init__(self, original: Callable[..., Any], followed: Callable[..., Any]) -> None:
        self._original, self._followed = original, followed
        functools.update_wrapper(self, original)  # trainers look at the names of its arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._followed if is_following() else self._original)(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


class _Apply:
    """`apply` of custom autograd functions: in a followed pass, those that others wrote are followed."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        original = apply_of(owner)
        if not is_following() or owner.__module__.startswith(("torch.", "tacit.gradients")):
            return original
        return functools.partial(follow_function, owner, original)


def _no_reentrant_checkpoint(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    return checkpointing.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


def _choose_experts(interface: Any, implementation: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        parallel = getattr(module, "_is_expert_parallel", False)
        return (default if parallel else experts_forward)(module, *args, **kwargs)

    return forward


_SWITCHES: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("transformers.utils.import_utils", "", "is_jit_tracing", lambda: True),
    ("transformers.integrations.moe", "ExpertsInterface", "get_interface", _choose_experts),
    ("torch.utils.checkpoint", "CheckpointFunction", "apply", _no_reentrant_checkpoint),
    ("transformers.masking_utils", "", "_vmap_expansion_sdpa", expanded_mask),
    ("transformers.models.switch_transformers.modeling_switch_transformers", "SwitchTransformersExperts", "forward",
     switch_experts_forward),
    ("transformers.models.deberta.modeling_deberta", "DebertaForSequenceClassification", "forward",
     classification_forward),
    ("transformers.models.deberta_v2.modeling_deberta_v2", "DebertaV2ForSequenceClassification", "forward",
     classification_forward),
]  # fmt: skip
"""Module, class in it, name, and its replacement in a followed pass. A version without the name is isolated instead.

A function that answers for a `forward` is given the original first.
"""


def prepare() -> None:
    """Put the switches into the libraries that are loaded."""
    for module_name, class_name, name, followed in _SWITCHES:
        holder: Any = sys.modules.get(module_name)
        holder = getattr(holder, class_name, None) if class_name else holder
        original = getattr(holder, name, None)
        if original is not None and not isinstance(original, _Switch):
            answers = functools.partial(followed, original) if name == "forward" else followed
            setattr(holder, name, _Switch(original, answers))
    if not isinstance(vars(function_base).get("apply"), _Apply):
        function_base.apply = _Apply()


def begin() -> None:
    """A followed pass begins in this thread."""
    prepare()
    _thread.passes = getattr(_thread, "passes", 0) + 1


def end() -> None:
    """It is over."""
    _thread.passes = max(0, getattr(_thread, "passes", 0) - 1)


@contextmanager
def paths() -> Iterator[None]:
    """Take data-independent paths inside the block."""
    begin()
    try:
        yield
    finally:
        end()


def only_validates(model: nn.Module) -> bool:
    """Return whether the code that asks for a value can only raise an error with it, which ends the pass of `model`.

    That is so where `torch.distributions` validates its arguments, in an `assert`, in the condition of an `if` that
    only raises, and in a call of `torch._check` or of what `transformers` has for it, whose message may show a count:
    the value decides whether there is an error, and nothing else. It is not so if a caller, up to the
    model's call, catches errors and goes on: the value would decide which way.
    """
    frame: FrameType | None = get_frame(1)
    while frame is not None and _brings(frame):
        frame = frame.f_back
    if frame is None:
        return False
    if frame.f_code.co_filename not in _VALIDATING and not _is_condition_of_error(frame.f_code, frame.f_lineno):
        return False
    return not any(_is_caught(caller.f_code, caller.f_lineno) for caller in _up_to_call(frame, model))


def _brings(frame: FrameType) -> bool:
    """Return whether code only brings an operation from its caller to the engine: a mode's, or one of `_BETWEEN`."""
    own = str(frame.f_globals.get("__name__")).startswith(_BETWEEN)
    return own or frame.f_code.co_name == "__torch_function__"


def _up_to_call(frame: FrameType | None, model: nn.Module) -> Iterator[FrameType]:
    """Yield the frames of other code than PyTorch's and the engine's, up to the call of the model."""
    while frame is not None:
        library = str(frame.f_globals.get("__name__")).startswith(("torch.", "tacit.gradients"))
        if not library:
            yield frame
        elif frame.f_code is _MODULE_CALL and frame.f_locals.get("self") is model:
            return
        frame = frame.f_back


_MODULE_CALL: CodeType = nn.Module.__call__.__code__

_BETWEEN = ("tacit.gradients", "torch.overrides", Tensor.__contains__.__module__)
"""Modules whose code brings an operation from its caller to the engine."""

_VALIDATING = frozenset([Distribution.__init__.__code__.co_filename])
"""Where `torch.distributions` validates its arguments and samples."""


_CHECKS = ("torch_compilable_check(", "torch._check(", "_check_with(")
"""Calls that raise an error if their argument is false, and do nothing else."""


@functools.lru_cache(16)
def _statements(file: str) -> list[ast.stmt]:
    """Return the statements of a source file; none where there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


@functools.cache
def _is_condition_of_error(code: CodeType, line: int) -> bool:
    """Return whether a line of the source belongs to an `assert`, or to the condition of an `if` that only raises.

    A name that is assigned there (`:=`) could be read elsewhere: such a condition does not count, nor does one that
    shares its line with another statement.
    """
    here = [node for node in _statements(code.co_filename) if _covers(node, line)]
    innermost = min(here, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)
    if isinstance(innermost, ast.Assert):
        condition: ast.expr = innermost.test
    elif isinstance(innermost, ast.If) and all(isinstance(s, ast.Raise) for s in innermost.body + innermost.orelse):
        condition = innermost.test
    elif isinstance(innermost, ast.Expr) and ast.unparse(innermost.value).startswith(_CHECKS):
        condition = innermost.value
    else:
        return False
    alone = all(node is innermost or node.lineno != line for node in here)
    assigns = any(isinstance(node, ast.NamedExpr) for node in ast.walk(condition))
    return alone and _covers(condition, line) and not assigns


@functools.cache
def _is_caught(code: CodeType, line: int) -> bool:
    """Return whether an error in a line of a function need not leave it: a `try`, or `suppress`, may go on there."""
    inside = [node for node in _statements(code.co_filename) if _covers(node, code.co_firstlineno)]
    around = {id(node) for node in inside if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in _statements(code.co_filename):
        if id(node) in around or not any(_covers(s, line) for s in getattr(node, "body", ())):
            continue  # what is around the function's definition is over when it runs
        if isinstance(node, (ast.With, ast.AsyncWith)):
            caught = any("suppress" in ast.unparse(item.context_expr) for item in node.items)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            caught = any(_goes_on(handler.body) for handler in node.handlers) or _leaves(node.finalbody)
        else:
            continue
        if caught:
            return True
    return False


def _goes_on(handler: list[ast.stmt]) -> bool:
    """Return whether a handler of errors may end without raising one."""
    return not isinstance(handler[-1], ast.Raise) or _leaves(handler)


def _leaves(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for stmt in body for node in ast.walk(stmt))


def _covers(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
