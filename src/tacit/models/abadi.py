"""The networks of Abadi et al. 2016 and the distortions of its CIFAR experiment.

Everything done to an image depends on that image alone, so it changes no sensitivity.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from tacit.features.public import CROP, centre_crop, check_images, standardise
from tacit.randomness import Source

__all__ = ["CROP", "augment", "centre_crop", "cifar_cnn", "mnist_mlp", "standardise"]

_BRIGHTNESS = 63.0  # of 255; this and the contrasts are the TensorFlow tutorial's
_CONTRAST = (0.2, 1.8)


def mnist_mlp(*, inputs: int = 60, hidden: int = 1000, classes: int = 10) -> nn.Sequential:
    """The MNIST network of §5.2: one hidden layer of rectifiers on top of a 60-dimensional PCA."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cifar_cnn(*, classes: int = 10) -> nn.Sequential:
    """The CIFAR network of §5.3 on 24×24 images, in two named halves: ``convolutions`` and ``classifier``.

    The paper learns the convolutions from a public set (see `tacit.data`) and trains the classifier privately.
    """
    convolutions = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    classifier = nn.Sequential(
        nn.Linear(64 * 6 * 6, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, classes)
    )
    return nn.Sequential(OrderedDict(convolutions=convolutions, classifier=classifier))


def augment(images: Tensor, source: Source) -> Tensor:
    """Distort each image by itself: a random 24×24 patch, mirrored or not, brightness, contrast.

    The result is float32 on the scale of bytes; `standardise` comes after it.
    """
    count, channels, height, width = check_images(images).shape
    tops, lefts = (torch.from_numpy(source.integers(side - CROP + 1, count)) for side in (height, width))
    mirrored = torch.from_numpy(source.integers(2, count)).bool()
    along = torch.arange(CROP)
    rows = tops[:, None] + along
    columns = lefts[:, None] + torch.where(mirrored[:, None], CROP - 1 - along, along)
    places = (rows[:, None, :, None] * width + columns[:, None, None, :]).flatten(2).expand(-1, channels, -1)
    patches = images.flatten(2).gather(2, places.to(images.device)).view(count, channels, CROP, CROP).float()
    patches += _BRIGHTNESS * (2 * _uniform(source, patches) - 1)
    low, high = _CONTRAST
    means = patches.mean(dim=(2, 3), keepdim=True)
    return means + (patches - means) * (low + (high - low) * _uniform(source, patches))


def _uniform(source: Source, images: Tensor) -> Tensor:
    return torch.from_numpy(source.uniform(len(images))).to(images).view(-1, 1, 1, 1)
