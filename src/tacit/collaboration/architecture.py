"""The architecture of a network in words that two organisations can compare, line by line.

Parameters that are trained are shared and so start equal. Frozen parameters and buffers are not: if two participants
build them differently (another pretrained file, random features), they train different networks without noticing.
Their values are compared by one projection each, which differs by about their size if they are different and by
rounding alone if they are not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_CLOSE = 1e-3  # of the root mean square: far above rounding, far below the difference of two random tensors
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Constant:
    """A tensor that is not shared: its name, its root mean square and its projection on a fixed vector."""

    name: str
    size: float
    projection: float


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The modules and tensors of a network, and what its constants look like."""

    lines: tuple[str, ...] = ()
    constants: tuple[Constant, ...] = ()

    @classmethod
    def of(cls, model: nn.Module) -> Architecture:
        """Describe ``model``: one line for each module without children, parameter and buffer."""
        lines = [
            f"module {name or '(the network)'} is {type(module).__name__}({module.extra_repr()})"
            for name, module in model.named_modules()
            if not any(True for _ in module.children())
        ]
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        constants = []
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            kind = "parameter" if name in trained else "constant"
            lines.append(f"{kind} {name} is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}")
            if name not in trained:
                constants.append(_constant(name, tensor))
        plain = (" ".join(line.split()) for line in lines)  # extra_repr may have several lines
        return cls(lines=tuple(plain), constants=tuple(constants))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def difference(self, other: Architecture) -> str | None:
        """Return the first difference as half a sentence, or None: "here …, there …"."""
        for mine, theirs in zip(self.lines, other.lines, strict=False):
            if mine != theirs:
                return f"here {mine}, there {theirs}"
        longer, where = (self, "here") if len(self.lines) > len(other.lines) else (other, "there")
        if len(self.lines) != len(other.lines):
            return f"only {where}: {longer.lines[min(len(self.lines), len(other.lines))]}"
        for own, its in zip(self.constants, other.constants, strict=False):
            if not _is_close(own, its):
                return (
                    f"{own.name}, which is not trained, has other values there (root mean square {own.size:.4g} here, "
                    f"{its.size:.4g} there)"
                )
        return None


NONE = Architecture()
"""The architecture of a network that its name describes."""


def _is_close(one: Constant, other: Constant) -> bool:
    tolerance = _CLOSE * max(one.size, other.size)
    return abs(one.size - other.size) <= tolerance and abs(one.projection - other.projection) <= tolerance


def _constant(name: str, tensor: Tensor) -> Constant:
    values = tensor.detach().reshape(-1).to("cpu")
    square = projection = 0.0
    for start in range(0, values.numel(), _CHUNK):
        part = values[start : start + _CHUNK].to(torch.float64)
        square += float(part.square().sum())
        projection += float(part @ torch.cos(torch.arange(start, start + part.numel(), dtype=torch.float64)))
    count = max(values.numel(), 1)
    size, found = math.sqrt(square / count), projection / math.sqrt(count)
    return Constant(name, size if math.isfinite(size) else 0.0, found if math.isfinite(found) else 0.0)


def from_json(lines: Sequence[object], constants: Sequence[Sequence[object]]) -> Architecture:
    """Return the architecture that another side sent; refuses text that a terminal would act on."""
    texts = tuple(str(line) for line in lines)
    parsed = tuple(Constant(str(name), float(size), float(found)) for name, size, found in constants)  # type: ignore[arg-type]
    if not all(text.isprintable() for text in (*texts, *(constant.name for constant in parsed))):
        raise ValueError("an architecture must be printable text.")
    if not all(math.isfinite(constant.size) and math.isfinite(constant.projection) for constant in parsed):
        raise ValueError("the constants of an architecture must be finite numbers.")
    return Architecture(lines=texts, constants=parsed)
