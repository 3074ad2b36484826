"""Scattering and patches side by side, under a Gaussian kernel: a linear classifier that sees more than linearly.

Rows x of unit length become random Fourier features (Rahimi and Recht 2007)

    √2 sin(√γ ω·x + π/4) - exp(-γ/2) for many directions ω, scaled to a fixed length,

whose inner products are close to exp(-γ |x - x'|²/2) - exp(-γ). The directions are rows of a random rotation, made of
signs and of phases of the spectrum, so that all of them together cost two pairs of Fourier transforms (Yu et al. 2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.features.front import Fitted, Shape, check_dimensions, image_shape, pieces
from tacit.features.patches import Patches
from tacit.features.scattering import Scattering
from tacit.ledger import Ledger, Step
from tacit.randomness import Source

_ROUNDS = 2  # of the rotation
_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class GaussianKernel:
    """Features of ``scattering`` and of ``patches``, each row of unit length, under a Gaussian kernel.

    * ``directions``: how many features there are, or fewer: no more than make up one rotation.
    * ``sharpness`` is γ of the module: near 0 the kernel is linear.
    * ``length`` is the norm of each row of features.

    Formal guarantee: nothing is learned from the records, and each row is made from one record alone.

    >>> GaussianKernel(scattering=Scattering(), patches=Patches(), directions=3000).features((3, 32, 32))
    (3000,)
    """

    scattering: Scattering
    patches: Patches
    directions: int = 16384
    sharpness: float = 1.0
    length: float = 10.0

    def __post_init__(self) -> None:
        check_dimensions(self.directions)
        if not 0 < self.sharpness < math.inf:
            raise ValueError(f"sharpness is {self.sharpness!r}; it must be a finite number above 0.")
        if self.scattering.charges(1):
            raise ValueError("scattering learns statistics of records; leave them out: the kernel needs none.")

    def features(self, shape: Shape) -> Shape:
        return (min(self.directions, _power(self.wide(shape))),)

    def wide(self, shape: Shape) -> int:
        """The dimensions of scattering and patches together."""
        return math.prod(self.scattering.features(shape)) + math.prod(self.patches.features(shape))

    def charges(self, records: int) -> tuple[Step, ...]:
        return ()

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Lifted:
        shape = image_shape(images)
        self.features(shape)
        return Lifted(self, shape, self.patches.fit(images, ledger=ledger, source=source))

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Lifted:
        return Lifted(self, shape, self.patches.restore(state, shape))


class Lifted:
    """Two fronts under a kernel; made by `GaussianKernel`."""

    def __init__(self, front: GaussianKernel, shape: Shape, patches: Fitted) -> None:
        self._front, self._patches, self._scattering = front, patches, front.scattering.restore({}, shape)
        self._rotation, self._shape = Rotation(front.wide(shape)), front.features(shape)

    @property
    def shape(self) -> Shape:
        return self._shape

    def state(self) -> dict[str, Tensor]:
        return self._patches.state()

    def transform(self, images: Tensor) -> Tensor:
        rows = torch.empty(len(images), *self.shape)
        for start, piece in zip(range(0, len(images), _ROWS), pieces(images, _ROWS)):
            rows[start : start + _ROWS] = self.lifted(self.unit(piece))
        return rows

    def unit(self, images: Tensor) -> Tensor:
        """Both parts side by side, as rows of norm 1."""
        found = [F.normalize(part.transform(images).flatten(1)) for part in (self._scattering, self._patches)]
        return torch.cat(found, dim=1) / math.sqrt(len(found))

    def lifted(self, rows: Tensor) -> Tensor:
        """Random Fourier features of rows of norm 1."""
        gamma = self._front.sharpness
        # A rotated unit row of d entries has entries of mean square 1/d.
        angles = self._rotation(rows)[:, : self._shape[0]] * math.sqrt(gamma * self._rotation.wide)
        waves = (angles + math.pi / 4).sin_().mul_(math.sqrt(2)).sub_(math.exp(-gamma / 2))
        return F.normalize(waves).mul_(self._front.length)


class Rotation:
    """A random rotation of rows of ``values`` entries, filled up with zeros to a power of two: ``wide``.

    Drawn with a fixed seed: it is the same everywhere, and no record has a part in it.
    """

    def __init__(self, values: int) -> None:
        self.wide = _power(values)
        random = np.random.Generator(np.random.PCG64(0))
        signs = random.integers(0, 2, (_ROUNDS, self.wide)) * 2.0 - 1
        phases = np.exp(2j * np.pi * random.random((_ROUNDS, self.wide // 2 + 1)))
        phases[:, [0, -1]] = 1  # of the frequencies that have no imaginary part
        self._signs = torch.from_numpy(signs).float()
        self._phases = torch.from_numpy(phases).to(torch.complex64)

    def __call__(self, rows: Tensor) -> Tensor:
        found = F.pad(rows, (0, self.wide - rows.shape[1]))
        for signs, phases in zip(self._signs, self._phases):
            found = torch.fft.irfft(torch.fft.rfft(found * signs) * phases, n=self.wide)
        return found


def _power(values: int) -> int:
    return 1 << max(values - 1, 1).bit_length()
