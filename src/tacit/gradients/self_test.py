"""Prove once per process that PyTorch calls the engine's hooks: a model that mixes examples must be refused.

The engine depends on where PyTorch dispatches operations and backward passes. If a version (or a patch of PyTorch by
other code) no longer does so, models that mix examples would be accepted without an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

_LOCK = threading.RLock()
_STATE = {"proved": False, "running": False}

_DEAD = (
    f"PyTorch {torch.__version__} did not call the engine's hooks: {{}}. Models that mix examples would be trained "
    "without privacy; use a version of PyTorch that Tacit was tested with (see constraints.txt), and remove patches of "
    "torch.Tensor.backward and torch.autograd.backward."
)


class _Layer(nn.Module):
    """Two parameters, with gradients that are known: of the loss w·x + b of one example, (x, 1)."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes
        self.weight = nn.Parameter(torch.ones(1, 1, dtype=torch.float64, device="cpu"))
        self.bias = nn.Parameter(torch.ones(1, dtype=torch.float64, device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.weight, self.bias)
        return h - h.mean(0) if self.mixes else h


def prove_hooks(record: Callable[..., AbstractContextManager[Any]]) -> None:
    """Raise a RuntimeError unless ``record`` refuses a mixing model and measures an honest one; once per process."""
    if _STATE["proved"]:
        return
    with _LOCK:
        if _STATE["proved"] or _STATE["running"]:  # the engine of the proof itself asks too
            return
        _STATE["running"] = True
        try:
            _prove(record)
            _STATE["proved"] = True
        finally:
            _STATE["running"] = False


def _prove(record: Callable[..., AbstractContextManager[Any]]) -> None:
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        x = torch.tensor([[0.75], [-2.4]], dtype=torch.float64, device="cpu")  # of norm 1.25 and 2.6 with the ones
        honest, mixer = _Layer(mixes=False), _Layer(mixes=True)
        with record(honest, reduction="mean", isolate=False) as tape:
            honest(x).mean().backward()
        norms = tape.norms()
        if norms.shape != (2,) or not torch.allclose(norms, norms.new_tensor([1.25, 2.6]), rtol=1e-6):
            raise RuntimeError(_DEAD.format("gradient norms of two examples came out wrong"))
        try:
            with record(mixer, reduction="mean", isolate=False):
                mixer(x).square().mean().backward()
        except ValueError:
            return
        raise RuntimeError(_DEAD.format("a model that subtracts the mean of the batch was not refused"))
