"""Check before any charge that the devices of a run compute as docs/finite-precision.md assumes."""

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
    """Return a sentence if a model on the CPU lacks compiled kernels or wide registers, else None.

    Linear maps must round a record in the same way whatever the other records are. With the kernels this holds by
    construction; without them it was only observed of PyTorch's own products.
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
        f"{found}. PyTorch's own kernels then compute the linear maps. The proof needs kernels that round a record in "
        "the same way whatever the other records are; PyTorch's did so in tests but do not promise it "
        f"(docs/finite-precision.md); {remedy}"
    )


@contextmanager
def exact_arithmetic(model: nn.Module) -> Iterator[None]:
    """Refuse devices without a proof, and switch off reduced-precision products on the others within the block.

    This covers all kinds of products, because a forward pass may call ``F.conv2d`` without a layer. A setting that
    cannot be changed (denormal numbers flushed to zero) is an error.
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
                "the model is on 'meta' and has no values; give it values first: model.to_empty(device='cpu') and its "
                "reset_parameters(), or load a state_dict with assign=True."
            )
    with ieee_float32(used) as needed:
        if needed:
            log.info("float32 products are exact until the run is closed, as the proof requires: %s", "; ".join(needed))
        for device in used:
            check_precision(device)
        yield
