"""Features in a metric learned from procedural pictures: what changes between variants of a picture counts less.

Synthetic pictures are made in several variants each, as two writers draw the same letter. Of their features
(those of another front end), B are the principal components and W is the covariance within the variants of a picture.
A row x of k components becomes

    (W + floor · tr(W)/k · 1)^(-exponent/2) Bᵀ (x - mean),        scaled to a fixed length:

within-class covariance normalisation (Hatch, Kajarekar and Stolcke 2006) with pictures in place of classes. The noise
of private training is the same in every direction; so the directions that tell pictures apart are made the long ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tacit.features.front import Fitted, Shape, check_dimensions, image_shape
from tacit.features.leaves import varied_leaves
from tacit.features.scattering import Scattering
from tacit.features.statistics import Statistics
from tacit.features.strokes import strokes
from tacit.ledger import Ledger, Step
from tacit.randomness import Integers, Source

_VARIANTS = 5  # of a picture
_SURPLUS, _ROUNDS = 100, 2  # of the subspace iteration
_ROWS = 1024


def _strokes(count: int, shape: Shape) -> Tensor:
    return strokes(count, _VARIANTS, (shape[1], shape[2]))


def _leaves(count: int, shape: Shape) -> Tensor:
    return varied_leaves(count, _VARIANTS, shape)


_PICTURES: dict[str, Callable[[int, Shape], Tensor]] = {"strokes": _strokes, "leaves": _leaves}


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """The features of ``base`` in the metric of procedural pictures: ``"strokes"`` of a pen, or dead ``"leaves"``.

    * ``dimensions``: how many principal components are kept.
    * ``exponent``, ``floor``: how far variation within a picture is taken back (see the module); 0 is not at all.
    * ``figures``: how many pictures are made, in five variants each; ``length`` is the norm of each row.
    * ``statistics``: the mean of each component is released privately and taken out; None: that of the pictures.

    Formal guarantee: the metric is made without a look at the records, and each row from one record alone. Whatever
    ``base`` and ``statistics`` learn is charged to the ledger by them.

    >>> Invariant(base=Scattering(), dimensions=100).features((1, 28, 28))
    (100,)
    """

    base: Scattering
    pictures: str = "strokes"
    dimensions: int = 800
    exponent: float = 0.75
    floor: float = 0.5
    figures: int = 2400
    length: float = 10.0
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        check_dimensions(self.dimensions)
        if self.pictures not in _PICTURES:
            raise ValueError(f"pictures is {self.pictures!r}; choose {' or '.join(map(repr, _PICTURES))}.")
        if self.base.charges(1):
            raise ValueError("base learns statistics of records, which procedural pictures lack; leave them out.")

    def features(self, shape: Shape) -> Shape:
        if self.pictures == "strokes" and shape[0] != 1:
            raise ValueError(f"images have {shape[0]} channels; pen strokes are for images with one: choose 'leaves'.")
        check_dimensions(self.dimensions, math.prod(self.base.features(shape)))
        return (self.dimensions,)

    def charges(self, records: int) -> tuple[Step, ...]:
        return () if self.statistics is None else self.statistics.charges(records)

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Measured:
        shape = image_shape(images)
        self.features(shape)
        centre, directions = _metric(self, shape)
        fitted = Measured(self, self._base(shape), centre, directions)
        if self.statistics is None:
            return fitted
        width = math.sqrt(self.dimensions)

        def rows(chosen: Integers) -> Tensor:
            return fitted.unit(images[torch.from_numpy(chosen)])[:, :, None] * width

        mean = self.statistics.release(
            rows, channels=self.dimensions, records=len(images), ledger=ledger, source=source
        )
        return Measured(self, fitted.base, centre, directions, mean / width)

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Measured:
        wide = math.prod(self.base.features(shape))
        wanted = {"centre": (wide,), "directions": (wide, self.dimensions)}
        if self.statistics is not None:
            wanted["mean"] = (self.dimensions,)
        found = {name: tuple(state[name].shape) if name in state else None for name in wanted}
        if found != wanted:
            raise ValueError(f"the saved front end has tensors of shapes {found}; this one needs {wanted}.")
        return Measured(self, self._base(shape), state["centre"], state["directions"], state.get("mean"))

    def _base(self, shape: Shape) -> Fitted:
        return self.base.restore({}, shape)


class Measured:
    """Features in a metric; made by `Invariant`."""

    def __init__(
        self, front: Invariant, base: Fitted, centre: Tensor, directions: Tensor, mean: Tensor | None = None
    ) -> None:
        self.base, self._front, self._centre, self._directions, self._mean = base, front, centre, directions, mean

    @property
    def shape(self) -> Shape:
        return (self._front.dimensions,)

    def state(self) -> dict[str, Tensor]:
        found = {"centre": self._centre, "directions": self._directions}
        return found if self._mean is None else found | {"mean": self._mean}

    def transform(self, images: Tensor) -> Tensor:
        rows = torch.empty(len(images), *self.shape)
        for start in range(0, len(images), _ROWS):
            found = self.unit(images[start : start + _ROWS])
            if self._mean is not None:
                found = _unit(found - self._mean)
            rows[start : start + _ROWS] = found * self._front.length
        return rows

    def unit(self, images: Tensor) -> Tensor:
        """Rows of norm 1, before anything that is learned from records."""
        return _unit((self.base.transform(images).flatten(1) - self._centre) @ self._directions)


def _unit(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=1e-6)


@lru_cache(maxsize=2)
def _metric(front: Invariant, shape: Shape) -> tuple[Tensor, Tensor]:
    """The mean of the pictures' features, and the directions in which rows are read."""
    pictures = _PICTURES[front.pictures](front.figures, shape)
    base = front.base.restore({}, shape)
    return metric(
        base.transform(pictures).flatten(1),
        _VARIANTS,
        dimensions=front.dimensions,
        exponent=front.exponent,
        floor=front.floor,
    )


def metric(
    rows: Tensor, variants: int, *, dimensions: int, exponent: float, floor: float, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the mean of ``rows`` (n, d) and the d × k matrix of the module's formula; variants are neighbours.

    ``rows`` is overwritten. Principal components by subspace iteration (Halko, Martinsson and Tropp 2011).
    """
    mean = rows.mean(dim=0)
    rows = rows.sub_(mean)
    width = min(dimensions + _SURPLUS, *rows.shape)
    basis = torch.randn(rows.shape[1], width, generator=torch.Generator().manual_seed(seed))
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    part = rows @ basis
    _, vectors = torch.linalg.eigh(part.T @ part)  # in ascending order
    basis = basis @ vectors[:, -dimensions:]
    within = (rows @ basis).view(-1, variants, basis.shape[1])
    within = (within - within.mean(dim=1, keepdim=True)).flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(within.T @ within / (len(rows) * (1 - 1 / variants)))
    scales = (values.clamp(min=0) + floor * values.mean()) ** (-exponent / 2)
    return mean, basis @ (vectors * scales).float()
