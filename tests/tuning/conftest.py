"""What the tests of tuning share: a base of one step, and trials that do just that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tacit.ledger import Everyone, GaussianSum, Header, Ledger, Step
from tacit.randomness import SeededSource

STEP = Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=4.0),))
BASE = ((STEP, 2),)


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def seeded() -> SeededSource:
    return SeededSource(5)


@pytest.fixture
def ledger() -> Ledger:
    """One that a seeded source may write to."""
    return Ledger(Header(secure_randomness=False))


@pytest.fixture
def base() -> Any:
    return BASE


@pytest.fixture
def step() -> Step:
    return STEP
