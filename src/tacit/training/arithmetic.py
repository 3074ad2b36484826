"""The devices of a run, and whether they compute as docs/finite-precision.md assumes: found out before any charge."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tacit._compiled import kernels
from tacit.gradients.float32_settings import ieee_float32
from tacit.gradients.precision import check_precision

log = logging.getLogger("tacit")


def devices(model: nn.Module) -> list[torch.device]:
    """Return the devices that the model's parameters and buffers are on."""
    return list(dict.fromkeys(tensor.device for tensor in (*model.parameters(), *model.buffers())))


def missing_kernels(model: nn.Module) -> str | None:
    """Return a sentence if a model on the CPU has to do without compiled kernels or wide registers, else None.

    The premise that a record is rounded alike beside any others then holds for linear maps because the library was
    found to compute them so, and no longer by construction.
    """
    if all(device.type != "cpu" for device in devices(model)):
        return None
    if kernels is None:
        found = "the compiled kernels are missing: no C compiler was found when tacit was installed"
        remedy = "install a C compiler, and then tacit again"
    elif not kernels.wide:
        found = "the processor has no registers of 32 bytes for the compiled kernels"
        remedy = "train on a processor with AVX2"
    else:
        return None
    return (
        f"{found}. PyTorch's own kernels then compute the linear maps, and that they round a record alike beside any "
        f"others was tested and does not hold by construction (docs/finite-precision.md); {remedy}"
    )


@contextmanager
def exact_arithmetic(model: nn.Module) -> Iterator[None]:
    """Refuse devices for which nothing is proved, and make float32 products exact on the others within the block.

    All kinds of products are made exact, not only those of layers that the model has: a forward pass may call
    ``F.conv2d`` without a layer. Settings that cannot be changed (denormal numbers flushed to zero) are refused.
    """
    used = devices(model)
    for device in used:
        if device.type == "mps":
            raise ValueError(
                "the model is on 'mps', which has no float64, and sums over a lot are added in float64; train on the "
                "CPU: model.to('cpu'), before the optimizer is made."
            )
        if device.type == "meta":
            raise ValueError(
                "the model is on 'meta' and has no values; give it some first: model.to_empty(device='cpu') and its "
                "reset_parameters(), or load a state_dict with assign=True."
            )
    with ieee_float32(used) as needed:
        if needed:
            log.info("for the proof float32 products are exact until the run is closed: %s", "; ".join(needed))
        for device in used:
            check_precision(device)
        yield
