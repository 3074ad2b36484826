"""The records of a participant, and public ones to judge a model by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacit.data import load
from tacit.models import shokri

_PART = re.compile(r"(?P<name>[a-z0-9]+)(?::(?P<first>\d+)-(?P<last>\d+))?")


def training_records(where: str) -> tuple[Tensor, Tensor]:
    """Images (bytes) and labels: of FILE.npz, or of a known data set, all of it or the rows FIRST to LAST - 1.

    A file has ``images``, uint8 of shape (n, height, width) or (n, channels, height, width), and ``labels``.
    """
    if where.endswith(".npz"):
        return _file(Path(where))
    found = _PART.fullmatch(where)
    if found is None:
        raise ValueError(f"data is {where!r}; give FILE.npz, or a data set such as mnist or mnist:0-600.")
    images = load(found["name"])
    if found["first"] is None:
        return images.train, images.train_labels
    first, last = int(found["first"]), int(found["last"])
    if not first < last <= len(images.train):
        raise ValueError(f"data is {where!r}; {found['name']} has rows 0 to {len(images.train)}.")
    return images.train[first:last], images.train_labels[first:last]


def public_records(where: str) -> tuple[Tensor, Tensor]:
    """Images and labels to validate with: of FILE.npz, or the test part of a known data set."""
    if where.endswith(".npz"):
        return _file(Path(where))
    images = load(where)
    return images.test, images.test_labels


def shown(size: Sequence[int]) -> str:
    """Return a size as people write it.

    >>> shown((1, 28, 28))
    '1×28×28'
    """
    return "×".join(map(str, size))


def check_public(public: tuple[Tensor, Tensor], size: Sequence[int]) -> None:
    """Refuse public records that have nothing to do with the task: accuracy on them would mean nothing.

    ``size`` is that of the participants' images, empty if the agreement does not have it.
    """
    images, labels = public
    if int(labels.min()) == int(labels.max()):
        raise ValueError("all public records have the same label; their accuracy would say nothing about a model.")
    if not size:
        raise ValueError(
            "the collaboration began without the size of its images, so the server cannot compare these public "
            "records with them; leave out --validate, or begin another one with it or with --shape."
        )
    if tuple(images.shape[1:]) != tuple(size):
        raise ValueError(
            f"the public records are {shown(images.shape[1:])}, but the collaboration is about {shown(size)}: the "
            "network sees something else at the same places, and accuracy on them would be chance. Give public records "
            "that are like the participants'."
        )


def check_images(images: Tensor, size: Sequence[int], channels: int) -> None:
    """Refuse a participant's images that are not what the collaboration is about; it sends nothing."""
    if images.shape[1] != channels:
        raise ValueError(f"the images have {images.shape[1]} channels; the collaboration is about {channels}.")
    if size and tuple(images.shape[1:]) != tuple(size):
        raise ValueError(
            f"the images here are {shown(images.shape[1:])}, but the collaboration is about {shown(size)}, the size of "
            "the public records that it is validated and normalised with (or of serve --shape). Nothing was sent: "
            "bring yours to that size as those were, or ask for a collaboration about yours."
        )


def moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, as the networks see it."""
    values = shokri.inputs(images)
    mean, std = values.mean(dim=(0, 2, 3)), values.std(dim=(0, 2, 3))
    return tuple(mean.tolist()), tuple(max(value, 1e-3) for value in std.tolist())


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return what the networks are given."""
    if images.shape[1] != len(mean):
        raise ValueError(f"the images have {images.shape[1]} channels; the collaboration is about {len(mean)}.")
    values = shokri.inputs(images)
    return values.sub_(torch.tensor(mean)[:, None, None]).div_(torch.tensor(std)[:, None, None])


def _file(path: Path) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise ValueError(f"there is no {path}.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read: it must be an .npz with images and labels ({error}).") from error
    if images.ndim == 3:
        images = images[:, None]
    if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
        raise ValueError(f"images in {path} are {images.dtype} of shape {images.shape}; uint8 (n, c, h, w) is needed.")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 9:
        raise ValueError(
            f"labels in {path} have shape {labels.shape}; there must be a digit from 0 to 9 for each image."
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
