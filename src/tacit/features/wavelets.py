"""The scattering transform of small images: averages of moduli of wavelet coefficients (Mallat 2012), by FFT.

With x a channel padded by reflection, ψ_{j,θ} Morlet wavelets at scale 2^j and angle θ, and φ a Gaussian window at
scale 2^J, the transform holds, at every 2^J-th position,

    order 0: x ⋆ φ        order 1: |x ⋆ ψ_{j,θ}| ⋆ φ        order 2: ||x ⋆ ψ_{j,θ}| ⋆ ψ_{k,η}| ⋆ φ   with j < k.

The filters have the parameters of Bruna and Mallat 2013. A map at scale 2^j is kept at every 2^j-th position only. The
window is sampled in the middle of each 2^J × 2^J block, so that the transform of a mirror image is (up to the sampling
of the moduli) the mirror image of the transform, with the angles mirrored too. Each image is transformed by itself:
nothing is learned from any record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]

_WIDTH, _CENTRE = 0.8, 0.75 * math.pi  # of the Gaussian envelope and the centre frequency, at the finest scale


@dataclass(frozen=True, kw_only=True)
class Path:
    """One scattering coefficient: the scales and angles of the wavelets, from first to last; none for order 0."""

    scales: tuple[int, ...] = ()
    angles: tuple[int, ...] = ()


def paths(scales: int, angles: int) -> list[Path]:
    """The coefficients of orders 0, 1 and 2, in the order of the transform's channels."""
    first = [Path(scales=(j,), angles=(a,)) for j in range(scales) for a in range(angles)]
    second = [
        Path(scales=(j, k), angles=(a, b))
        for j in range(scales)
        for a in range(angles)
        for k in range(j + 1, scales)
        for b in range(angles)
    ]
    return [Path(), *first, *second]


def mirrored(scales: int, angles: int) -> list[int]:
    """For each channel, the channel that has its part in the transform of the mirror image: angle θ becomes -θ."""
    table = paths(scales, angles)
    places = {path: place for place, path in enumerate(table)}
    return [places[Path(scales=p.scales, angles=tuple(-a % angles for a in p.angles))] for p in table]


def morlet(size: tuple[int, int], scale: int, angle: float, slant: float) -> Floats:
    """The Fourier transform, which is real, of the Morlet wavelet at scale 2^``scale``, on the frequencies of the grid.

    In space: exp(-r²/2σ²) (exp(i ξ·u) - κ), with r the radius of an ellipse whose axis across the wave is 1/``slant``
    times as long, σ = 0.8·2^scale, |ξ| = (3π/4) 2^-scale, and κ such that the mean is zero. A sampled wavelet has a
    periodic spectrum: the sum of the continuous one over its periods.
    """
    width, centre = _WIDTH * 2.0**scale, _CENTRE * 2.0**-scale
    cos, sin = math.cos(angle), math.sin(angle)
    vertical, horizontal = (2 * math.pi * np.fft.fftfreq(n) for n in size)

    def bump(shift: float) -> Floats:
        total = np.zeros(size)
        for up in range(-3, 4):
            for right in range(-3, 4):
                v, h = vertical[:, None] + 2 * math.pi * up, horizontal[None, :] + 2 * math.pi * right
                along, across = cos * v + sin * h - shift, (cos * h - sin * v) / slant
                total += np.exp(-0.5 * width**2 * (along**2 + across**2))
        return total

    wave, envelope = bump(centre), bump(0.0)
    result: Floats = wave - wave[0, 0] / envelope[0, 0] * envelope
    return result


def window(length: int, padding: int, scale: int, scales: int) -> Floats:
    """The Gaussian window in one dimension as a matrix: from a padded map kept at every 2^scale-th position to the
    middles of the blocks. Its rows add up to 1."""
    block = 2**scales
    centres = padding + block * np.arange(length // block) + (block - 1) / 2
    places = 2**scale * np.arange((length + 2 * padding) // 2**scale)
    width = _WIDTH * 2.0 ** (scales - 1)
    weights = np.exp(-0.5 * ((centres[:, None] - places[None, :]) / width) ** 2)
    result: Floats = weights / weights.sum(axis=1, keepdims=True)
    return result


class Transform:
    """The transform for images of one size: (n, c, h, w) float32 to (n, c, channels, h / 2^scales, w / 2^scales)."""

    def __init__(self, size: tuple[int, int], *, scales: int, angles: int) -> None:
        block = 2**scales
        if any(length % block or length < 2 * block for length in size):
            raise ValueError(
                f"images are {size[0]}×{size[1]}; sides must be multiples of {block}, at least {2 * block}."
            )
        self.size, self.scales, self.angles = size, scales, angles
        self.channels = len(paths(scales, angles))
        self.shape = (self.channels, size[0] // block, size[1] // block)
        self._padding = block
        padded = (size[0] + 2 * block, size[1] + 2 * block)
        self._filters: dict[tuple[int, int], list[Tensor]] = {}  # by the scales of the map and of the wavelet
        for start in range(scales):
            grid = (padded[0] >> start, padded[1] >> start)
            for scale in range(start, scales) if start == 0 else range(start + 1, scales):
                spectra = [morlet(grid, scale - start, math.pi * a / angles, 4 / angles) for a in range(angles)]
                bank = torch.from_numpy(np.stack(spectra) / 4 ** (scale - start)).float()
                pairs = bank[..., None].expand(*bank.shape, 2)  # for the real and for the imaginary part
                self._filters[start, scale] = _blocks(pairs, 2 ** (scale - start))
        self._windows = [
            tuple(torch.from_numpy(window(length, block, scale, scales)).float() for length in size)
            for scale in range(scales)
        ]

    def __call__(self, images: Tensor) -> Tensor:
        block = self._padding
        maps = torch.nn.functional.pad(images, (block, block, block, block), mode="reflect")
        found = [self._average(maps, 0)[:, :, None]]
        spectrum = torch.fft.fft2(maps)
        second = []
        first: list[Tensor] = []
        for scale in range(self.scales):
            moduli = self._moduli(spectrum, 0, scale)
            first.append(self._average(moduli, scale))
            if scale + 1 < self.scales:
                spectra = torch.fft.fft2(moduli)
                finer = [self._average(self._moduli(spectra, scale, k), k) for k in range(scale + 1, self.scales)]
                second.append(torch.stack(finer, dim=3).flatten(2, 4))
        return torch.cat([*found, *first, *second], dim=2)

    def _moduli(self, spectrum: Tensor, start: int, scale: int) -> Tensor:
        """|map ⋆ ψ| for all angles in a new dimension, at every 2^scale-th position of the image."""
        blocks = _blocks(torch.view_as_real(spectrum), 2 ** (scale - start))
        total: Tensor | None = None
        for block, weights in zip(blocks, self._filters[start, scale]):
            part = block.unsqueeze(-4)
            total = part * weights if total is None else total.addcmul_(part, weights)
        assert total is not None
        parts = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(total))).square_()
        return (parts[..., 0] + parts[..., 1]).sqrt_()  # four times as fast as abs() of complex numbers

    def _average(self, maps: Tensor, scale: int) -> Tensor:
        down, across = self._windows[scale]
        return down @ (maps @ across.T)


def _blocks(spectrum: Tensor, step: int) -> list[Tensor]:
    """The step² blocks of a spectrum (…, h, w, 2): to keep every step-th position of a map is to add them up."""
    high, wide = spectrum.shape[-3] // step, spectrum.shape[-2] // step
    return [
        spectrum[..., i * high : (i + 1) * high, k * wide : (k + 1) * wide, :].contiguous()
        for i in range(step)
        for k in range(step)
    ]
