"""Reading the files of data sets: bytes checked against the catalogue, then arrays. Nothing is ever unpickled."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data.entries import Entry, File, Layout

Pixels = NDArray[np.uint8]
Part = tuple[Pixels, Pixels]


def read_images(known: Entry, layout: Layout, place: Path) -> tuple[Part, Part]:
    """Training and test part: images (n, channels, height, width) and labels (n,), bytes as stored in the files."""
    contents = [verified(place / file.path, file) for file in layout.files]
    if layout.format == "halves":
        parts = [_residuals(contents[0]), _residuals(contents[0], "_val")]
        paths = [place / layout.files[0].path] * 2
    else:
        ends = (slice(layout.train), slice(layout.train, None))
        parts = [_part(layout.format, contents[end], known) for end in ends]
        paths = [place / layout.files[end][0].path for end in ends]
    for (images, labels), path, count in zip(parts, paths, layout.records):
        if images.shape != (count, *known.shape) or images.dtype != np.uint8 or labels.shape != (count,):
            found = f"{images.dtype} {images.shape} with {labels.shape} labels"
            raise ValueError(f"{path} holds {found}, not {count} images of shape {known.shape}; get the file again.")
        if labels.max() >= known.classes:
            raise ValueError(f"{path} has the label {labels.max()}, not one of {known.classes}; get the file again.")
    return parts[0], parts[1]


def verified(path: Path, file: File) -> bytes:
    """Return the file's content, unpacked; refuse a file that is broken or is not the known one."""
    raw = path.read_bytes()
    contents = raw
    if path.suffix == ".gz":
        try:
            contents = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            raise ValueError(f"{path} is damaged and cannot be unpacked; delete it and get it again.") from None
    if file.sha256 not in (digest(raw), digest(contents)):
        raise ValueError(f"{path} is not the known file: its SHA-256 differs; delete it and get it again.")
    return contents


def digest(*contents: bytes | memoryview) -> str:
    """SHA-256 of the bytes, one after another."""
    found = hashlib.sha256()
    for part in contents:
        found.update(part)
    return found.hexdigest()


def to_idx(values: Pixels) -> bytes:
    """An array of bytes in the idx format of MNIST."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def from_idx(contents: bytes) -> Pixels:
    """The array that an idx file of bytes holds; the file has been verified."""
    start = 4 + 4 * contents[3]
    shape = tuple(int.from_bytes(contents[at : at + 4], "big") for at in range(4, start, 4))
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def _part(form: str, contents: Sequence[bytes], known: Entry) -> Part:
    if form == "idx":
        images, labels = from_idx(contents[0]), from_idx(contents[1])
        return images[:, None], labels
    if form == "binary":
        parts = [_binary(part, labels=2 if known.classes == 100 else 1) for part in contents]
    else:
        parts = [_residuals(part) if form == "residuals" else _matlab(part) for part in contents]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _residuals(contents: bytes, end: str = "") -> Part:
    """Images stored as red and blue minus green, then as differences along both axes, modulo 256."""
    with np.load(io.BytesIO(contents), allow_pickle=False) as arrays:
        planes, labels = arrays["d" + end], arrays["y" + end]
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return planes.transpose(1, 0, 2, 3), labels


def _binary(contents: bytes, *, labels: int) -> Part:
    """CIFAR's binary version: label bytes (CIFAR-100: coarse, then fine), then the planes, record by record."""
    width = labels + 3 * 32 * 32
    whole = len(contents) // width * width  # a torn last record shows in the count
    rows = np.frombuffer(contents[:whole], np.uint8).reshape(-1, width)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


def _matlab(contents: bytes) -> Part:
    """SVHN's own files: images (height, width, channels, n), labels 1 to 10, where 10 stands for the digit 0."""
    from scipy.io import loadmat

    arrays = loadmat(io.BytesIO(contents), variable_names=["X", "y"])
    labels = arrays["y"].reshape(-1)
    return arrays["X"].transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels).astype(np.uint8)
