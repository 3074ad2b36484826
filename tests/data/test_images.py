"""Images: formats on small files, and the real sets where this machine has them."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from tacit.data import Images, fetch, load, locate
from tacit.data.entries import File, Layout
from tacit.data.formats import digest, from_idx, to_idx

Known = Callable[..., None]


@pytest.fixture
def place(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory that TACIT_DATA names."""
    path = tmp_path / "mine"
    path.mkdir()
    monkeypatch.setenv("TACIT_DATA", str(path))
    return path


def _write(place: Path, path: str, contents: bytes) -> File:
    (place / path).parent.mkdir(exist_ok=True)
    (place / path).write_bytes(contents)
    return File(path=path, sha256=digest(contents))


def _random(count: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, classes, count, np.uint8)


def _residuals(images: np.ndarray) -> np.ndarray:
    """The inverse of the decoding, written from the README of the data: differences, then red and blue minus green."""
    planes = images.transpose(1, 0, 2, 3).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    planes = np.diff(planes, axis=3, prepend=np.uint8(0))
    return np.diff(planes, axis=2, prepend=np.uint8(0))


def _npz(path: Path, **arrays: np.ndarray) -> bytes:
    np.savez(path, **arrays)
    return path.read_bytes()


def _same(found: Images, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> None:
    for tensor, values in zip((found.train, found.train_labels, found.test, found.test_labels), (*train, *test)):
        np.testing.assert_array_equal(tensor.numpy(), values)
    assert found.train.dtype == found.test.dtype == torch.uint8
    assert found.train_labels.dtype == found.test_labels.dtype == torch.int64
    assert found.fingerprint == digest(train[0].tobytes(), train[1].tobytes())
    found.train[0] = 0  # the memory is the tensor's own


def test_residuals(place: Path, tmp_path: Path, known: Known) -> None:
    parts = [_random(4), _random(3), _random(2)]
    files = tuple(
        _write(place, f"cifar10/{i}.npz", _npz(tmp_path / "x.npz", d=_residuals(x), y=y))
        for i, (x, y) in enumerate(parts)
    )
    known("cifar10", Layout(format="residuals", files=files, train=2, records=(7, 2)))
    train = tuple(np.concatenate([part[k] for part in parts[:2]]) for k in (0, 1))
    found = load("cifar10")
    _same(found, train, parts[2])  # type: ignore[arg-type]
    assert found.source == f"cifar10/ in {place}" and found.classes == 10


def test_train_and_test_in_one_file(place: Path, tmp_path: Path, known: Known) -> None:
    train, test = _random(4, 200), _random(3, 200)
    arrays = {"d": _residuals(train[0]), "y": train[1], "d_val": _residuals(test[0]), "y_val": test[1]}
    file = _write(place, "tinyimagenet32/x.npz", _npz(tmp_path / "x.npz", **arrays))
    known("tinyimagenet", Layout(format="halves", files=(file,), train=1, records=(4, 3)))
    _same(load("tinyimagenet"), train, test)


@pytest.mark.parametrize(("name", "before"), [("cifar10", 0), ("cifar100", 1)])
def test_binary(place: Path, known: Known, name: str, before: int) -> None:
    parts = [_random(4), _random(3)]
    files = []
    for i, (images, labels) in enumerate(parts):
        coarse = np.full((len(labels), before), 250, np.uint8)
        rows = np.concatenate([coarse, labels[:, None], images.reshape(len(labels), -1)], axis=1)
        files.append(_write(place, f"{name}/{i}.bin", rows.tobytes()))
    known(name, Layout(format="binary", files=tuple(files), train=1, records=(4, 3)))
    _same(load(name), *parts)


def test_matlab(place: Path, tmp_path: Path, known: Known) -> None:
    parts, files = [_random(4), _random(3)], []
    for i, (images, labels) in enumerate(parts):
        tens = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
        savemat(tmp_path / "x.mat", {"X": images.transpose(2, 3, 1, 0), "y": tens})
        files.append(_write(place, f"svhn/{i}.mat", (tmp_path / "x.mat").read_bytes()))
    known("svhn", Layout(format="matlab", files=tuple(files), train=1, records=(4, 3)))
    _same(load("svhn"), *parts)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (4, 28, 28)])
def test_idx(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(from_idx(to_idx(values)), values)


def test_a_file_is_known_packed_or_unpacked(place: Path, known: Known) -> None:
    images, labels = np.zeros((2, 28, 28), np.uint8), np.arange(2, dtype=np.uint8)
    contents = [to_idx(images), to_idx(labels)] * 2
    files = []
    for i, raw in enumerate(contents):
        file = _write(place, f"mnist/{i}.gz", gzip.compress(raw, i))
        files.append(file if i % 2 else File(path=file.path, sha256=digest(raw)))
    known("mnist", Layout(format="idx", files=tuple(files), train=2, records=(2, 2)))
    assert load("mnist").train_labels.tolist() == [0, 1]


def test_a_changed_file_is_refused(place: Path, bare: Path, small_mnist: object) -> None:
    fetch("mnist")
    path = bare / "mnist" / "t10k-labels-idx1-ubyte.gz"
    contents = bytearray(gzip.decompress(path.read_bytes()))
    contents[-1] ^= 1
    path.write_bytes(gzip.compress(contents))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is not the known file.*get it again"):
        load("mnist")


@pytest.mark.parametrize("damage", [b"", b"not a gzip file", b"\x1f\x8b\x08\x00"])
def test_a_damaged_file_is_refused(bare: Path, small_mnist: object, damage: bytes) -> None:
    fetch("mnist")
    (bare / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(damage)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz .*get it again"):
        load("mnist")


@pytest.mark.parametrize("cut", [1, 3074])
def test_a_file_with_too_few_records_is_refused(place: Path, known: Known, cut: int) -> None:
    rows = np.zeros((4, 3074), np.uint8).tobytes()
    files = (_write(place, "c/train.bin", rows[:-cut]), _write(place, "c/test.bin", rows))
    known("cifar100", Layout(format="binary", files=files, train=1, records=(4, 4)))
    with pytest.raises(ValueError, match=r"train\.bin holds uint8 \(3, 3, 32, 32\).*not 4 images"):
        load("cifar100")


def test_a_label_out_of_range_is_refused(place: Path, known: Known) -> None:
    rows = np.full((2, 3074), 100, np.uint8)
    files = tuple(_write(place, f"c/{n}.bin", rows.tobytes()) for n in ("train", "test"))
    known("cifar100", Layout(format="binary", files=files, train=1, records=(2, 2)))
    with pytest.raises(ValueError, match=r"train\.bin has the label 100"):
        load("cifar100")


def test_nothing_is_unpickled(place: Path, tmp_path: Path, known: Known) -> None:
    hidden = np.array([print], dtype=object)
    file = _write(place, "cifar10/x.npz", _npz(tmp_path / "x.npz", d=hidden, y=hidden))
    known("cifar10", Layout(format="residuals", files=(file, file), train=1, records=(1, 1)))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load("cifar10")


def test_digits() -> None:
    pytest.importorskip("sklearn")
    found = load("digits")
    assert found.train.shape == (1437, 1, 8, 8) and found.test.shape == (360, 1, 8, 8)
    assert found.train.min() == 0 and found.train.max() == 255
    assert len(found.train.unique()) == 17
    assert found.train_labels[:10].tolist() == list(range(10))
    assert set(found.test_labels.tolist()) == set(range(10))
    assert load("digits").fingerprint == found.fingerprint


def test_digits_without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match=r"sklearn is not installed; install scikit-learn.*tacit\[sklearn\]"):
        load("digits")


def test_a_table_is_not_images() -> None:
    with pytest.raises(ValueError, match=r"adult is a table.*load_table\('adult'\)"):
        load("adult")


REAL = {
    "mnist": ((60000, 1, 28, 28), 10000, [5, 0, 4, 1, 9], (0.1307,)),
    "cifar10": ((50000, 3, 32, 32), 10000, [6, 9, 9, 4, 1], (0.49140, 0.48216, 0.44653)),
    "svhn": ((26000, 3, 32, 32), 8001, [], (0.4377, 0.4438, 0.4728)),
    "tinyimagenet": ((10000, 3, 32, 32), 2000, [0, 1, 2, 3, 4], (0.480, 0.448, 0.398)),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_sets(name: str) -> None:
    if locate(name) is None:
        pytest.skip(f"{name} is not on this machine")
    shape, tests, labels, means = REAL[name]
    found = load(name)
    assert found.train.shape == shape and found.test.shape == (tests, *shape[1:])
    assert found.train.is_contiguous() and found.train_labels.shape == (shape[0],)
    assert found.train_labels[: len(labels)].tolist() == labels
    total = found.train.sum(dim=(0, 2, 3), dtype=torch.int64)
    channel = total / (255 * shape[0] * shape[2] * shape[3])
    # Published means; what is a subset of the published set comes near them only.
    assert channel.tolist() == pytest.approx(means, abs=5e-5 if name in ("mnist", "cifar10") else 0.01)
