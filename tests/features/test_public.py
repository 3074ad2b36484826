"""Frozen convolutions: the paper's network up to its last pooling, and weights that are the ones that are meant."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tacit.features import Convolutions
from tacit.ledger import Ledger
from tacit.models.abadi import centre_crop, cifar_cnn, standardise
from tacit.randomness import SeededSource


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "public.safetensors"
    save_file(cifar_cnn(classes=7).state_dict(), path)
    return path


def front(path: Path) -> Convolutions:
    return Convolutions(weights=str(path), digest=hashlib.sha256(path.read_bytes()).hexdigest())


def pictures(count: int = 5) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_features_are_those_of_the_papers_network(weights: Path) -> None:
    torch.manual_seed(0)
    network = cifar_cnn(classes=7).get_submodule("convolutions")
    ledger, images = Ledger(), pictures()
    fitted = front(weights).fit(images, ledger=ledger, source=SeededSource(1))
    with torch.no_grad():
        expected = network(standardise(centre_crop(images)))
    torch.testing.assert_close(fitted.transform(images), expected)
    assert fitted.shape == front(weights).features((3, 32, 32)) == (2304,)
    assert len(ledger) == 0 and front(weights).charges(100) == ()  # nothing is learned


def test_each_row_is_made_from_one_image(weights: Path) -> None:
    images = pictures(6)
    fitted = front(weights).fit(images, ledger=Ledger(), source=SeededSource(1))
    alone = torch.cat([fitted.transform(image[None]) for image in images])
    torch.testing.assert_close(alone, fitted.transform(images))
    assert fitted.transform(images[:0]).shape == (0, 2304)


def test_a_front_restored_from_its_state_computes_the_same_features(weights: Path) -> None:
    images = pictures()
    fitted = front(weights).fit(images, ledger=Ledger(), source=SeededSource(1))
    again = front(weights).restore(fitted.state(), (3, 32, 32))
    assert torch.equal(again.transform(images), fitted.transform(images))
    assert all(name.startswith("convolutions.") for name in fitted.state())


def test_other_weights_than_those_meant_are_refused(weights: Path, tmp_path: Path) -> None:
    meant = front(weights)
    save_file(cifar_cnn(classes=7).state_dict(), weights)
    with pytest.raises(ValueError, match="the recipe means"):
        meant.features((3, 32, 32))
    with pytest.raises(ValueError, match="cannot be read"):
        Convolutions(weights=str(tmp_path / "none"), digest="0").features((3, 32, 32))
    (tmp_path / "text").write_text("not tensors")
    with pytest.raises(ValueError, match="are damaged"):
        front(tmp_path / "text").features((3, 32, 32))
    save_file({"classifier.0.weight": torch.zeros(1)}, tmp_path / "half")
    with pytest.raises(ValueError, match=r"convolutions\.0\.weight and its bias are missing"):
        front(tmp_path / "half").features((3, 32, 32))


def test_images_that_do_not_fit_are_refused(weights: Path) -> None:
    for shape in ((1, 28, 28), (3, 20, 32)):
        with pytest.raises(ValueError, match="these convolutions need 3 channels, 24 a side"):
            front(weights).features(shape)
