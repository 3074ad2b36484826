"""Copies from the CPU to another device that the host does not wait for, where the device has pinned memory."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache
def pins(kind: str) -> bool:
    """Return whether copies to devices of this kind run beside the host's work when they start from pinned memory.

    Memory of MPS is the host's own: nothing is gained there.
    """
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != kind or kind in ("cpu", "mps"):
        return False
    try:
        return torch.empty(1, device="cpu", pin_memory=True).is_pinned()
    except (RuntimeError, NotImplementedError):  # a device whose library has no allocator for it
        return False


def sent(host: Tensor, device: torch.device) -> Tensor:
    """Return ``host``, a tensor of the CPU, on ``device``: by way of pinned memory, so that the host does not wait.

    PyTorch keeps the pinned memory until the copy is done.
    """
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True) if pins(device.type) else host.to(device)
