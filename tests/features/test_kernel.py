"""A Gaussian kernel over two kinds of features: its inner products, its charge, and what is read back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tacit.features import GaussianKernel, Grouped, Patches, Scattering, Statistics, Whitened
from tacit.features.kernel import Rotation
from tacit.features.leaves import varied_leaves
from tacit.ledger import Header, Ledger
from tacit.randomness import SeededSource

SHAPE = (1, 16, 16)
FRONT = GaussianKernel(
    scattering=Scattering(angles=2, normalisation=Grouped(groups=9)),
    patches=Patches(first=16, second=32),
    directions=200,
)


def images(count: int) -> torch.Tensor:
    return varied_leaves(count, 1, SHAPE, seed=99)


def ledger() -> Ledger:
    return Ledger(Header(secure_randomness=False))


@pytest.mark.parametrize("sharpness", [0.3, 2.0])
def test_inner_products_are_those_of_the_kernel(sharpness: float) -> None:
    front = replace(FRONT, sharpness=sharpness, directions=256)
    fitted = front.fit(images(1), ledger=ledger(), source=SeededSource(0))
    random = torch.Generator().manual_seed(0)
    one, other = torch.linalg.qr(torch.randn(front.wide(SHAPE), 2, generator=random)).Q.T
    cosines = torch.linspace(-1, 1, 9)
    rows = cosines[:, None] * one + (1 - cosines.square()).sqrt()[:, None] * other
    found = fitted.lifted(rows) @ fitted.lifted(one[None]).T / front.length**2
    wanted = ((sharpness * (cosines - 1)).exp() - math.exp(-sharpness)) / (1 - math.exp(-sharpness))
    assert (found[:, 0] - wanted).abs().max() < 0.1  # a straight line would be 0.13 and 0.7 away
    assert (cosines - wanted).abs().max() > 0.13


def test_rows_have_the_declared_length() -> None:
    fitted = FRONT.fit(images(1), ledger=ledger(), source=SeededSource(0))
    unit, rows = fitted.unit(images(3)), fitted.transform(images(3))
    assert rows.shape == (3, *FRONT.features(SHAPE)) and rows.dtype == torch.float32
    assert torch.allclose(unit.norm(dim=1), torch.ones(3)) and torch.allclose(rows.norm(dim=1), torch.full((3,), 10.0))


def test_a_rotation_keeps_lengths_and_angles_and_mixes_all_entries() -> None:
    rotation = Rotation(40)
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    turned = rotation(rows)
    assert turned.shape == (5, 64) == (5, rotation.wide)
    assert torch.allclose(turned @ turned.T, rows @ rows.T, atol=1e-4)
    assert rotation(F.one_hot(torch.tensor([3]), 40).float()).abs().max() < 0.6
    assert torch.equal(Rotation(40)(rows), turned), "the same everywhere"


def test_nothing_is_learned_and_a_saved_front_makes_the_same_rows() -> None:
    book = ledger()
    fitted = FRONT.fit(images(10), ledger=book, source=SeededSource(0))
    assert not book.entries and FRONT.charges(40) == ()
    again = FRONT.restore(fitted.state(), SHAPE)
    assert torch.equal(again.transform(images(3)), fitted.transform(images(3)))
    with pytest.raises(ValueError, match="lacks the dictionary 'first' of 16 patches"):
        FRONT.restore({}, SHAPE)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="sharpness is 0; it must be"):
        replace(FRONT, sharpness=0)
    with pytest.raises(ValueError, match="scattering learns statistics of records"):
        replace(FRONT, scattering=Scattering(normalisation=Whitened(statistics=Statistics())))
    with pytest.raises(ValueError, match="dimensions is 0"):
        replace(FRONT, directions=0)


def test_there_are_no_more_features_than_directions_of_the_rotation() -> None:
    assert FRONT.wide(SHAPE) == 240
    assert replace(FRONT, directions=5000).features(SHAPE) == (256,) and FRONT.features(SHAPE) == (200,)
