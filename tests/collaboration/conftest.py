"""What the tests of the collaboration share: a small problem that one participant alone learns badly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.collaboration import Problem


@pytest.fixture(scope="session")
def small() -> Problem:
    """Five clusters in 20 dimensions; ten records of a participant are too few, all of them are enough."""
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(5, 20, generator=generator)
    labels = torch.randint(5, (1200,), generator=generator)
    inputs = centres[labels] + 1.3 * torch.randn(1200, 20, generator=generator)
    return Problem(
        name="clusters",
        inputs=inputs[:600],
        labels=labels[:600],
        test_inputs=inputs[600:],
        test_labels=labels[600:],
        build=lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5)),
    )
