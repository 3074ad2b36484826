"""Made-up images that a small network can tell apart, and a recipe for them that takes a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tacit.data import Images
from tacit.features import Pca
from tacit.mechanisms import Flat
from tacit.recipes import Mlp, Recipe, Sgd, Tail


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made_up(records: int = 600, seed: int = 3) -> Images:
    """Three kinds of stripes, with noise on them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(records + 90) % 3
    patterns = torch.zeros(3, 1, 8, 8)
    patterns[0, :, ::2], patterns[1, :, :, ::2], patterns[2, :, :4] = 1, 1, 1
    noisy = patterns[labels] + 0.4 * torch.randn(len(labels), 1, 8, 8, generator=generator)
    pixels = (255 * noisy.clamp(0, 1)).to(torch.uint8)
    return Images(
        name="stripes",
        train=pixels[:records],
        train_labels=labels[:records],
        test=pixels[records:],
        test_labels=labels[records:],
        classes=3,
        source="made up",
        fingerprint="0" * 64,
    )


@pytest.fixture
def images() -> Images:
    return made_up()


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """A small recipe, any part of which can be changed."""
    small = Recipe(
        name="small",
        front=Pca(dimensions=6, noise_multiplier=20.0),
        model=Mlp(hidden=(16,)),
        lot_size=60,
        epochs=8,
        clipping=Flat(1.0),
        optimizer=Sgd(learning_rate=0.5, momentum=0.5),
        averaging=Tail(fraction=0.25),
    )

    def change(**settings: Any) -> Recipe:
        return replace(small, **settings)

    return change
