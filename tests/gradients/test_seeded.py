"""Comparisons of the first batch seed what is random, and leave everything random as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tacit.gradients.guard.standing_still import seeded


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002


def test_draws_begin_with_the_seed_and_go_on_as_before_afterwards() -> None:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    expected = draw()
    random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])  # noqa: NPY002
    with seeded(3):
        first = draw()
    with seeded(3):
        again = draw()
    assert again == first
    assert draw() == expected


def test_devices_that_are_not_in_use_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch keeps a device's seed until it is first used: its dropout would repeat from run to run."""
    assert not torch.cuda.is_initialized()
    for module in (torch.cuda, torch.xpu):
        monkeypatch.setattr(module, "manual_seed_all", lambda seed: pytest.fail("a device was seeded"))
    with seeded(0):
        assert torch.initial_seed() == 0
