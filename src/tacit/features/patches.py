"""Likeness to patches of procedural pictures, in two layers, pooled: features of images that are learned from no data.

A layer cuts its input into overlapping patches, whitens them by the statistics of procedural pictures, scales each to
unit length, and compares it with a dictionary of patches of those pictures: max(0, likeness - threshold), as Coates and
Ng (2012) encode patches of photographs. The second layer does the same to the pooled output of the first (Mairal 2016).
The dictionary holds every patch together with its mirror image, so that the features of an image and of its mirror
image, which are averaged, come from one pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.features.front import Shape, image_shape, pieces
from tacit.features.leaves import varied_leaves
from tacit.ledger import Ledger, Step
from tacit.randomness import Source

_SIDES = 5, 3  # of the patches of each layer
_COMPONENTS = 48, 128  # of a whitened patch
_FLOOR = 0.05  # of the variance of a component, in mean variances
_LENGTH = 0.1  # added to the mean square of a whitened patch before it is scaled, so that flat patches stay small
_FIGURES, _VARIANTS = 250, 4
_SAMPLES = 60_000, 30_000  # patches that the statistics of each layer come from
_BLOCK = 8  # pixels of a place of the result
_ROWS = 50
_PARTS = "weight", "bias", "dictionary"  # of a layer, as they are saved


@dataclass(frozen=True, kw_only=True)
class Patches:
    """Features of images at every eighth place: likeness to the patches of both layers, each layer's of unit length.

    * ``first``, ``second``: how many patches the dictionary of each layer holds, mirror images included.
    * ``threshold``: how much more alike than usual a patch must be to count, in standard deviations.

    Formal guarantee: the dictionaries are learned from procedural pictures, without a look at the records, and each
    row is made from one record alone.

    >>> Patches(first=64, second=256).features((3, 32, 32))  # (32 + 128) · 4 · 4
    (2560,)
    """

    first: int = 128
    second: int = 1024
    threshold: float = 1.0

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 2 or value % 2:
                raise ValueError(f"{name} is {value!r}; it must be an even whole number: patches and mirror images.")

    def features(self, shape: Shape) -> Shape:
        _, height, width = shape
        if height % _BLOCK or width % _BLOCK:
            raise ValueError(f"images are {height}×{width}; sides must be multiples of {_BLOCK}, or pad them.")
        return ((self.first + self.second) // 2 * (height // _BLOCK) * (width // _BLOCK),)

    def charges(self, records: int) -> tuple[Step, ...]:
        return ()

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Patched:
        shape = image_shape(images)
        self.features(shape)
        return _learned(self, shape)

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Patched:
        first, second = (self._layer(state, name) for name in ("first", "second"))
        wanted = ((self.first + self.second) // 2, shape[1] // _BLOCK, shape[2] // _BLOCK)
        centre = state.get("centre")
        if centre is None or tuple(centre.shape) != wanted:
            raise ValueError(f"the saved front end has no centre of shape {wanted}.")
        return Patched(first, second, centre)

    def _layer(self, state: Mapping[str, Tensor], name: str) -> Layer:
        parts = [state[key] for part in _PARTS if (key := f"{name}.{part}") in state]
        if len(parts) < len(_PARTS) or len(parts[2]) != getattr(self, name):
            raise ValueError(f"the saved front end lacks the dictionary {name!r} of {getattr(self, name)} patches.")
        weight, bias, dictionary = parts
        return Layer(weight, bias, dictionary, self.threshold)


@dataclass(frozen=True)
class Layer:
    """Whiten patches by ``weight`` and ``bias``, and compare them with ``dictionary``, one unit row for each.

    Row k and row k + K/2 of the K rows are mirror images of one another.
    """

    weight: Tensor
    bias: Tensor
    dictionary: Tensor
    threshold: float

    def __call__(self, maps: Tensor) -> Tensor:
        """Maps (n, c, h, w) to (n, K, h, w), pooled over 2×2 places."""
        margin = self.weight.shape[-1] // 2
        white = F.conv2d(F.pad(maps, (margin,) * 4, mode="reflect"), self.weight, self.bias)
        count, wide, height, width = white.shape
        rows = white.permute(0, 2, 3, 1).reshape(-1, wide)
        rows = rows / (rows.square().mean(dim=1, keepdim=True) + _LENGTH).mul_(wide).sqrt_()
        found = (rows @ self.dictionary.T).sub_(self.threshold / math.sqrt(wide)).relu_()
        return F.avg_pool2d(found.view(count, height, width, -1).permute(0, 3, 1, 2), 2)

    @classmethod
    def learn(cls, maps: Tensor, *, mirrored: Tensor, place: int, filters: int, threshold: float) -> Layer:
        """The layer for such maps; ``mirrored`` is, for each channel, the one in its place in a mirror image."""
        random = torch.Generator().manual_seed(place)
        side, count = _SIDES[place], _SAMPLES[place] // len(maps)
        windows = maps.unfold(2, side, 1).unfold(3, side, 1)
        down, across = (torch.randint(size, (len(maps), count), generator=random) for size in windows.shape[2:4])
        cut = [windows[torch.arange(len(maps)), :, down[:, k], across[:, k]] for k in range(count)]
        patches = torch.cat(cut)
        both = torch.stack([patches, patches[:, mirrored].flip(-1)]).flatten(2)
        if place == 0:
            both -= both.mean(dim=2, keepdim=True)  # brightness
        mean = both.mean(dim=(0, 1))
        both -= mean
        flat = both.flatten(0, 1)
        values, vectors = torch.linalg.eigh((flat.T @ flat / len(flat)).double())  # in ascending order
        wide = min(_COMPONENTS[place], len(values) - 1)
        scales = (values[-wide:].clamp(min=0) + _FLOOR * values[-wide:].mean()) ** -0.5
        whitening = (vectors[:, -wide:] * scales).float()
        rows = both @ whitening
        chosen = torch.multinomial(torch.linalg.vector_norm(rows[0], dim=1), filters // 2, generator=random)
        dictionary = F.normalize(rows[:, chosen].flatten(0, 1), dim=1)
        weight = whitening.T
        if place == 0:
            weight = weight - weight.mean(dim=1, keepdim=True)
        bias = -(mean @ whitening)
        return cls(weight.reshape(wide, -1, side, side).contiguous(), bias, dictionary, threshold)


class Patched:
    """The two layers; made by `Patches`."""

    def __init__(self, first: Layer, second: Layer, centre: Tensor) -> None:
        self._first, self._second, self._centre = first, second, centre

    @property
    def shape(self) -> Shape:
        return (self._centre.numel(),)

    def state(self) -> dict[str, Tensor]:
        found = {"centre": self._centre}
        for name, layer in (("first", self._first), ("second", self._second)):
            found |= {f"{name}.{part}": getattr(layer, part) for part in _PARTS}
        return found

    @torch.no_grad()
    def transform(self, images: Tensor) -> Tensor:
        rows, width = torch.empty(len(images), *self.shape), len(self._first.dictionary) // 2
        for start, piece in zip(range(0, len(images), _ROWS), pieces(images, _ROWS)):
            found = self.pooled(piece.float().div_(255)) - self._centre
            parts = [F.normalize(part.flatten(1)) for part in (found[:, :width], found[:, width:])]
            rows[start : start + _ROWS] = torch.cat(parts, dim=1)
        return rows

    def pooled(self, pixels: Tensor) -> Tensor:
        """Square roots of both layers' pooled outputs, averaged over image and mirror image."""
        first = self._first(pixels)
        found = [F.avg_pool2d(part, _BLOCK // 2 ** (k + 1)) for k, part in enumerate((first, self._second(first)))]
        return torch.cat([_symmetric(part) for part in found], dim=1).sqrt_()


def _symmetric(maps: Tensor) -> Tensor:
    """The mean of maps and those of the mirror image: the channels of the first half, which then say everything."""
    one, other = maps.chunk(2, dim=1)
    return (one + other.flip(-1)) / 2


def _twins(filters: int) -> Tensor:
    return torch.arange(filters).roll(filters // 2)


@lru_cache(maxsize=2)
def _learned(front: Patches, shape: Shape) -> Patched:
    """The dictionaries, the same everywhere but for rounding, and the mean of the pictures' features."""
    channels = shape[0]
    pictures = varied_leaves(_FIGURES, _VARIANTS, shape)
    pixels = pictures.float().div_(255)
    with torch.no_grad():
        first = Layer.learn(
            pixels, mirrored=torch.arange(channels), place=0, filters=front.first, threshold=front.threshold
        )
        maps = torch.cat([first(piece) for piece in pieces(pixels, _ROWS)])
        second = Layer.learn(
            maps, mirrored=_twins(front.first), place=1, filters=front.second, threshold=front.threshold
        )
        plain = Patched(first, second, torch.zeros(()))
        found = [plain.pooled(piece) for piece in pieces(pixels, _ROWS)]
        return Patched(first, second, torch.cat(found).mean(dim=0))
