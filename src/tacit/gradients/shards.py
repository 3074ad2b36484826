"""Models cut into shards among several processes (`fully_shard`, FSDP2).

Such a model has whole parameters only while a module of it runs: before, they are gathered from all processes and put
in the place of the shards, always the same tensor for the same parameter; afterwards their memory is given back. The
engine knows a parameter by both tensors. It keeps the whole ones out of the graph as it does any parameter, so FSDP
finds no gradient to put together, and nothing raw leaves a process.

FSDP leads the inputs of a module through an autograd function of its own, which hands gradients on unchanged and tells
FSDP when the module's backward pass is over. What comes out is a new tensor: it gets the tag of what went in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.nested import tensors
from tacit.gradients.recording import Recording
from tacit.gradients.traced import mark


def made_by_fsdp(node: Any) -> bool:
    """Return whether a node of the graph is the one at which FSDP learns that a backward pass is over."""
    return node is not None and node.name() == "RegisterPostBackwardFunctionBackward"


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules whose parameters are gathered and cut up together."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nothing is sharded without it
    return [] if fsdp is None else [each for each in model.modules() if isinstance(each, fsdp.FSDPModule)]


def cut_up(modules: Sequence[Any]) -> None:
    """See that these sharded modules hold shards: after a forward pass alone some parameters may still be whole."""
    for module in modules:
        module.reshard()


def gather_again(model: nn.Module, modules: Sequence[Any]) -> None:
    """Gather anew, from the shards of its sharded ``modules``, what is whole now; all processes must do so together.

    The shards are watched; a write to a whole parameter would be used and then be lost with its memory.
    """
    for module in modules:
        before = list(model.parameters())
        module.reshard()
        if any(old is not new for old, new in zip(before, model.parameters(), strict=True)):
            module.unshard()


def whole_parameters(model: nn.Module, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that take the place of ``shards`` while a module runs; all processes must ask together."""
    found: dict[str, Tensor] = {}
    for module in sharded_modules(model):
        module.unshard()
        now = {name: each for name, each in model.named_parameters() if name in shards}
        found |= {name: each for name, each in now.items() if each is not shards[name]}
        module.reshard()
    return found


def keep_tags(model: nn.Module, recorder: Recording) -> Iterator[Any]:
    """Hooks on every sharded module, around those of FSDP, that give its inputs their tags back."""
    for module in sharded_modules(model):
        entered: list[Tensor] = []

        def before(module: nn.Module, args: Any, kwargs: Any, entered: list[Tensor] = entered) -> None:
            entered[:] = tensors((args, kwargs))

        def after(module: nn.Module, args: Any, kwargs: Any, entered: list[Tensor] = entered) -> None:
            came = tensors((args, kwargs))
            for old, new in zip(entered, came, strict=True):
                if type(new) is torch.Tensor and recorder.follows(old) and made_by_fsdp(new.grad_fn):
                    assert new.shape == old.shape
                    mark(new, recorder, old._tag)  # type: ignore[attr-defined]
            entered.clear()

        yield module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        yield module.register_forward_pre_hook(after, with_kwargs=True)


class Withheld:
    """Tells FSDP not to put gradients together. There are none; should there be one after all, it stays where it is."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = sharded_modules(model)
        self._set(False)

    def remove(self) -> None:
        self._set(True)  # FSDP's default, which it does not show

    def _set(self, together: bool) -> None:
        for module in self._modules:
            module.set_requires_gradient_sync(together, recurse=False)
