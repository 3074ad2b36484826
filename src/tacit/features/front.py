"""Front ends: transforms of the images before the privately trained model.

A front is a frozen configuration. ``fit`` may look at the records, but only through steps that it records in the ledger
first; ``transform`` then works record by record, so that one row of features is made from one record alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.ledger import Ledger, Step
from tacit.randomness import Source

Shape = tuple[int, ...]
"""The shape of one image (channels, height, width), or of one row of features (any)."""

ROWS = 4096
"""How many images are transformed at once."""


class Fitted(Protocol):
    """A front end that is ready to be used."""

    @property
    def shape(self) -> Shape:
        """The shape of one transformed row."""
        ...

    def transform(self, images: Tensor) -> Tensor:
        """Features in float32, one row for each image, made from that image alone; images are bytes (n, c, h, w)."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return everything that was learned or drawn; it is released, and saved with the model."""
        ...


class Front(Protocol):
    """The configuration of a front end: a frozen dataclass."""

    def features(self, shape: Shape) -> Shape:
        """The shape of one row of features, for images of this shape; images it cannot work with are refused."""
        ...

    def charges(self, records: int) -> tuple[Step, ...]:
        """The steps that `fit` will record for this many records: nothing for a front that learns nothing."""
        ...

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Fitted:
        """Learn from the images; the ledger records each release before it is made."""
        ...

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Fitted:
        """Return the result of `fit` for images of this shape from its saved state; no record is read again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The pixels, scaled to [0, 1], as vectors or (``flat=False``) as images."""

    flat: bool = True

    def features(self, shape: Shape) -> Shape:
        return (math.prod(shape),) if self.flat else shape

    def charges(self, records: int) -> tuple[Step, ...]:
        return ()

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Scaled:
        return Scaled(self.features(image_shape(images)))

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Scaled:
        return Scaled(self.features(shape))


class Scaled:
    """Pixels in [0, 1], each image in the given shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    @property
    def shape(self) -> Shape:
        return self._shape

    def transform(self, images: Tensor) -> Tensor:
        image_shape(images)
        return images.to(torch.float32).div_(255).reshape(len(images), *self._shape)

    def state(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, kw_only=True)
class RandomProjection:
    """Pixels projected to random directions: the baseline of `Pca` that costs nothing.

    Formal guarantee: the directions are drawn without a look at the records.
    """

    dimensions: int = 60

    def __post_init__(self) -> None:
        check_dimensions(self.dimensions)

    def features(self, shape: Shape) -> Shape:
        check_dimensions(self.dimensions, math.prod(shape))
        return (self.dimensions,)

    def charges(self, records: int) -> tuple[Step, ...]:
        return ()

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Projection:
        """Orthonormal directions, uniformly drawn: the Q of a Gaussian matrix."""
        shape = image_shape(images)
        self.features(shape)
        pixels = math.prod(shape)
        gaussian = source.normal_(torch.empty(pixels, self.dimensions, dtype=torch.float64))
        return Projection(torch.linalg.qr(gaussian).Q.T)

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Projection:
        return Projection.restored(state, self.dimensions, shape)


class Projection:
    """Raw pixels in [0, 1], projected to ``directions``, one a row."""

    def __init__(self, directions: Tensor) -> None:
        self._directions = directions.detach().to("cpu", torch.float32).contiguous()

    @classmethod
    def restored(cls, state: Mapping[str, Tensor], dimensions: int, shape: Shape) -> Projection:
        directions, wanted = state.get("directions"), (dimensions, math.prod(shape))
        if directions is None or tuple(directions.shape) != wanted:
            found = None if directions is None else tuple(directions.shape)
            raise ValueError(f"the saved directions have shape {found}; this front needs {wanted}.")
        return cls(directions)

    @property
    def shape(self) -> Shape:
        return (len(self._directions),)

    def transform(self, images: Tensor) -> Tensor:
        pixels = math.prod(image_shape(images))
        if pixels != self._directions.shape[1]:
            raise ValueError(f"images have {pixels} values; the directions were made for {self._directions.shape[1]}.")
        rows = [piece.flatten(1).to(torch.float32).div_(255) @ self._directions.T for piece in pieces(images)]
        return torch.cat(rows) if rows else torch.empty(0, *self.shape)

    def state(self) -> dict[str, Tensor]:
        return {"directions": self._directions}


def pieces(images: Tensor, rows: int = ROWS) -> Iterator[Tensor]:
    """The images in pieces that fit in memory as floats."""
    for start in range(0, len(images), rows):
        yield images[start : start + rows]


def image_shape(images: Tensor) -> Shape:
    """The shape of one image; anything but bytes in four dimensions is refused."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; they must be bytes (torch.uint8) of shape "
            "(images, channels, height, width)."
        )
    return tuple(images.shape[1:])


def check_dimensions(dimensions: int, most: int | None = None) -> None:
    """Refuse a number of dimensions that makes no sense."""
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1:
        raise ValueError(f"dimensions is {dimensions!r}; it must be a whole number, at least 1.")
    if most is not None and dimensions > most:
        raise ValueError(f"dimensions is {dimensions}; the images have only {most} values each.")
