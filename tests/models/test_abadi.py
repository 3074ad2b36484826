"""The networks of paper 1 and its distortions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.models import abadi
from tacit.randomness import SeededSource


def _images(count: int) -> Tensor:
    """Bytes that say where they come from: row in the first channel, column in the second, record in the third."""
    rows = torch.arange(32).view(1, 1, 32, 1).expand(count, 1, 32, 32)
    records = torch.arange(count).view(-1, 1, 1, 1).expand(count, 1, 32, 32)
    return torch.cat([rows, rows.transpose(2, 3), records], dim=1).to(torch.uint8)


def test_sizes() -> None:
    assert sum(p.numel() for p in abadi.mnist_mlp().parameters()) == 61 * 1000 + 1001 * 10
    model = abadi.cifar_cnn()
    assert model(torch.zeros(2, 3, 24, 24)).shape == (2, 10)
    assert model.get_submodule("convolutions")(torch.zeros(2, 3, 24, 24)).shape == (2, 6 * 6 * 64)
    counts = [p.numel() for p in model.parameters()]
    assert counts == [4800, 64, 102400, 64, 2304 * 384, 384, 384 * 384, 384, 3840, 10]


def test_augment_takes_one_patch_from_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abadi, "_BRIGHTNESS", 0.0)
    monkeypatch.setattr(abadi, "_CONTRAST", (1.0, 1.0))
    count = 200
    patches = abadi.augment(_images(count), SeededSource(1)).round()
    assert patches.shape == (count, 3, 24, 24) and patches.dtype == torch.float32
    assert (patches[:, 2] == torch.arange(count).view(-1, 1, 1)).all()  # never a pixel of another record
    assert (patches[:, 0].diff(dim=1) == 1).all() and (patches[:, 0].diff(dim=2) == 0).all()
    steps = patches[:, 1].diff(dim=2)
    mirrored = (steps == -1).flatten(1).all(dim=1)
    assert ((steps == 1).flatten(1).all(dim=1) ^ mirrored).all()
    assert 60 < int(mirrored.sum()) < 140
    tops, lefts = patches[:, 0, 0, 0].int().tolist(), patches[:, 1, 0].amin(dim=1).int().tolist()
    assert set(tops) == set(lefts) == set(range(9))
    assert len(set(zip(tops, lefts))) > 50  # 74 of 81 are expected if one is drawn apart from the other


def test_augment_changes_brightness_and_contrast_of_each_image() -> None:
    images = (torch.arange(3 * 32 * 32) % 200).to(torch.uint8).view(1, 3, 32, 32).expand(500, 3, 32, 32)
    patches = abadi.augment(images, SeededSource(2))
    contrasts = patches.std(dim=(2, 3)) / images[:1].float().std(dim=(2, 3))
    assert contrasts.min() < 0.4 and contrasts.max() > 1.6
    flat = torch.full((500, 3, 32, 32), 100, dtype=torch.uint8)
    shifts = abadi.augment(flat, SeededSource(3)) - 100
    assert (shifts.flatten(1).std(dim=1) < 1e-3).all()  # a grey image stays grey
    assert -63 <= shifts.min() < -57 and 57 < shifts.max() <= 63


def test_an_image_is_augmented_from_itself_alone() -> None:
    images = _images(8)
    other = images.clone()
    other[3] = 255 - other[3]
    one, two = abadi.augment(images, SeededSource(4)), abadi.augment(other, SeededSource(4))
    assert [bool((a != b).any()) for a, b in zip(one, two)] == [i == 3 for i in range(8)]


def test_centre_crop_and_standardise() -> None:
    middle = abadi.centre_crop(_images(2))
    assert middle.shape == (2, 3, 24, 24) and middle.dtype == torch.uint8
    assert middle[0, 0, :, 0].tolist() == list(range(4, 28)) == middle[0, 1, 0].tolist()
    done = abadi.standardise(middle).numpy()
    np.testing.assert_allclose(done.mean(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(done.std(axis=(1, 2, 3)), 1, atol=1e-5)
    assert (abadi.standardise(torch.full((1, 3, 24, 24), 9, dtype=torch.uint8)) == 0).all()
    assert abadi.standardise(middle[:0]).shape == (0, 3, 24, 24)
    assert abadi.augment(_images(0), SeededSource(5)).shape == (0, 3, 24, 24)


def test_images_that_are_too_small() -> None:
    with pytest.raises(ValueError, match=r"\(5, 1, 8, 8\).*24"):
        abadi.centre_crop(torch.zeros(5, 1, 8, 8))
    with pytest.raises(ValueError, match=r"\(5, 64\)"):
        abadi.augment(torch.zeros(5, 64), SeededSource(1))
