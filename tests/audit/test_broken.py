"""Broken mechanisms are caught by one run with canaries, and sound ones never are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tacit.audit import Setting, one_run
from tacit.mechanisms import groups, lattice
from tacit.sampling import samplers

SAMPLED = Setting(records=4000, lot_size=1000, steps=40, noise_multiplier=2.2)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    real = lattice.add_gaussian_
    patch.setattr(lattice, "add_gaussian_", lambda pairs, source: real([(t, s / 2) for t, s in pairs], source))


def everyone_in_every_lot(patch: pytest.MonkeyPatch) -> None:
    real = samplers.PoissonSampler._choose
    patch.setattr(samplers.PoissonSampler, "_choose", lambda self, rate: real(self, 1.0))


def twice_the_sampling_rate(patch: pytest.MonkeyPatch) -> None:
    real = samplers.PoissonSampler._choose
    patch.setattr(samplers.PoissonSampler, "_choose", lambda self, rate: real(self, min(1.0, 2 * rate)))


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    def weights(self: Any, norms: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(norms, dtype=torch.float32)

    patch.setattr(groups.Clipping, "weights", weights)


@pytest.mark.parametrize("broken", [half_the_noise, everyone_in_every_lot, twice_the_sampling_rate, no_clipping])
def test_one_run_catches_a_broken_mechanism(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    found = one_run(SAMPLED, seed=1)
    assert found.violated and "VIOLATED" in str(found)


def test_one_run_leaves_the_sound_mechanism_alone() -> None:
    found = one_run(SAMPLED, seed=1)
    assert not found.violated and found.tightness > 0.6


@pytest.mark.parametrize("broken", [half_the_noise, no_clipping])
def test_the_curve_is_refuted_without_independent_noise(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that assumes nothing about independence catches gross errors by itself."""
    setting = Setting(records=4000, lot_size=4000, noise_multiplier=1.08)
    assert (one_run(setting, seed=2).epsilon_gaussian or 0) > 1.5
    broken(monkeypatch)
    found = one_run(setting, seed=2)
    assert (found.epsilon_gaussian or 0) > found.claim.epsilon


MECHANISMS = [
    Setting(records=30_000, lot_size=30_000, noise_multiplier=3.73),  # ε = 1
    Setting(records=20_000, lot_size=20_000, noise_multiplier=1.08),  # ε = 4
    Setting(records=20_000, lot_size=20_000, noise_multiplier=0.6),  # ε = 8
    Setting(records=10_000, lot_size=2_500, steps=60, noise_multiplier=2.6),  # sampled, ε = 4
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", MECHANISMS)
def test_in_20_seeds_the_audit_is_60_percent_of_the_claim_and_never_above(setting: Setting) -> None:
    found = [one_run(setting, seed=100 + seed) for seed in range(20)]
    assert not any(audit.violated for audit in found)
    assert min(audit.tightness for audit in found) >= 0.6
