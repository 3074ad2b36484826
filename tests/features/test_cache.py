"""Features on disk."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.features import Grouped, Scattering, cache
from tacit.features.cache import cached
from tacit.features.scattering import Scattered

FRONT = Scattering(angles=1, normalisation=Grouped(groups=2))


def pictures(seed: int = 0, count: int = 20) -> torch.Tensor:
    return torch.randint(256, (count, 2, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def fitted() -> Scattered:
    return Scattered(FRONT, (2, 8, 8))


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROWS", 7)
    first = cached(pictures(), fitted(), tmp_path / "new", configuration=repr(FRONT))
    assert first.dtype == torch.float16 and torch.allclose(first.float(), fitted().transform(pictures()), atol=5e-3)
    monkeypatch.setattr(Scattered, "transform", None)  # a second call would fail
    assert torch.equal(first, cached(pictures(), fitted(), tmp_path / "new", configuration=repr(FRONT)))
    (path,) = (tmp_path / "new").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert np.load(path, allow_pickle=False).shape == (20, *fitted().shape)


def test_other_images_or_settings_are_other_files(tmp_path: Path) -> None:
    cached(pictures(), fitted(), tmp_path, configuration="a")
    cached(pictures(1), fitted(), tmp_path, configuration="a")
    cached(pictures(), fitted(), tmp_path, configuration="b")
    learned = Scattered(FRONT, (2, 8, 8), mean=torch.zeros(8))
    cached(pictures(), learned, tmp_path, configuration="a")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Scattered, images: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scattered, "transform", fail)
    with pytest.raises(KeyboardInterrupt):
        cached(pictures(), fitted(), tmp_path, configuration="a")
    assert not list(tmp_path.iterdir())


def test_changing_cached_features_in_memory_leaves_the_file_unchanged(tmp_path: Path) -> None:
    cached(pictures(), fitted(), tmp_path, configuration="a")[:] = 0
    assert cached(pictures(), fitted(), tmp_path, configuration="a").abs().max() > 0


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    cached(pictures(), fitted(), tmp_path, configuration="a")
    (path,) = tmp_path.iterdir()
    np.save(path, np.zeros(3, np.float16))
    with pytest.raises(ValueError, match="remove it") as error:
        cached(pictures(), fitted(), tmp_path, configuration="a")
    assert path.stem.removeprefix("features-") not in str(error.value)


def test_no_log_and_no_error_says_the_hash_of_the_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        cached(pictures(), fitted(), tmp_path, configuration="a")
    (path,) = tmp_path.iterdir()
    assert "features of 20 images" in caplog.text
    assert path.stem.removeprefix("features-") not in caplog.text
    with path.open("wb") as file:
        np.savez(file, features=np.zeros(3))
    with pytest.raises(ValueError, match="archive") as error:
        cached(pictures(), fitted(), tmp_path, configuration="a")
    assert path.stem.removeprefix("features-") not in str(error.value)
