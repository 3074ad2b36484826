"""Dead leaves: random pictures of discs that hide one another, which have the statistics of natural images.

Occlusion and sizes without a preferred scale (radii with density r^-3) give edges and a power spectrum near 1/f²
(Lee, Mumford and Huang 2001). No record and no photograph is looked at, so whatever is learned from them is free.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_DISCS = 120
_SMALLEST, _LARGEST = 1 / 32, 1 / 2  # radii, in sides of the image
_COLOUR = 0.16  # spread of the colours around grey, beside that of the brightness, which is uniform
_FINER = 2  # drawn so many times finer than asked for, and averaged
_TOGETHER = 50  # pictures that variants are made of, drawn at once: they stay in the processor's cache
_CANVAS = 1.5  # side of the picture that variants are cut out of, in sides of the image
_SLOPE, _SHIFT, _BENT = 0.12, 0.12, 0.04  # of a variant: spread of its linear map, shift and bending
_LIGHT, _COLOUR_CAST, _GRAIN = 0.2, 0.05, 0.03


def dead_leaves(count: int, shape: tuple[int, int, int], *, seed: int = 0) -> Tensor:
    """``count`` pictures in [0, 1] of the given shape (channels, height, width), float32.

    The seed makes them the same everywhere; it needs no secrecy, for the pictures show no person.
    """
    channels, height, width = shape
    random = np.random.Generator(np.random.PCG64(seed))
    side = max(height, width)
    down = torch.arange(height * _FINER).view(1, -1, 1) / _FINER
    across = torch.arange(width * _FINER).view(1, 1, -1) / _FINER
    pictures = torch.empty(count, channels, height * _FINER, width * _FINER)
    pictures[:] = _uniform(random, count, channels)[:, :, None, None]
    covered = torch.zeros(count, height * _FINER, width * _FINER, dtype=torch.bool)
    for _ in range(_DISCS):  # from the front to the back
        share = _uniform(random, count, 1)
        radius = side * (_SMALLEST**-2 + share * (_LARGEST**-2 - _SMALLEST**-2)) ** -0.5
        centre = _uniform(random, count, 2) * (torch.tensor([height, width]) + 2 * radius) - radius
        grey = _uniform(random, count, 1)
        colour = grey + _COLOUR * torch.from_numpy(random.standard_normal((count, channels))).float() * (channels > 1)
        distance = (down - centre[:, 0].view(-1, 1, 1)) ** 2 + (across - centre[:, 1].view(-1, 1, 1)) ** 2
        seen = (distance < radius.view(-1, 1, 1) ** 2) & ~covered
        pictures = torch.where(seen[:, None], colour.clamp(0, 1)[:, :, None, None], pictures)
        covered |= seen
    return torch.nn.functional.avg_pool2d(pictures, _FINER)


def _uniform(random: np.random.Generator, *size: int) -> Tensor:
    return torch.from_numpy(random.random(size, dtype=np.float32))


def varied_leaves(figures: int, variants: int, shape: tuple[int, ...], *, seed: int = 0) -> Tensor:
    """Return ``figures`` · ``variants`` pictures as bytes; the variants of a picture are neighbours.

    A variant is cut out of a larger picture by a random linear map and shift, bent, and differs in contrast,
    brightness, colour and grain.
    """
    channels, height, width = shape
    side = int(_CANVAS * max(height, width))
    numbers = range(0, figures, _TOGETHER)
    pieces = [dead_leaves(min(_TOGETHER, figures - k), (channels, side, side), seed=seed + 1 + k) for k in numbers]
    whole = torch.cat(pieces)
    random = np.random.Generator(np.random.PCG64(seed))

    def normal(spread: float, *size: int) -> Tensor:
        return spread * torch.from_numpy(random.standard_normal((figures, *size), dtype=np.float32))

    found = []
    for _ in range(variants):
        linear = (torch.eye(2) + normal(_SLOPE, 2, 2)) * normal(_SLOPE, 1, 1).exp()
        places = torch.cat([linear, normal(_SHIFT, 2, 1)], dim=2) / _CANVAS
        bent = torch.nn.functional.interpolate(normal(_BENT / _CANVAS, 2, 5, 5), (height, width), mode="bicubic")
        grid = torch.nn.functional.affine_grid(places, [figures, channels, height, width], align_corners=False)
        picture = torch.nn.functional.grid_sample(
            whole, grid + bent.movedim(1, -1), padding_mode="reflection", align_corners=False
        )
        picture = (picture - 0.5) * normal(_LIGHT, 1, 1, 1).exp() + 0.5 + normal(_LIGHT / 2, 1, 1, 1)
        grain = normal(_GRAIN, 1, 1, 1).abs() * normal(1.0, *shape)
        picture += normal(_COLOUR_CAST, channels, 1, 1) + grain
        found.append((picture.clamp(0, 1) * 255).byte())
    return torch.stack(found, dim=1).flatten(0, 1)
