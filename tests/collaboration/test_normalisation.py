"""Private normalisation: what is released, what it costs, and that it comes out of the same budget."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tacit.accounting import account
from tacit.collaboration import LocalDpSgd, Problem, Settings, SparseVectorPrivacy, mechanism, simulate
from tacit.collaboration.normalisation import Scale, charges, moments, scale
from tacit.collaboration.simulation import _World
from tacit.ledger import Header, Ledger
from tacit.randomness import SecureSource, SeededSource

DELTA = 1e-5
PRIVACY = LocalDpSgd(epsilon=4.0, delta=DELTA, lots_per_epoch=2, normalisation=5.0)
SETTINGS = Settings(participants=4, epochs=3, upload=0.3, share=0.2, privacy=PRIVACY, seed=3)


def images(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    picture = torch.rand(count, 2, 6, 6, generator=generator)
    return torch.stack([picture[:, 0] * 0.5, picture[:, 1] * 2 - 1], dim=1)


@pytest.fixture
def raw() -> Problem:
    inputs, labels = images(600), torch.arange(600) % 5
    return Problem(
        name="raw",
        inputs=inputs[:400],
        labels=labels[:400],
        test_inputs=inputs[400:],
        test_labels=labels[400:],
        build=lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 5)),
        raw=True,
    )


def test_mean_and_standard_deviation_are_those_of_the_inputs() -> None:
    inputs = images(500)
    ledger = Ledger()
    found = scale([moments(inputs, noise_multiplier=1e-3, ledger=ledger, source=SecureSource())])
    assert found.mean == pytest.approx(inputs.mean(dim=(0, 2, 3)).tolist(), abs=1e-3)
    assert found.std == pytest.approx(inputs.std(dim=(0, 2, 3)).tolist(), abs=1e-3)
    normal = found.apply(inputs)
    assert normal.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0], abs=5e-3)
    assert normal.std(dim=(0, 2, 3)).tolist() == pytest.approx([1, 1], abs=5e-3)
    assert ledger.entries == tuple((step, 1) for step in charges(1e-3, 500))


def test_the_noise_is_what_was_recorded() -> None:
    """Its standard deviation in each number: z · √(2 channels) / n."""
    inputs, z, channels = torch.zeros(50, 2, 4, 4), 3.0, 2
    drawn = torch.stack(
        [moments(inputs, noise_multiplier=z, ledger=Ledger(), source=SecureSource()) for _ in range(500)]
    )
    expected = z * math.sqrt(2 * channels) / 50
    assert drawn.std().item() == pytest.approx(expected, rel=0.1)  # of 2,000 numbers: six standard errors


def test_one_record_moves_the_sum_by_no_more_than_is_paid_for() -> None:
    """The most extreme inputs, and ones that break the rules, against none: by exact sums without noise."""

    def total(inputs: torch.Tensor) -> torch.Tensor:
        found = moments(inputs, noise_multiplier=1e-9, ledger=Ledger(), source=SecureSource())
        return found * len(inputs) / math.sqrt(2 * 2)

    for value in (1.0, -1.0, 50.0, math.nan, math.inf):
        record = torch.full((1, 2, 4, 4), value)
        moved = (total(torch.cat([images(9)[:, :, :4, :4], record])) - total(images(9)[:, :, :4, :4])).norm().item()
        assert moved <= 1 + 1e-5
        if abs(value) == 1:
            assert moved == pytest.approx(1.0, abs=1e-5)  # the bound is attained


def test_noise_that_leaves_no_variance_is_survived() -> None:
    found = scale([torch.tensor([0.9, 0.5])])  # a mean square below the squared mean
    assert found == Scale(mean=(pytest.approx(0.9),), std=(pytest.approx(0.05),))
    assert scale([torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.7])]).mean == (0.5,)


def test_the_budget_pays_for_it(raw: Problem) -> None:
    records = 80
    free = replace(PRIVACY, normalisation=None)
    with_it, without = (p.noise_multiplier(records=records, epochs=3) for p in (PRIVACY, free))
    assert with_it > without
    world = _World(raw, SETTINGS, None)
    for _ in range(SETTINGS.epochs):
        list(world.epoch())
    claim = world.claim()
    assert claim is not None and 3.9 < claim.whole.epsilon <= 4.0
    for ledger in world._ledgers.values():
        (first, once), (_, steps) = ledger.entries
        assert (first, once) == (charges(5.0, records)[0], 1) and steps == 6
        assert account(ledger, delta=DELTA).epsilon <= 4.0
    assert len(world._ledgers) == 4
    assert any("released privately" in note for note in world.notes())
    inputs = world._problem.inputs
    assert abs(inputs.mean().item()) < 0.5 and 0.5 < inputs.std().item() < 2


def test_a_simulation_is_repeatable(raw: Problem) -> None:
    one, other = (simulate(raw, SETTINGS, baselines=False).history for _ in range(2))
    assert one == other


def test_a_ledger_that_promises_secure_randomness_takes_no_seed() -> None:
    with pytest.raises(ValueError, match="secure"):
        moments(images(10), noise_multiplier=1.0, ledger=Ledger(Header()), source=SeededSource(1))


def test_settings_that_contradict_private_normalisation_are_refused(raw: Problem, small: Problem) -> None:
    with pytest.raises(ValueError, match="inputs are raw; private normalisation needs"):
        simulate(raw, replace(SETTINGS, privacy=replace(PRIVACY, normalisation=None)))
    with pytest.raises(ValueError, match="inputs are normalised already"):
        simulate(small, SETTINGS)
    with pytest.raises(ValueError, match="inputs are raw"):
        simulate(raw, replace(SETTINGS, privacy=SparseVectorPrivacy(epsilon_per_epoch=1.0)))
    for name in ("gaussian", "sparse-vector"):
        with pytest.raises(ValueError, match="private normalisation protects examples, as dp-sgd does"):
            mechanism(name, epsilon=1.0, settings=SETTINGS, normalisation=5.0)
