"""What uploads cost, that it is charged before anything is uploaded, and that the noise is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit.accounting import account
from tacit.collaboration import (
    AtRandom,
    GaussianPrivacy,
    GaussianUploads,
    LocalDpSgd,
    Problem,
    Settings,
    SparseVectorPrivacy,
    SparseVectorUploads,
    compare,
    mechanism,
    simulate,
)
from tacit.collaboration.privacy import claim, whole_data_set
from tacit.ledger import BudgetExceeded, GaussianSum, Header, Ledger, SparseVector, Step
from tacit.mechanisms import SparseVectorQuery, SumQuery
from tacit.randomness import SecureSource, SeededSource

SOURCE = SecureSource()
QUERY = SparseVectorQuery(group="upload", epsilon=18.0, releases=5, bound=0.1, threshold=0.01)
CHANGE = np.linspace(-0.2, 0.2, 100, dtype=np.float32)


def test_every_sparse_vector_upload_is_charged_to_the_ledger() -> None:
    ledger = Ledger(whole_data_set(secure=True))
    uploads = SparseVectorUploads(QUERY, ledger=ledger, source=SOURCE)
    for count in (1, 2, 3):
        indices, values = uploads(CHANGE)
        assert len(ledger) == count
        assert 1 <= indices.size <= 5 and (np.diff(indices) > 0).all()
        assert values.dtype == np.float32 and np.abs(values).max() <= 0.1
    ((step, count),) = ledger.entries
    (event,) = step.queries
    assert count == 3 and isinstance(event, SparseVector) and event.releases == 5
    found = claim([ledger], delta=1e-9, query=QUERY)
    assert found.whole.epsilon == pytest.approx(3 * 5 / 9 * 18.0, rel=1e-6)  # whole model, whole training
    assert (found.whole.unit, found.whole.adjacency) == ("participant", "replace-one")
    assert found.per_parameter == pytest.approx(18.0 / 5)  # what the paper's figure has on its axis
    assert "whole training: (ε = 30.0" in str(found)
    assert "as the paper counts (not a guarantee): ε/c = 3.60" in str(found)


def test_a_refused_charge_uploads_nothing() -> None:
    ledger = Ledger(whole_data_set(secure=True))
    drawn = []

    def full(book: Ledger, step: Step) -> None:
        raise BudgetExceeded("full.")

    ledger.guard(full)
    query = SumQuery(group="upload", clip_norm=1.0, noise_std=1.0)
    for uploads in (
        SparseVectorUploads(QUERY, ledger=ledger, source=SOURCE),
        GaussianUploads(query, AtRandom(fraction=0.1), bound=1.0, ledger=ledger, source=SOURCE),
    ):
        with pytest.raises(BudgetExceeded):
            drawn.append(uploads(CHANGE))
    assert not drawn and len(ledger) == 0


def test_the_claim_is_of_the_one_who_spent_most() -> None:
    thrifty, spender = (Ledger(whole_data_set(secure=True)) for _ in range(2))
    for ledger, times in ((thrifty, 1), (spender, 4)):
        uploads = SparseVectorUploads(QUERY, ledger=ledger, source=SOURCE)
        for _ in range(times):
            uploads(CHANGE)
    assert claim([thrifty, spender], delta=1e-9).whole.epsilon == pytest.approx(40.0, rel=1e-6)
    with pytest.raises(ValueError, match="no ledgers"):
        claim([], delta=1e-5)


def test_values_released_by_sparse_vector_are_noisy() -> None:
    """At this ε the noise is far larger than γ, so that most of what is uploaded lies on the bounds."""
    query = replace(QUERY, epsilon=0.01, releases=50)
    uploads = SparseVectorUploads(query, ledger=Ledger(whole_data_set(secure=True)), source=SOURCE)
    _, values = uploads(np.full(100, 0.05, dtype=np.float32))
    assert np.isclose(np.abs(values), 0.1).mean() > 0.9
    assert 0 < (values > 0).sum() < values.size  # and half of the signs are wrong


def test_gaussian_uploads_are_one_clipped_vector_with_noise() -> None:
    ledger = Ledger(whole_data_set(secure=True))
    query = SumQuery(group="upload", clip_norm=0.5, noise_std=0.2)
    uploads = GaussianUploads(query, AtRandom(fraction=1.0), bound=10.0, ledger=ledger, source=SOURCE)
    change = np.full(4000, 1.0, dtype=np.float32)
    indices, values = uploads(change)
    assert indices is None and values.size == 4000
    assert float(values.mean()) == pytest.approx(0.5 / 4000**0.5, abs=0.02)
    assert float(values.std()) == pytest.approx(0.2, rel=0.1)
    ((step, _),) = ledger.entries
    assert step.queries == (GaussianSum(group="upload", clip_norm=0.5, noise_std=0.2),)
    some, _ = GaussianUploads(query, AtRandom(fraction=0.1), bound=1.0, ledger=ledger, source=SOURCE)(change)
    assert some.size == 400 and len(ledger) == 2


def test_gaussian_uploads_protect_a_participant_and_no_less() -> None:
    query = SumQuery(group="upload", clip_norm=0.5, noise_std=0.2)
    with pytest.raises(ValueError, match="the ledger's unit is example"):
        GaussianUploads(query, AtRandom(fraction=1.0), bound=1.0, ledger=Ledger(Header()), source=SOURCE)


def test_seeded_noise_needs_a_ledger_that_says_so() -> None:
    with pytest.raises(ValueError, match="promises secure randomness"):
        SparseVectorUploads(QUERY, ledger=Ledger(whole_data_set(secure=True)), source=SeededSource(1))
    ledger = Ledger(whole_data_set(secure=False))
    SparseVectorUploads(QUERY, ledger=ledger, source=SeededSource(1))(CHANGE)
    assert "NOT PRIVATE" in str(claim([ledger], delta=1e-5))


def test_the_noise_for_a_budget() -> None:
    """Gaussian uploads against the closed form of the Gaussian mechanism; DP-SGD against its own ledger."""
    privacy = GaussianPrivacy(epsilon=2.0, delta=1e-5, clip_norm=1.0)
    ledger = Ledger(whole_data_set(secure=True))
    std = privacy.noise_multiplier(epochs=5)
    for _ in range(5):
        query = SumQuery(group="upload", clip_norm=1.0, noise_std=std)
        GaussianUploads(query, AtRandom(fraction=1.0), bound=1.0, ledger=ledger, source=SOURCE)(CHANGE)
    found = account(ledger, delta=1e-5).epsilon
    assert 1.99 < found <= 2.0
    from scipy.stats import norm

    mu = 2 * 5**0.5 / std  # replace-one: a change of 2 S five times
    delta = norm.cdf(-found / mu + mu / 2) - np.exp(found) * norm.cdf(-found / mu - mu / 2)
    assert delta <= 1e-5 * (1 + 1e-6)


def test_local_dp_sgd_is_charged_for_each_lot_and_stays_within_its_budget(small: Problem) -> None:
    privacy = LocalDpSgd(epsilon=3.0, delta=1e-5, lots_per_epoch=2)
    z = privacy.noise_multiplier(records=50, epochs=3)
    model, ledger = nn.Linear(20, 5), Ledger(Header())
    train = privacy.trainer(
        model,
        TensorDataset(small.inputs[:50], small.labels[:50]),
        epochs=3,
        noise_multiplier=z,
        ledger=ledger,
        seed=None,
    )
    for epoch in range(3):
        before = model.weight.detach().clone()
        train()
        assert len(ledger) == 2 * (epoch + 1)
        assert not torch.equal(before, model.weight)
    found = claim([ledger], delta=1e-5).whole
    assert 2.9 < found.epsilon <= 3.0
    assert (found.unit, found.adjacency, found.sampling) == ("example", "add/remove", "Poisson")


SETTINGS = Settings(participants=6, epochs=3, upload=0.5, share=0.1, learning_rate=0.1, seed=4)


@pytest.mark.parametrize("name", ["sparse-vector", "gaussian", "dp-sgd"])
def test_all_mechanisms_cost_what_was_asked(small: Problem, name: str) -> None:
    settings = replace(SETTINGS, privacy=mechanism(name, epsilon=7.0, settings=SETTINGS))
    result = simulate(small, settings, baselines=False)
    assert result.claim is not None
    assert 6.9 < result.claim.whole.epsilon <= 7.0
    assert result.claim.whole.unit == ("example" if name == "dp-sgd" else "participant")
    assert (result.claim.per_parameter is None) == (name != "sparse-vector")
    assert not result.claim.whole.secure_randomness and any("seed" in note for note in result.notes)


def test_the_papers_epsilon_for_an_epoch(small: Problem) -> None:
    settings = replace(SETTINGS, privacy=SparseVectorPrivacy(epsilon_per_epoch=90.0))
    result = simulate(small, settings, baselines=False)
    size = sum(p.numel() for p in small.build().parameters())
    assert result.claim is not None
    assert result.claim.whole.epsilon == pytest.approx(3 * 5 / 9 * 90.0, rel=1e-6)
    assert result.claim.per_parameter == pytest.approx(90.0 / (size // 2))


def test_private_variants_learn_more_with_more_epsilon(small: Problem) -> None:
    settings = replace(SETTINGS, epochs=6, upload=1.0)
    rows = compare(small, settings, [0.5, 50.0], mechanisms=["dp-sgd"])
    assert rows[1].test_accuracy > rows[0].test_accuracy + 0.1
    assert rows[1].epsilon > 40 and rows[1].unit == "example"
    rows = compare(small, settings, [10.0, 1e6], mechanisms=["sparse-vector"])
    assert rows[1].test_accuracy > rows[0].test_accuracy + 0.1


def test_mechanisms_are_checked() -> None:
    with pytest.raises(ValueError, match="mechanism is 'none'"):
        mechanism("none", epsilon=1.0, settings=SETTINGS)
    with pytest.raises(ValueError, match="clip_norm is for"):
        mechanism("sparse-vector", epsilon=1.0, settings=SETTINGS, clip_norm=1.0)
    with pytest.raises(ValueError, match="lots_per_epoch is 99"):
        LocalDpSgd(epsilon=1.0, delta=1e-5, lots_per_epoch=99).lot_size(50)
