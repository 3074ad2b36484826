"""How much of the engine's own code one batch runs: calls, files, and changes of file.

    python benchmarks/engine_calls.py

Counts Python calls of functions of `tacit` in the fourth batch of a model (what is decided once is decided by then):
forward, backward, norms and clipped sum.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tacit
from tacit import gradients

OWN = str(Path(tacit.__file__).parent)


class Flat:
    """One clip norm for all parameters."""

    def partition(self, shapes: Any) -> list[tuple[str, ...]]:
        return [tuple(shapes)]

    def weights(self, norms: torch.Tensor) -> torch.Tensor:
        return (1 / norms).clamp(max=1.0)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5)]
    return nn.Sequential(*layers), torch.randn(16, 20)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(200, 5)), torch.randn(16, 1, 28, 28)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(8, 32), layer, nn.Flatten(), nn.Linear(320, 5)), torch.randn(16, 10, 8)


def counted(model: nn.Module, x: torch.Tensor) -> tuple[int, int, int]:
    """Return calls, files and changes of file in one batch."""
    y = torch.randint(0, 5, (len(x),))
    engine = gradients.attach(model)
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            files.append(frame.f_code.co_filename)

    def batch() -> None:
        F.cross_entropy(model(x), y).backward()
        engine.clipped_sum(Flat())

    for _ in range(3):
        batch()
    sys.setprofile(note)
    batch()
    sys.setprofile(None)
    engine.detach()
    return len(files), len(set(files)), sum(a != b for a, b in itertools.pairwise(files))


def main() -> None:
    print("| model | calls | files | changes of file |\n|---|---:|---:|---:|")
    for build in (mlp, cnn, transformer):
        torch.manual_seed(0)
        print(f"| {build.__name__} | " + " | ".join(map(str, counted(*build()))) + " |")


if __name__ == "__main__":
    main()
