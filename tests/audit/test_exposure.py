"""Exposure of secrets in a language model: without noise they are known, with noise they are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.audit import Setting, language_run
from tacit.audit.exposure import ByteModel, encoded, exposures
from tacit.mechanisms import lattice


def test_exposure_is_bits_minus_the_logarithm_of_the_rank() -> None:
    losses = np.array([[0.0, 1, 2, 3], [2.5, 1, 2, 3], [4.0, 1, 2, 3], [1.0, 1, 1, 1]])
    assert exposures(losses).tolist() == [2.0, pytest.approx(2 - np.log2(3)), 0.0, 0.0]


def test_a_lines_loss_is_the_sum_over_its_symbols_alone() -> None:
    model = ByteModel()
    short, long = encoded(["to be"], 5), encoded(["to be"], 12)
    assert torch.allclose(model.losses(short), model.losses(long), rtol=1e-5)
    scores = model(short)
    assert scores.shape == (1, 5, 128)
    by_hand = -sum(torch.log_softmax(scores[0, place], 0)[ord(letter)] for place, letter in enumerate("to be"))
    assert model.losses(short)[0].item() == pytest.approx(float(by_hand.detach()), rel=1e-5)


def test_a_model_predicts_a_symbol_from_those_before_it_alone() -> None:
    model = ByteModel()
    first, other = model(encoded(["king lear"], 9)), model(encoded(["king john"], 9))
    assert torch.equal(first[0, :6], other[0, :6]) and not torch.equal(first[0, 6:], other[0, 6:])


def test_secrets_are_exposed_without_noise_and_the_claim_is_then_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    setting = Setting(records=60, lot_size=60, steps=30, noise_multiplier=40.0)
    private = language_run(setting, canaries=40, candidates=50, learning_rate=1.0, seed=1)
    assert not private.violated and np.mean(private.inside) < 3
    real = lattice.add_gaussian_
    monkeypatch.setattr(lattice, "add_gaussian_", lambda pairs, source: real([(t, s * 1e-3) for t, s in pairs], source))
    torch.manual_seed(0)
    broken = language_run(setting, canaries=40, candidates=50, learning_rate=1.0, seed=1)
    assert broken.violated and "VIOLATED" in str(broken)
    assert np.mean(broken.inside) > 5 > 3 > np.mean(broken.outside)
    assert broken.facts()["exposure_most_possible"] == pytest.approx(np.log2(50))


def test_the_share_that_dp_allows_falls_with_the_exposure() -> None:
    torch.set_num_threads(1)
    found = language_run(Setting(records=20, lot_size=20, noise_multiplier=5.0), canaries=10, candidates=8, seed=2)
    assert found.allowed(0.0) == 1.0
    assert found.allowed(20.0) == pytest.approx(np.exp(found.claim.epsilon) * 2.0**-20 + 1e-5)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="canaries is 30"):
        language_run(Setting(records=20, lot_size=20), canaries=30)
    with pytest.raises(ValueError, match="there are 1 lines"):
        language_run(Setting(records=20, lot_size=20), canaries=10, lines=["one"])
