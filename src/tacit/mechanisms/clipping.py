"""Clipping strategies: frozen descriptions, applied to the parameters of a model by ``bind``.

Each says how the parameters are grouped and at what norm S_g each group of one record's gradient is clipped. The noise
decides what the clipped sums cost (`tacit.mechanisms.allocation`); the accountant reads it from the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Protocol

from tacit.mechanisms.groups import Clipping, Group, Shapes, Vector, positive

ROOT = "gradients"


class Strategy(Protocol):
    """A clipping strategy: the bound on each record's contribution."""

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        """Return this strategy bound to parameters of the given names and shapes.

        ``lot_size`` is the expected lot size, fixed and public; only `Adaptive` needs it.
        """
        ...


@dataclass(frozen=True)
class Flat:
    """The whole gradient of a record is clipped to L2 norm ``clip_norm`` (Abadi et al. 2016, Algorithm 1)."""

    clip_norm: float

    def __post_init__(self) -> None:
        positive("clip norm", self.clip_norm)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        return Clipping([Group(name=ROOT, vectors=(_vector(shapes, tuple(shapes)),), clip_norm=self.clip_norm)])


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """Each layer (the parameters of one module) is clipped on its own.

    ``each`` is the clip norm of every layer, as Abadi et al. 2016 section 3.1 has it: with m layers a record can
    contribute each * sqrt(m) in all. ``total`` bounds the whole: every layer is clipped to total / sqrt(m), the
    per-layer clipping of McMahan, Andrew et al. 2019.
    """

    each: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        if (self.each is None) == (self.total is None):
            raise ValueError(f"each is {self.each!r} and total is {self.total!r}; give one of the two.")
        positive("clip norm", self.each if self.each is not None else self.total or 0.0)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        layers = _layers(shapes)
        norm = self.each if self.each is not None else (self.total or 0.0) / math.sqrt(len(layers))
        return Clipping([Group(name=name, vectors=(vector,), clip_norm=norm) for name, vector in layers.items()])


@dataclass(frozen=True)
class DimensionWeighted:
    """Each layer is clipped on its own, to total * sqrt(d_g / D): the same bound per coordinate everywhere.

    McMahan, Andrew et al. 2019 print S* / sqrt(d_g / D), with which the squares of the S_g would add up to
    S*^2 * sum_g D / d_g, at least G^2 times what S* allows. Multiplying instead makes them add up to S*^2.
    """

    total: float

    def __post_init__(self) -> None:
        positive("total clip norm", self.total)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        layers = _layers(shapes)
        whole = sum(vector.dimension for vector in layers.values())
        norms = {name: self.total * math.sqrt(vector.dimension / whole) for name, vector in layers.items()}
        return Clipping([Group(name=name, vectors=(vector,), clip_norm=norms[name]) for name, vector in layers.items()])


@dataclass(frozen=True)
class Joint:
    """All vectors clipped together after each is divided by its scale, and multiplied by it again afterwards.

    ``scales`` gives the alpha_j of each vector by parameter name or pattern (``"conv1.*"``); parameters that match
    the same pattern form one vector. The ledger gets (S_g, sigma_g) and vector j gets noise alpha_j sigma_g: a
    post-processing of one Gaussian sum query (McMahan, Andrew et al. 2019, section 2).
    """

    scales: Mapping[str, float]
    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", MappingProxyType(dict(self.scales)))
        positive("clip norm", self.clip_norm)
        for pattern, scale in self.scales.items():
            positive(f"scale of {pattern!r}", scale)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        parts = _match(shapes, tuple(self.scales))
        vectors = tuple(replace(_vector(shapes, names), scale=self.scales[key]) for key, names in parts.items())
        return Clipping([Group(name=ROOT, vectors=vectors, clip_norm=self.clip_norm)])


@dataclass(frozen=True)
class Automatic:
    """The gradient v of a record is normalised, v / (|v| + stability), so that there is no clip norm to choose.

    The result is shorter than 1, which is the sensitivity (Bu et al. 2023, with R = 1: R only rescales the learning
    rate).
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        positive("stability", self.stability)

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        vector = _vector(shapes, tuple(shapes))
        return Clipping([Group(name=ROOT, vectors=(vector,), clip_norm=1.0, stability=self.stability)])


@dataclass(frozen=True)
class Groups:
    """A strategy for each group of parameters, by name or pattern; a number is the clip norm of the group.

    ``Groups({"conv*": 1.0, "fc*": Joint({"fc1.*": 1.0, "fc2.*": 100.0}, 1.0)})``. Every parameter must match exactly
    one pattern.
    """

    groups: Mapping[str, float | Strategy]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", MappingProxyType(dict(self.groups)))
        for pattern, strategy in self.groups.items():
            if not callable(getattr(strategy, "bind", None)):
                positive(f"clip norm of {pattern!r}", strategy)  # type: ignore[arg-type]

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        groups = []
        for pattern, names in _match(shapes, tuple(self.groups)).items():
            chosen = self.groups[pattern]
            strategy = Flat(chosen) if isinstance(chosen, int | float) else chosen
            inner = strategy.bind({name: shapes[name] for name in names}, lot_size=lot_size)
            if type(inner) is not Clipping:
                raise ValueError(f"{pattern!r} has {strategy}; inside Groups the clip norms must be fixed.")
            for group in inner.groups:
                groups.append(replace(group, name=f"{ROOT}/{pattern}{group.name.removeprefix(ROOT)}"))
        return Clipping(groups)


def _vector(shapes: Shapes, names: tuple[str, ...]) -> Vector:
    if not names:
        raise ValueError("there are no parameters to clip; give at least one that requires a gradient.")
    return Vector(names=names, dimension=max(sum(shapes[name].numel() for name in names), 1))


def _layers(shapes: Shapes) -> dict[str, Vector]:
    """Return group names and vectors of the layers; a parameter's name up to its last dot is its layer."""
    layers: dict[str, list[str]] = {}
    for name in shapes:
        layers.setdefault(name.rpartition(".")[0] or "(root)", []).append(name)
    if not layers:
        _vector(shapes, ())
    return {f"{ROOT}/{layer}": _vector(shapes, tuple(names)) for layer, names in layers.items()}


def _match(shapes: Shapes, patterns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the parameters of each pattern; a parameter must match exactly one pattern, a pattern at least one."""
    matches = {name: [p for p in patterns if p == name or fnmatchcase(name, p)] for name in shapes}
    problems = [f"{name} matches {found or 'nothing'}" for name, found in matches.items() if len(found) != 1]
    problems += [f"{p!r} matches no parameter" for p in patterns if not any(p in found for found in matches.values())]
    if problems:
        raise ValueError(f"every parameter must match exactly one of {list(patterns)}: {'; '.join(problems)}.")
    return {p: tuple(name for name, found in matches.items() if found == [p]) for p in patterns}
