"""The files of a finished run: the model, how it was made, and what it cost.

Files are written whole or not at all: beside their place, synced, and renamed.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tacit._files import write_whole
from tacit._version import __version__
from tacit.accounting import Guarantee
from tacit.features import Fitted

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run. ``test_accuracy`` is that of ``model`` on the test set, which is taken to be public."""

    out: Path
    model: nn.Module
    fitted: Fitted
    guarantee: Guarantee
    test_accuracy: float
    steps: int
    noise_multiplier: float
    seconds: float

    def result(self) -> dict[str, Any]:
        """The numbers of run.json."""
        return {
            "test_accuracy": self.test_accuracy,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "seconds": self.seconds,
        }


def versions() -> dict[str, str]:
    return {
        "tacit": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def described(value: Any) -> Any:
    """A configuration as plain JSON: a dataclass becomes its fields, with the name of its class as ``kind``.

    >>> from tacit.features import Pixels
    >>> described({"front": Pixels(), "sizes": (1, 2)})
    {'front': {'kind': 'Pixels', 'flat': True}, 'sizes': [1, 2]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {f.name: described(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): described(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [described(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"a {type(value).__name__} in a recipe cannot be written down; use numbers, text and dataclasses.")


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """One JSON object, whole or not at all."""
    write_whole(path, (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; anything else is refused."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"{path} is not a run of format {FORMAT}, which is what this version of tacit reads.")
    return facts


def write_tensors(path: Path, tensors: Mapping[str, Tensor], stamp: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, whole or not at all, with the ledger's ``stamp`` in the file's metadata."""
    content = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_whole(path, save(content, metadata=stamp))


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged or missing: {' '.join(str(error).split())}.") from error
