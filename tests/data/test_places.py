"""Where data sets are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.data import CATALOGUE, locate, places

PATHS = [file.path for file in CATALOGUE["mnist"].layouts[0].files]


def _put(place: Path, paths: list[str]) -> Path:
    for path in paths:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).touch()
    return place


def test_the_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached = _put(places.cache(), PATHS)
    assert places.places()[-1] == cached == tmp_path / "cache" / "tacit" / "data"
    beside = _put(tmp_path / "shared" / "data", PATHS)
    assert locate("mnist") == beside == places.places()[0]
    told = _put(tmp_path / "mine", PATHS)
    monkeypatch.setenv("TACIT_DATA", str(told))
    assert locate("mnist") == told
    (told / PATHS[2]).unlink()
    assert locate("mnist") == beside


def test_without_xdg_the_cache_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.cache() == tmp_path / ".cache" / "tacit" / "data"


def test_the_message_names_the_file_a_place_lacks(bare: Path) -> None:
    _put(bare, PATHS[:3])
    assert locate("mnist") is None
    assert f"{bare}, which has no mnist/t10k-labels" in places.absent(CATALOGUE["mnist"])


def test_tacit_data_must_be_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", "/no/such/place")
    with pytest.raises(ValueError, match="TACIT_DATA is '/no/such/place', which is not a directory"):
        locate("mnist")


def test_digits_are_in_a_package() -> None:
    pytest.importorskip("sklearn")
    found = locate("digits")
    assert found is not None and (found / "datasets").is_dir()


def test_the_catalogue() -> None:
    files = {f for e in CATALOGUE.values() for layout in e.layouts for f in layout.files}
    assert all(len(bytes.fromhex(file.sha256)) == 32 for file in files)
    assert len({file.sha256 for file in files}) == len({file.path for file in files}) == len(files)
    assert all(name == entry.name for name, entry in CATALOGUE.items())
