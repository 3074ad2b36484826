"""Refuse versions of PyTorch in which the engine cannot see the loss. Imported before everything else of the engine."""

from __future__ import annotations

import torch

OLDEST = (2, 11)
"""From here on `torch.autograd.backward` goes through `__torch_function__`, where the engine looks at the loss."""


def check_version(version: str) -> None:
    """Raise an ImportError if ``version`` of PyTorch is older than `OLDEST`."""
    major, minor = (int(number) for number in version.split(".")[:2])
    if (major, minor) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"PyTorch {version} does not show the engine the loss, so that models which mix examples would be trained "
            f"without privacy; install PyTorch {oldest} or newer: pip install 'torch>={oldest}'."
        )


check_version(str(torch.__version__))
