"""Convolutions learned from public data, frozen: features that cost nothing (Abadi et al. 2016, section 5.3)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from tacit.features.front import Shape, image_shape, pieces
from tacit.ledger import Ledger, Step
from tacit.randomness import Source

CROP = 24
"""The side of the images that the paper's CIFAR network sees."""
_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """Convolutions from the file ``weights``, each followed by a rectifier and a 2×2 maximum, as one long row.

    The file (safetensors) holds ``convolutions.0.weight``, ``convolutions.0.bias`` and so on, in order; ``digest`` is
    its SHA-256, so that a recipe says which weights it means. Images are cropped to 24×24 in the middle and
    standardised, each by itself.

    Formal guarantee: nothing is learned here. Whatever the weights were learned from is taken to be public: if they
    depend on the records that are to be protected, there is no guarantee at all.
    """

    weights: str
    digest: str

    def features(self, shape: Shape) -> Shape:
        return self._loaded().check(shape).shape

    def charges(self, records: int) -> tuple[Step, ...]:
        return ()

    def fit(self, images: Tensor, *, ledger: Ledger, source: Source) -> Frozen:
        return self._loaded().check(image_shape(images))

    def restore(self, state: Mapping[str, Tensor], shape: Shape) -> Frozen:
        return Frozen(state).check(shape)

    def _loaded(self) -> Frozen:
        return Frozen(read_public(self.weights, self.digest))


class Frozen:
    """Convolutions that are ready to be used."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._state = {name: value for name, value in tensors.items() if name.startswith("convolutions.")}
        names = sorted(
            (name for name in self._state if name.endswith(".weight")), key=lambda name: int(name.split(".")[1])
        )
        if not names or any(name.removesuffix("weight") + "bias" not in self._state for name in names):
            raise ValueError(f"public weights are {sorted(tensors)}; convolutions.0.weight and its bias are missing.")
        self._layers = [(self._state[name], self._state[name.removesuffix("weight") + "bias"]) for name in names]

    @property
    def shape(self) -> Shape:
        side = CROP // 2 ** len(self._layers)
        return (len(self._layers[-1][1]) * side * side,)

    def check(self, shape: Shape) -> Frozen:
        """Itself, if images of this shape are what the weights are for."""
        channels = self._layers[0][0].shape[1]
        if len(shape) != 3 or shape[0] != channels or min(shape[1:]) < CROP:
            raise ValueError(f"images have shape {shape}; these convolutions need {channels} channels, {CROP} a side.")
        return self

    @torch.no_grad()
    def transform(self, images: Tensor) -> Tensor:
        self.check(image_shape(images))
        rows = [self._rows(standardise(centre_crop(piece))) for piece in pieces(images, _ROWS)]
        return torch.cat(rows) if rows else torch.empty(0, *self.shape)

    def _rows(self, values: Tensor) -> Tensor:
        for weight, bias in self._layers:
            values = F.max_pool2d(F.relu(F.conv2d(values, weight, bias, padding=weight.shape[-1] // 2)), 2)
        return values.flatten(1)

    def state(self) -> dict[str, Tensor]:
        return dict(self._state)


def read_public(weights: str | Path, digest: str) -> dict[str, Tensor]:
    """The tensors in a file of public weights, if it is the one that is meant."""
    path = Path(weights)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"public weights {str(path)!r} cannot be read: {error.strerror}.") from error
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise ValueError(f"public weights {str(path)!r} have SHA-256 {found}; the recipe means {digest}.")
    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(f"public weights {str(path)!r} are damaged: {error}.") from error


def centre_crop(images: Tensor) -> Tensor:
    """The 24×24 patch in the middle: what the network sees when it is tested, or trained without distortions."""
    top, left = ((side - CROP) // 2 for side in check_images(images).shape[2:])
    return images[:, :, top : top + CROP, left : left + CROP]


def standardise(images: Tensor) -> Tensor:
    """Each image minus its own mean, divided by its own standard deviation; in an even image, by 1/√(its values)."""
    centred = images.float() - images.float().mean(dim=(1, 2, 3), keepdim=True)
    spread = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    return centred / spread.clamp(min=math.prod(images.shape[1:]) ** -0.5)


def check_images(images: Tensor) -> Tensor:
    if images.ndim != 4 or min(images.shape[2:]) < CROP:
        raise ValueError(f"images have shape {tuple(images.shape)}; it must be (n, channels, at least {CROP} a side).")
    return images
