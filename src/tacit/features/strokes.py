"""Random pen strokes: figures of one to three curves, each drawn several times by a hand that is never the same.

No record and no font is looked at. A curve follows a heading whose curvature is constant in pieces, which gives arcs,
hooks and loops; the variants of a figure differ in curvature, heading, length, place, thickness and by a linear map, as
the same letter of two writers does. Whatever is learned from them is free.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CURVES, _POINTS, _PIECES = 3, 40, 4  # of a figure; of a curve; of constant curvature
_BEND = 4.0  # spread of the curvature, in radians for a curve of length 1
_UNSTEADY = 0.35  # how much a variant's curves differ; a multiple for each of the ways
_SLOPE = 0.2  # spread of the entries of a variant's linear map around the identity
_HEIGHT = 0.68  # the longer side of a figure, in sides of the picture
_ROWS = 64


def strokes(figures: int, variants: int, size: tuple[int, int], *, seed: int = 0) -> Tensor:
    """Return ``figures`` · ``variants`` pictures as bytes (n, 1, height, width); variants of a figure are neighbours.

    The seed makes them the same everywhere; it needs no secrecy, for the pictures show no person.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    normal, uniform = random.standard_normal, random.uniform
    count, curves = figures * variants, (figures, _CURVES)

    used = random.choice(np.arange(1, _CURVES + 1), figures, p=(0.5, 0.35, 0.15))
    pieces = random.integers(1, _PIECES + 1, curves)
    place = np.arange(_POINTS) * pieces[..., None] // _POINTS
    bend = np.take_along_axis(_BEND * normal((*curves, _PIECES)), place, axis=2)
    heading, middle = uniform(0, 2 * math.pi, curves), uniform(-0.5, 0.5, (*curves, 2))
    length = uniform(0.5, np.where(used == 1, 2.5, 1.3)[:, None], curves)
    pen = uniform(0.9, 2.0, figures)

    def same(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.repeat(values, variants, axis=0)

    def unsteady(share: float, *shape: int) -> npt.NDArray[Any]:
        return share * _UNSTEADY * normal((count, *shape))

    knots = np.abs(np.linspace(0, 3, _POINTS)[None] - np.arange(4)[:, None])
    waver = unsteady(1.0, _CURVES, 4) @ np.clip(1 - knots, 0, None)
    bend = same(bend) * (1 + unsteady(0.4, _CURVES, 1)) + waver
    length = same(length) * np.exp(unsteady(0.3, _CURVES))
    angle = (same(heading) + unsteady(0.3, _CURVES))[..., None] + np.cumsum(bend, 2) * length[..., None] / _POINTS
    points = np.cumsum(np.stack([np.cos(angle), np.sin(angle)], axis=-1), axis=2) * length[..., None, None] / _POINTS
    points += (same(middle) + unsteady(0.2, _CURVES, 2))[:, :, None] - points.mean(axis=2, keepdims=True)
    absent = np.arange(_CURVES) >= same(used)[:, None]
    points = np.where(absent[..., None, None], points[:, :1], points).reshape(count, -1, 2)
    points = points @ (np.eye(2) + _SLOPE * normal((count, 2, 2)))

    low, high = points.min(axis=1, keepdims=True), points.max(axis=1, keepdims=True)
    extent = (
        _HEIGHT * min(size) * uniform(0.9, 1.05, (count, 1, 1)) / np.maximum((high - low).max(2, keepdims=True), 1e-3)
    )
    points = (points - (low + high) / 2) * extent + (np.array(size) - 1) / 2
    thickness = same(pen) * np.exp(0.25 * normal(count)) * min(size) / 28
    return _drawn(torch.from_numpy(points).float(), torch.from_numpy(thickness).float(), size)


def _drawn(points: Tensor, thickness: Tensor, size: tuple[int, int]) -> Tensor:
    """White where a point of the figure is nearer than ``thickness`` pixels, black elsewhere, grey between."""
    grid = torch.stack(torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij"), dim=-1)
    pixels, found = grid.reshape(1, -1, 2).float(), []
    for near, thick in zip(torch.split(points, _ROWS), torch.split(thickness, _ROWS), strict=True):
        distance = torch.cdist(pixels.expand(len(near), -1, -1), near).amin(dim=2)
        found.append(((thick[:, None] - distance + 0.5).clamp(0, 1) * 255).byte())
    return torch.cat(found).view(-1, 1, *size)
