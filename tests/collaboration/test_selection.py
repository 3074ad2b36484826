"""Which changes are uploaded, and selective SGD, each against the obvious way to do it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from tacit.collaboration import AboveThreshold, AtRandom, Largest, SelectiveSGD
from tacit.collaboration.messages import portion
from tacit.collaboration.selection import at_random, largest
from tacit.randomness import SecureSource, SeededSource

SOURCE = SecureSource()
sizes = hnp.arrays(np.float32, st.integers(1, 400), elements=st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 3.5]))


@given(sizes, st.floats(0.001, 1.0))
def test_the_largest(values: np.ndarray, fraction: float) -> None:
    """Exactly so many, none left out larger than one taken, ties to the first; also where most values are equal."""
    count = portion(fraction, values.size)
    order = sorted(range(values.size), key=lambda place: (-values[place], place))
    assert largest(values, count).tolist() == sorted(order[:count])


@pytest.mark.parametrize("period", [32, 37, 1])
def test_the_largest_of_a_pattern_that_repeats(period: int) -> None:
    """A first look at every n-th value must not be fooled by values that repeat, whatever n is."""
    values = np.where(np.arange(40_000) % period == 0, 1.0, np.random.default_rng(1).random(40_000)).astype(np.float32)
    for count in (1, 40, 1_000, 4_000, 30_000):
        found = largest(values, count)
        assert found.size == count and (np.diff(found) > 0).all()
        left = np.delete(values, found)
        assert values[found].min() >= left.max()


def test_largest_is_by_size_not_sign() -> None:
    change = np.array([0.1, -5.0, 3.0, -0.2], dtype=np.float32)
    assert Largest(fraction=0.5).choose(change, SOURCE).tolist() == [1, 2]
    assert Largest(fraction=0.01).choose(change, SOURCE).tolist() == [1]
    assert Largest(fraction=1.0).choose(change, SOURCE) is None


def test_above_the_threshold_and_no_more_than_the_fraction() -> None:
    change = np.array([0.1, -5.0, 3.0, -0.2, 1.0, 0.0, 0.0, 0.0], dtype=np.float32)
    few = AboveThreshold(fraction=1.0, threshold=1.0).choose(change, SOURCE)
    assert few.tolist() == [1, 2, 4]
    counts = np.zeros(8)
    for _ in range(600):
        some = AboveThreshold(fraction=0.25, threshold=1.0).choose(change, SOURCE)
        assert some.size == 2
        counts[some] += 1
    assert counts[[0, 3, 5, 6, 7]].sum() == 0
    assert counts[[1, 2, 4]].min() > 320  # 400 expected, standard deviation 12
    assert AboveThreshold(fraction=0.5, threshold=9.0).choose(change, SOURCE).size == 0


def test_random_choice_does_not_look() -> None:
    one, other = (AtRandom(fraction=0.25).choose(values, SeededSource(5)) for values in (_ramp(), -(_ramp() ** 2)))
    assert one.tolist() == other.tolist()
    counts = np.zeros(12)
    for _ in range(400):
        counts[at_random(12, 3, SOURCE)] += 1
    assert counts.sum() == 1200 and counts.min() > 60 and counts.max() < 145  # 100 expected, standard deviation 8.7


def _ramp() -> np.ndarray:
    return np.arange(100, dtype=np.float32)


@pytest.mark.parametrize("fraction", [0.0, -1, 1.5, float("nan"), True, "0.1"])
def test_fractions_are_checked(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction is"):
        Largest(fraction=fraction)


def test_the_papers_counts() -> None:
    """θ_u of 140,106 parameters (section 6.4 lists them)."""
    assert [portion(fraction, 140_106) for fraction in (1, 0.1, 0.01, 0.001)] == [140_106, 14_010, 1_401, 140]
    assert portion(0.7, 10) == 7 and portion(0.29, 100) == 29  # although 0.29 · 100 < 29 in floating point


# -- selective SGD ---------------------------------------------------------------------------------------------------


def _network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 1.0])
def test_selective_sgd_is_the_naive_one(fraction: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator)
    model, naive = _network(), _network()
    optimizer = SelectiveSGD(model.parameters(), lr=0.3, fraction=fraction)
    total = sum(p.numel() for p in naive.parameters())
    for step in range(4):
        rows = slice(10 * step, 10 * step + 10)
        optimizer.zero_grad()
        _loss(model, x[rows], y[rows]).backward()
        optimizer.step()
        gradients = torch.autograd.grad(_loss(naive, x[rows], y[rows]), list(naive.parameters()))
        ranked = sorted((abs(float(g)), i, j) for i, many in enumerate(gradients) for j, g in enumerate(many.flatten()))
        for _, i, j in ranked[total - portion(fraction, total) :]:
            with torch.no_grad():
                list(naive.parameters())[i].view(-1)[j] -= 0.3 * gradients[i].flatten()[j]
        for ours, theirs in zip(model.parameters(), naive.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_selective_sgd_takes_a_closure_a_schedule_and_frozen_parameters() -> None:
    model = _network()
    model[0].weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = SelectiveSGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=1.0, fraction=0.5
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(model, torch.ones(2, 6), torch.tensor([0, 1]))
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert not moved[0] and any(moved[1:])
    schedule.step()
    after = [p.detach().clone() for p in model.parameters()]
    optimizer.step(closure)  # the learning rate is zero now
    assert all(torch.equal(old, new) for old, new in zip(after, model.parameters(), strict=True))


def test_selective_sgd_checks_its_settings() -> None:
    with pytest.raises(ValueError, match="lr is"):
        SelectiveSGD(_network().parameters(), lr=0.0, fraction=0.1)
    with pytest.raises(ValueError, match="fraction is"):
        SelectiveSGD(_network().parameters(), lr=0.1, fraction=2.0)
