"""Likeness to patches of procedural pictures: what the features know, and what they do not see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacit.features import Patches
from tacit.features.leaves import varied_leaves
from tacit.features.patches import Patched
from tacit.ledger import Header, Ledger
from tacit.randomness import SeededSource

SHAPE = (3, 16, 16)
FRONT = Patches(first=16, second=32)


def images(count: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return varied_leaves(count, 1, shape, seed=99)


def fitted(front: Patches = FRONT, shape: tuple[int, ...] = SHAPE) -> Patched:
    return front.fit(images(2, shape), ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(0))


@pytest.mark.parametrize("shape", [SHAPE, (1, 8, 16)])
def test_rows_have_the_declared_shape_and_each_layer_has_length_one(shape: tuple[int, ...]) -> None:
    rows = fitted(shape=shape).transform(images(3, shape))
    assert rows.shape == (3, *FRONT.features(shape)) and rows.dtype == torch.float32
    first = 8 * (shape[1] // 8) * (shape[2] // 8)
    for part in (rows[:, :first], rows[:, first:]):
        assert torch.allclose(part.norm(dim=1), torch.ones(3), atol=1e-5)


def test_a_mirror_image_has_the_same_features_and_a_turned_one_others() -> None:
    front, pictures = fitted(), images(20)
    rows = front.transform(pictures)
    assert torch.allclose(front.transform(pictures.flip(-1)), rows, atol=1e-4)
    assert (front.transform(pictures.flip(-2)) - rows).norm(dim=1).min() > 0.1


def test_a_row_is_made_from_its_own_image_alone() -> None:
    front, pictures = fitted(), images(60)  # more than are transformed at once
    together = front.transform(pictures)
    alone = torch.cat([front.transform(picture[None]) for picture in pictures[:5]])
    assert torch.allclose(together[:5], alone, atol=1e-5)


def test_brightness_does_not_count_and_shapes_do() -> None:
    front, pictures = fitted(), (images(10) // 2).byte()
    rows, brighter = front.transform(pictures), front.transform(pictures + 60)
    assert ((rows - brighter).norm(dim=1) < 0.2 * torch.cdist(rows, rows).sum(dim=1) / 9).all()


def test_nothing_is_learned_from_the_records() -> None:
    book = Ledger(Header(secure_randomness=False))
    one = FRONT.fit(images(2), ledger=book, source=SeededSource(0))
    other = FRONT.fit(torch.zeros(5, *SHAPE, dtype=torch.uint8), ledger=book, source=SeededSource(1))
    assert not book.entries and FRONT.charges(100) == ()
    assert all(torch.equal(value, other.state()[name]) for name, value in one.state().items())


def test_a_saved_front_makes_the_same_rows_and_another_is_refused() -> None:
    front = fitted()
    again = FRONT.restore(front.state(), SHAPE)
    assert torch.equal(again.transform(images(4)), front.transform(images(4)))
    with pytest.raises(ValueError, match="lacks the dictionary 'second' of 34 patches"):
        replace(FRONT, second=34).restore(front.state(), SHAPE)
    with pytest.raises(ValueError, match=r"no centre of shape \(24, 2, 4\)"):
        FRONT.restore(front.state(), (3, 16, 32))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="second is 7; it must be an even whole number"):
        Patches(second=7)
    with pytest.raises(ValueError, match="images are 28×28; sides must be multiples of 8"):
        Patches().features((1, 28, 28))
