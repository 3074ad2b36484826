"""Read and check the files of a checkpoint, which may come from anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

FORMAT = 1


def read_facts(path: Path) -> dict[str, Any]:
    """Return what ``run.json`` holds, checked."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        steps, length, others = facts["step"], facts["ledger"]["steps"], facts["others"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a checkpoint of a private run.") from error
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} has format {facts.get('format')!r}; this version of tacit reads format {FORMAT}.")
    if not isinstance(others, dict):
        raise ValueError(f"{path} has {others!r} where the states of schedulers and the like should be.")
    for name, value in (("step", steps), ("ledger steps", length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{path} has {name} {value!r}; it must be a whole number, at least 0.")
    if steps > length:
        raise ValueError(f"{path} has step {steps}, but the ledger had {length} steps when it was written.")
    return dict(facts)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that a checkpoint holds.")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged or missing: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return an error's text as one sentence."""
    text = f"{error.args[0]!r} is missing." if isinstance(error, KeyError) else " ".join(str(error).split())
    return text if text.endswith(".") else f"{text}."


def positive(value: Any) -> float:
    """Return a noise multiplier of a file, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"noise_multiplier is {value!r}; it must be a finite number above 0.")
    return float(value)
