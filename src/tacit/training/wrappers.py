"""Handle wrappers that all-reduce the gradients of several processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unwrapped(model: nn.Module) -> tuple[nn.Module, AbstractContextManager[None]]:
    """The model to train, and the state that its wrapper must be in meanwhile: with nothing to put together.

    `DistributedDataParallel` only passes batches on then. The engine keeps parameters out of the graph, so it would
    wait for gradients that never come; its own `no_sync` tells it that there are none.
    """
    inner: nn.Module = model
    quiet: AbstractContextManager[None] = nullcontext()
    if isinstance(model, DistributedDataParallel):
        if model.find_unused_parameters or model.static_graph:
            raise ValueError(
                "the model is a DistributedDataParallel with find_unused_parameters or static_graph, which has its own "
                "part in the backward pass; leave these out, or give make_private the inner model (model.module)."
            )
        inner, quiet = model.module, model.no_sync()
    kinds = (nn.DataParallel, DistributedDataParallel, nn.SyncBatchNorm)
    found = [
        type(each).__name__
        for each in inner.modules()
        if isinstance(each, kinds) or type(each).__name__ == "FullyShardedDataParallel"
    ]
    if found:
        raise ValueError(
            f"the model is or has a {found[0]}, which would combine raw values of all processes; give make_private the "
            "inner model (model.module) and parallel=tacit.Parallel(): it does that itself."
        )
    return inner, quiet
