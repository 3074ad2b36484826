"""Scattering features of images, ready for a linear classifier: the front end that private training gains most from.

Hand-made features need no budget (Tramèr and Boneh 2021). Those here go further in the same spirit: digits are put
upright first; logarithms, whitening by the statistics of synthetic pictures, and rows of equal length bring the
directions that matter to a size at which noise does not drown them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.features.front import Shape, image_shape
from tacit.features.leaves import dead_leaves
from tacit.features.statistics import Statistics
from tacit.features.wavelets import Transform, mirrored, paths
from tacit.ledger import Ledger, Step
from tacit.randomness import Integers, Source

_ROWS = 32  # images transformed at once: what is in work stays in the processor's cache
_PICTURES = 1024  # dead leaves whose statistics are taken


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Channels in ``groups`` groups of neighbours, each with mean 0 and variance 1 within each record."""

    groups: int = 27


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """Logarithms of the coefficients, their correlations between channels taken back, rows of equal length.

    The covariance C of the channels is that of dead leaves, which are not data: with C = U diag(λ) Uᵀ after scaling
    every channel to variance 1, component i is divided by (λ_i + ``floor``)^(``exponent`` / 2). ``offset`` is added
    before the logarithm is taken, ``length`` is the norm of each row. ``statistics``: the mean of each component is
    released privately and taken out; None: no look at the records, and the means of dead leaves are taken out.
    """

    exponent: float = 0.75
    floor: float = 0.01
    offset: float = 1e-3
    length: float = 10.0
    statistics: Statistics | None = None


Normalisation: TypeAlias = Grouped | Whitened


@dataclass(frozen=True, kw_only=True)
class Scattering:
    """The scattering transform at ``scales`` scales and ``angles`` angles, orders 0 to 2, normalised.

    * ``upright``: bright figures on black are centred, and sheared so that their main axis is upright.
    * ``mirror``: the features are the mean over the image and its mirror image.
    * ``pooling``: so many positions are averaged in each direction.

    Formal guarantee: all of it is done record by record and learns nothing, but for ``normalisation.statistics``, which
    are charged to the ledger by `Statistics.release`.
    """

    scales: int = 2
    angles: int = 8
    upright: bool = False
    mirror: bool = False
    pooling: int = 1
    normalisation: Normalisation = Grouped()  # frozen

    def __post_init__(self) -> None:
        for name in ("scales", "angles", "pooling"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")

    def features(self, shape: Shape) -> Shape:
        channels, height, width = shape
        block = 2**self.scales * self.pooling
        if height % block or width % block:
            raise ValueError(f"images are {height}×{width}; sides must be multiples of {block}, or pad them.")
        wide = channels * len(paths(self.scales, self.angles))
        if isinstance(self.normalisation, Grouped) and wide % self.normalisation.groups:
            raise ValueError(f"groups is {self.normalisation.groups}; it must divide the {wide} channels.")
        return wide, height // block, width // block

    def charges(self, records: int) -> tuple[Step, ...]:
        statistics = self._statistics
        return () if statistics is None else statistics.charges(records)

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Scattered:
        shape = image_shape(images)
        fitted = Scattered(self, shape)
        if self._statistics is None:
            return fitted

        def rows(chosen: Integers) -> Tensor:
            return fitted.components(images[torch.from_numpy(chosen)])

        mean = self._statistics.release(
            rows, channels=fitted.shape[0], records=len(images), ledger=ledger, source=source
        )
        return Scattered(self, shape, mean=mean)

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Scattered:
        if self._statistics is None:
            return Scattered(self, shape)
        mean, wanted = state.get("mean"), self.features(shape)[:1]
        if mean is None or tuple(mean.shape) != wanted:
            found = None if mean is None else tuple(mean.shape)
            raise ValueError(f"the saved mean has shape {found}; this front needs {wanted}.")
        return Scattered(self, shape, mean=mean)

    @property
    def _statistics(self) -> Statistics | None:
        return self.normalisation.statistics if isinstance(self.normalisation, Whitened) else None


class Scattered:
    """The transform, with whatever was released to normalise it; made by `Scattering`."""

    def __init__(self, front: Scattering, shape: Shape, *, mean: Tensor | None = None) -> None:
        self._front, self._image, self._shape, self._mean = front, shape, front.features(shape), mean

    @property
    def shape(self) -> Shape:
        return self._shape

    def state(self) -> dict[str, Tensor]:
        return {} if self._mean is None else {"mean": self._mean}

    def transform(self, images: Tensor) -> Tensor:
        rows = torch.empty(len(images), *self.shape)
        for start in range(0, len(images), _ROWS):
            rows[start : start + _ROWS] = self._normalised(self.components(images[start : start + _ROWS]))
        return rows

    def components(self, images: Tensor) -> Tensor:
        """Features before anything that is learned from records: coefficients or, if whitened, their components."""
        if image_shape(images) != self._image:
            raise ValueError(f"images have shape {image_shape(images)}; this front was made for {self._image}.")
        found = self._coefficients(images.to(torch.float32).div_(255))
        if self._whitening is None:
            return found
        white = self._whitening
        return torch.einsum("ij,njhw->nihw", white.matrix, found - white.mean[:, None, None])

    def _normalised(self, components: Tensor) -> Tensor:
        kind = self._front.normalisation
        if isinstance(kind, Grouped):
            return F.group_norm(components, kind.groups)
        if self._mean is not None:
            components = components - self._mean[:, None, None]
        rows = components * self._scales[:, None, None]
        norms = torch.linalg.vector_norm(rows, dim=(1, 2, 3), keepdim=True).clamp(min=1e-6)
        return rows.mul_(kind.length).div_(norms)

    def _coefficients(self, pixels: Tensor) -> Tensor:
        front, kind = self._front, self._front.normalisation
        found = self._wavelets(upright(pixels) if front.upright else pixels).flatten(1, 2)
        if isinstance(kind, Whitened):
            found = (found.clamp(min=0) + kind.offset).log()
        if front.mirror:
            found = (found + found[:, self._mirrored].flip(-1)) / 2
        return F.avg_pool2d(found, front.pooling) if front.pooling > 1 else found

    @cached_property
    def _wavelets(self) -> Transform:
        return Transform((self._image[1], self._image[2]), scales=self._front.scales, angles=self._front.angles)

    @cached_property
    def _mirrored(self) -> Tensor:
        own = torch.tensor(mirrored(self._front.scales, self._front.angles))
        return torch.cat([own + image * len(own) for image in range(self._image[0])])

    @cached_property
    def _whitening(self) -> Whitening | None:
        kind = self._front.normalisation
        if not isinstance(kind, Whitened):
            return None
        return _whitening(replace(self._front, normalisation=replace(kind, statistics=None)), self._image)

    @cached_property
    def _scales(self) -> Tensor:
        """The factors of white components, so that they are whitened by the exponent only."""
        kind = self._front.normalisation
        assert isinstance(kind, Whitened) and self._whitening is not None
        return self._whitening.spread ** (1 - kind.exponent)


@dataclass(frozen=True)
class Whitening:
    """White components: ``matrix`` (coefficients - ``mean``); ``spread`` is what they were divided by."""

    mean: Tensor
    matrix: Tensor
    spread: Tensor


@lru_cache(maxsize=8)
def _whitening(front: Scattering, shape: Shape) -> Whitening:
    """The whitening of dead leaves: the same everywhere, and learned from no data."""
    channels, height, width = shape
    kind = front.normalisation
    assert isinstance(kind, Whitened)
    fitted = Scattered(front, shape)
    pictures = dead_leaves(_PICTURES, (channels, height, width))
    found = torch.cat([fitted._coefficients(piece) for piece in torch.split(pictures, _ROWS)])
    rows = found.movedim(1, -1).flatten(0, -2).to(torch.float64)
    mean, deviation = rows.mean(dim=0), rows.std(dim=0).clamp(min=1e-6)
    rows = (rows - mean) / deviation
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
    spread = (values + kind.floor).sqrt()
    return Whitening(mean.float(), (vectors / spread).T.div(deviation).float(), spread.float())


def upright(pixels: Tensor) -> Tensor:
    """Images with their mass in the middle and no slant: row y is moved by -(y - ȳ) c_xy / c_yy.

    The moments are those of each image by itself, with brightness as mass; an image without any stays as it is.
    """
    _, _, height, width = pixels.shape
    mass = pixels.sum(dim=1)
    total = mass.sum(dim=(1, 2)).clamp(min=1e-6)
    middle = (height - 1) / 2, (width - 1) / 2
    down, across = torch.arange(height).view(1, -1, 1) - middle[0], torch.arange(width).view(1, 1, -1) - middle[1]
    y, x = (mass * down).sum(dim=(1, 2)) / total, (mass * across).sum(dim=(1, 2)) / total
    dy, dx = down - y.view(-1, 1, 1), across - x.view(-1, 1, 1)
    slant = (mass * dx * dy).sum(dim=(1, 2)) / (mass * dy * dy).sum(dim=(1, 2)).clamp(min=1e-6)
    table = torch.zeros(len(pixels), 2, 3)  # from places in the result to places in the image, both in [-1, 1]
    table[:, 0, 0] = table[:, 1, 1] = 1
    table[:, 0, 1] = slant.clamp(-1, 1) * middle[0] / middle[1]
    table[:, 0, 2], table[:, 1, 2] = x / middle[1], y / middle[0]
    grid = F.affine_grid(table, list(pixels.shape), align_corners=True)
    return F.grid_sample(pixels, grid, align_corners=True)
