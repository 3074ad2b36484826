"""Checks before the backward pass: the last look at the loss, and which parameters' gradients are captured.

Several backward passes on one batch add up, as in PyTorch: example i's gradient is that of the sum of its losses.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from tacit.gradients.isolation.replay import Walk
from tacit.gradients.layers.registry import ALWAYS, bound, layout_of, operation
from tacit.gradients.layout import Layout, Mixed, Only
from tacit.gradients.problems import EARLIER
from tacit.gradients.recording import Recording
from tacit.gradients.shards import gather_again, made_by_fsdp
from tacit.gradients.tap import OWN, unscaled
from tacit.gradients.torch_internals import backward_hooks, base_of, with_overrides, without_subclasses, write_count
from tacit.gradients.traced import Traced, mark, opened, plain


@operation("backward", ALWAYS)
def backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> None:
    body = opened(func)
    assert body is not None
    if func is not torch.autograd.backward:
        return body(*args, **kwargs)  # type: ignore[no-any-return]
    if recorder.in_backward:
        raise ValueError(_INNER)
    _look(recorder, *args, **kwargs)
    if kwargs.get("create_graph"):
        raise ValueError(_SECOND_ORDER)
    with torch.enable_grad():  # an alias made without it would have no graph
        roots = args[0] if kwargs.get("inputs") is not None else tuple(map(plain, _listed(args[0])))
    given = list(args[1:])
    if walks(recorder):  # the examples' graphs are walked once more, for the weighted sum
        given, kwargs = [*given[:1], True, *given[2:]] if len(given) > 1 else given, {**kwargs}
        if len(given) < 2:
            kwargs["retain_graph"] = True
    if given and given[0] is not None:
        given[0] = _own(recorder, args[0], given[0])
    elif kwargs.get("grad_tensors") is not None:
        kwargs = {**kwargs, "grad_tensors": _own(recorder, args[0], kwargs["grad_tensors"])}
    return body(roots, *given, **kwargs)  # type: ignore[no-any-return]


def walks(recorder: Recording) -> list[Walk]:
    """Return the calls of isolated modules whose gradients are computed again."""
    return [call for call in recorder.aliases if isinstance(call, Walk)] if recorder.aliases else []


def _own(recorder: Recording, tensors: Any, gradients: Any) -> list[Any]:
    """Gradients given for losses that were left unreduced, without the number of examples (see `unscaled`)."""
    roots = [tensors] if isinstance(tensors, Tensor) else tensors
    given = [gradients] if isinstance(gradients, Tensor) else gradients
    return [
        unscaled(plain(g), "sum", recorder.reduction, recorder.batch or 1)
        if g is not None and layout_of(recorder, t) is not None
        else g
        for t, g in zip(roots, given)
    ]


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _look(recorder: Recording, tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
    """The last look before gradients flow: list the problems, and see whether losses were left unreduced."""
    gather_again(recorder.model, recorder.sharded_modules)
    roots = _listed(tensors)
    _refuse_custom(roots)
    mixed: Mixed | None = None
    for root in roots:
        if type(root) is Traced and isinstance(root._tag, Only) and recorder.batch != 1:
            recorder.problems.add("the loss is that of one example picked out of the batch; reduce over all of them")
        if type(root) is Traced and isinstance(root._tag, Mixed):
            mixed = mixed or root._tag
    if mixed is not None:
        recorder.problems.confirm(mixed.reason)
    given = [grad_tensors] * len(roots) if grad_tensors is None else grad_tensors
    pairs = list(zip(roots, [given] if isinstance(given, Tensor) else given))
    for root, gradient in pairs:
        _check_seed(recorder, root, gradient)
    recorder.problems.check()
    for root, gradient in pairs:
        if type(root) is Traced and isinstance(root._tag, Layout) and gradient is not None:
            recorder.seeds.append(("sum", plain(gradient)))


_PYTORCHS = set[type]()
"""Classes of nodes that PyTorch's own operations make, as far as they were met."""


def custom_node(roots: Iterable[Any], before: Container[Any] = ()) -> Any:
    """Return a node of an autograd function that is neither PyTorch's nor the engine's, behind some tensors; or None.

    The search ends at the nodes of `before`, and goes around those of isolated modules.
    """
    seen: set[Any] = set()
    with without_subclasses():
        stack: list[Any] = [root.grad_fn for root in roots if isinstance(root, Tensor)]
    while stack:
        node = stack.pop()
        if node is None or node in seen or node in before:
            continue
        seen.add(node)
        kind, upstream = type(node), None
        if kind not in _PYTORCHS:
            if not isinstance(node, BackwardCFunction):
                _PYTORCHS.add(kind)
            elif getattr(node, "made_by", None) is OWN:
                upstream = getattr(node, "upstream", None)
            elif not made_by_fsdp(node):  # its gradients pass unchanged
                return node
        stack += [child for child, _ in node.next_functions] if upstream is None else upstream
    return None


def _refuse_custom(roots: list[Any]) -> None:
    """A custom function's forward is followed like any code; its backward is not."""
    node = custom_node(roots)
    if node is None:
        return
    name = node.name().removesuffix("Backward")
    if name == "BackwardHookFunction":
        raise ValueError(_MODULE_HOOK.format("a module"))
    raise ValueError(
        f"the loss goes through the custom autograd function {name!r}, whose "
        "backward may combine the gradients of different examples unseen; use it inside a module of the model, "
        "which then runs one example at a time"
    )


_MODULE_HOOK = "{} has a backward hook, which may combine the gradients of different examples unseen; remove it"

_HOOK = (
    "a gradient hook on a tensor of the batch sees the gradients of all examples together: it may look at them, but "
    "neither change them nor have a loss depend on them"
)


@operation("register_hook", ALWAYS)
def register_hook(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Allow hooks that only read (frameworks set some); what they compute is followed as mixed."""
    body = opened(func)
    assert body is not None
    tensor, hook = bound("self hook", args, kwargs)

    def watched(grad: Tensor) -> None:
        version = write_count(grad)
        shown = mark(plain(grad).detach(), recorder, Mixed(_HOOK))
        with with_overrides():
            answer = hook(shown)  # the user's code, followed like the model's own
        if not (answer is None or answer is shown) or write_count(grad) != version:
            raise ValueError(_HOOK)

    return body(tensor, watched)


@operation("register_post_accumulate_grad_hook", ALWAYS)
def register_post_accumulate_grad_hook(recorder: Recording, func: Any, args: Any, kwargs: Any) -> None:
    raise ValueError(_HOOK)


def module_hooks(model: nn.Module) -> list[Any]:
    """Return the tables of all backward hooks of modules; hooks that are set later go into the same tables."""
    return [backward_hooks(module) for module in model.modules()]


def refuse_module_hooks(model: nn.Module) -> None:
    """Backward hooks of modules see, and may change, the gradients of all examples together.

    Those that PyTorch runs in a node of their own (full ones, hooks of all modules) are found in the graph too.
    """
    for module in model.modules():
        if backward_hooks(module):
            name = next(name for name, each in model.named_modules() if each is module)
            raise ValueError(_MODULE_HOOK.format(f"{name or 'the model'} ({type(module).__name__})"))


def _check_seed(recorder: Recording, root: Any, gradient: Any) -> None:
    """A gradient passed to `backward` multiplies the losses: it must be as much each example's own as they are."""
    own = layout_of(recorder, root)
    if type(gradient) is Traced and not recorder.follows(gradient):
        recorder.problems.add(EARLIER)
        return
    if not recorder.follows(gradient):
        return
    tag = gradient._tag
    if isinstance(tag, Layout) and own is not None and tag.dim == own.dim and tag.same_order(own):
        return
    recorder.problems.add(
        tag.reason
        if isinstance(tag, Mixed)
        else "the gradient given to backward combines examples; compute it for each example from that example alone"
    )


_SECOND_ORDER = (
    "create_graph=True asks for gradients of gradients (a gradient penalty, say), which the engine's fast rules do not "
    "have; run the whole model one example at a time: isolate=True in make_private (or attach, or record)"
)


_INNER = (
    "a custom autograd function differentiates again in its backward, which the engine does not follow; use "
    "torch.utils.checkpoint, or run the module around it one example at a time: isolate=[its name] in make_private"
)


@operation("autograd.grad", ALWAYS)
def grad(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients with respect to the batch (adversarial examples, saliency): nothing is captured for the parameters.

    Every example's outputs depend on that example alone, so the gradient of their sum with respect to an input belongs
    to the same examples as the input. That of their mean does not: it has a factor of one over the number of examples.
    """
    body = opened(func)
    assert body is not None
    outputs = [args[0]] if isinstance(args[0], Tensor) else list(args[0])
    inputs = [args[1]] if isinstance(args[1], Tensor) else list(args[1])
    if recorder.in_backward:
        raise ValueError(_INNER)
    if kwargs.get("create_graph") and not recorder.is_isolated():
        raise ValueError(_SECOND_ORDER)
    for walk in walks(recorder) if kwargs.get("create_graph") else ():
        walk.keep()
    layouts = [_layout_of_input(recorder, t) for t in inputs]
    if any(layout is None for layout in layouts):
        raise ValueError(
            "torch.autograd.grad was asked for gradients of a loss of the batch with respect to something that is not "
            "part of the batch; the parameters' gradients come from loss.backward() and are clipped first"
        )
    kept = recorder.seeds, recorder.inner_seeds, recorder.output_seeds
    recorder.seeds, recorder.inner_seeds, recorder.output_seeds, recorder.capturing = [], [], [], False
    try:
        _look(recorder, outputs, args[2] if len(args) > 2 else kwargs.get("grad_outputs"))
        with without_subclasses():
            found = body(*args, **kwargs)
        if any(kind == "mean" for kind, _ in (*recorder.seeds, *recorder.inner_seeds)):
            raise ValueError(
                "torch.autograd.grad was asked for gradients of a mean over examples with respect to the batch: they "
                "are divided by the number of examples, which depends on all of them; use a sum (reduction='sum')"
            )
    finally:
        recorder.seeds, recorder.inner_seeds, recorder.output_seeds = kept
        recorder.capturing = True
    return tuple(
        g if g is None else mark(g.as_subclass(Tensor), recorder, tag)
        for g, tag in zip(found, layouts)
        if tag is not None
    )


def _layout_of_input(recorder: Recording, t: Any) -> Layout | None:
    """Return where the examples are in a tensor of the batch, or in a tensor that was given to the model as it is."""
    with without_subclasses():
        given = next((alias for alias in recorder.inputs if base_of(alias) is t), None)
    return layout_of(recorder, t if given is None else given)


def refuse_gradient(name: str) -> Any:
    """Return a hook that raises when a gradient reaches a parameter by itself."""

    def refuse(parameter: Tensor) -> None:
        parameter.grad = None
        raise RuntimeError(
            f"parameter {name!r} received a gradient outside the engine's sight, so its examples cannot be told apart: "
            "it was used by a custom autograd function or compiled code, or the loss has a term that depends on no "
            "example (use the optimizer's weight_decay for penalties, or add it to each example's loss before the "
            "mean), or backward ran on something not computed by calling the model, or the batch was given to it in an "
            "object that is no tuple, list or dict"
        )

    return refuse
