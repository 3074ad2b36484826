"""Front ends: what they give, what they refuse, and that a row is made from one record alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.features import Front, Pca, Pixels, RandomProjection
from tacit.ledger import Header, Ledger
from tacit.randomness import SecureSource

SOURCE = SecureSource()
FRONTS: list[Any] = [
    Pixels(),
    Pixels(flat=False),
    RandomProjection(dimensions=5),
    Pca(dimensions=5, noise_multiplier=2.0),
    Pca(dimensions=5, noise_multiplier=2.0, sampling_rate=0.5),
]


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (50, 1, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_a_row_is_made_from_its_record_alone(front: Front, images: Tensor) -> None:
    fitted = front.fit(images, ledger=Ledger(Header(secure_randomness=False)), source=SOURCE)
    rows = fitted.transform(images)
    assert rows.dtype == torch.float32
    assert tuple(rows.shape) == (50, *fitted.shape) == (50, *front.features((1, 4, 6)))
    alone = torch.cat([fitted.transform(images[i : i + 1]) for i in range(50)])
    assert torch.allclose(rows, alone, atol=1e-5)
    assert tuple(fitted.transform(images[:0]).shape) == (0, *fitted.shape)


@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_fitting_charges_exactly_the_announced_steps(front: Front, images: Tensor) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    front.fit(images, ledger=ledger, source=SOURCE)
    assert [step for step, count in ledger.entries for _ in range(count)] == list(front.charges(50))


@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_a_restored_front_is_the_same(front: Front, images: Tensor) -> None:
    fitted = front.fit(images, ledger=Ledger(Header(secure_randomness=False)), source=SOURCE)
    again = front.restore(fitted.state(), (1, 4, 6))
    assert torch.equal(again.transform(images), fitted.transform(images))
    assert again.shape == fitted.shape


def test_pixels_are_between_zero_and_one(images: Tensor) -> None:
    images[0, 0, 0, 0], images[0, 0, 0, 1] = 0, 255
    rows = Pixels().fit(images, ledger=Ledger(Header(secure_randomness=False)), source=SOURCE).transform(images)
    assert (rows[0, 0], rows[0, 1]) == (0.0, 1.0)
    assert torch.allclose(rows * 255, images.flatten(1).float(), atol=1e-4)


def test_a_random_projection_is_orthonormal_new_each_time_and_free(images: Tensor) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    first, second = (RandomProjection(dimensions=7).fit(images, ledger=ledger, source=SOURCE) for _ in range(2))
    directions = first.state()["directions"]
    assert torch.allclose(directions @ directions.T, torch.eye(7), atol=1e-5)
    assert not torch.allclose(directions, second.state()["directions"], atol=0.1)
    assert len(ledger) == 0


@pytest.mark.parametrize("front", FRONTS, ids=str)
@pytest.mark.parametrize("bad", [torch.rand(5, 1, 4, 6), torch.zeros(5, 24, dtype=torch.uint8)], ids=["float", "flat"])
def test_images_that_are_not_bytes_in_four_dimensions_are_refused(front: Front, bad: Tensor) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    with pytest.raises(ValueError, match=r"images are torch\.(float32|uint8) of shape"):
        front.fit(bad, ledger=ledger, source=SOURCE)
    assert len(ledger) == 0


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 9\); this front needs \(5, 24\)"):
        RandomProjection(dimensions=5).restore({"directions": torch.zeros(3, 9)}, (1, 4, 6))
    with pytest.raises(ValueError, match="shape None"):
        Pca(dimensions=5).restore({}, (1, 4, 6))
    with pytest.raises(ValueError, match="dimensions is 0"):
        RandomProjection(dimensions=0)


def test_a_projection_refuses_images_of_another_size(images: Tensor) -> None:
    fitted = RandomProjection(dimensions=2).fit(images, ledger=Ledger(Header(secure_randomness=False)), source=SOURCE)
    with pytest.raises(ValueError, match="images have 25 values; the directions were made for 24"):
        fitted.transform(torch.zeros(1, 1, 5, 5, dtype=torch.uint8))
