"""The private median of the gradients' norms, and private accuracies."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from tacit import gradients
from tacit.accounting import account
from tacit.ledger import BudgetExceeded, Header, Ledger
from tacit.randomness import SecureSource
from tacit.tuning import NormHistogram, PrivateAccuracy, median_gradient_norm
from tacit.tuning.histogram import gradient_norms


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(4)
    scales = torch.exp(torch.randn(800, 1, generator=generator))
    return TensorDataset(scales * torch.randn(800, 5, generator=generator), torch.arange(800) % 3)


@pytest.fixture
def model():
    return nn.Linear(5, 3)


def true_norms(model, data):
    """One example at a time, by plain autograd."""
    norms = []
    for x, y in data:
        grads = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in grads)))
    return np.array(norms)


@pytest.mark.parametrize("quantile", [0.5, 0.8])
@pytest.mark.parametrize("lot_size", [None, 400])
def test_it_is_near_the_true_quantile(model, data, quantile, lot_size):
    ledger = Ledger()
    z, rounds = 1.0, 10
    found = median_gradient_norm(
        model, data, ledger=ledger, low=1e-3, high=1e3, noise_multiplier=z, quantile=quantile, rounds=rounds,
        lot_size=lot_size, batch_size=100,
    )  # fmt: skip
    ranks = np.mean(true_norms(model, data) <= np.array([[found / 1.01], [found * 1.01]]), axis=1)
    # Seven standard deviations of a noisy count, in all rounds together, and of the sample.
    bound = max(quantile, 1 - quantile)
    slack = 7 * z * math.sqrt(rounds) * bound / (lot_size or 800) + (0 if lot_size is None else 7 * 0.5 / 20)
    assert ranks[0] - slack <= quantile <= ranks[1] + slack
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_whole_of_it_is_one_gaussian_sum(model, data):
    ledger = Ledger()
    median_gradient_norm(model, data, ledger=ledger, low=0.01, high=100.0, noise_multiplier=12.0, quantile=0.7)
    ((step, count),) = ledger.entries
    assert count == 1 and len(step.queries) == 8
    assert step.noise_multiplier == pytest.approx(12.0)
    assert {query.clip_norm for query in step.queries} == {0.7}
    assert account(ledger, delta=1e-5).epsilon < 0.5


def test_one_record_moves_every_count_by_at_most_the_clip_norm(model, data, monkeypatch):
    """The sums before noise, with and without one record, whatever its gradient: also one that is not finite."""
    seen = []

    def silent(sums, source):
        seen.append([float(total) for total, _ in sums])

    monkeypatch.setattr("tacit.mechanisms.lattice.add_gaussian_", silent)

    def counts(tensors):
        seen.clear()
        answer = median_gradient_norm(
            model, TensorDataset(*tensors), ledger=Ledger(), low=0.01, high=100.0, noise_multiplier=1.0, quantile=0.3
        )
        return np.array(seen).ravel(), answer

    x, y = data.tensors[0][:50], data.tensors[1][:50]
    with_all, answer = counts((x, y))
    assert len(with_all) == 8
    for extreme in (0.0, 1e30, math.nan, math.inf):
        more = torch.cat([x, torch.full((1, 5), extreme)]), torch.cat([y, y[:1]])
        changed, _ = counts(more)
        # Rounds are compared as far as both asked the same question.
        assert abs(changed[0] - with_all[0]) <= 0.7 * (1 + 1e-9)
        assert abs(changed[0] - with_all[0]) >= 0.3 * (1 - 1e-9)
    ranks = np.mean(true_norms(model, TensorDataset(x, y)) <= np.array([[answer / 1.03], [answer * 1.03]]), axis=1)
    assert ranks[0] <= 0.3 <= ranks[1] + 0.02


def test_recorded_before_anybody_is_drawn(model, data, monkeypatch):
    ledger = Ledger()

    def refuse(*_):
        raise BudgetExceeded("no")

    ledger.guard(refuse)
    monkeypatch.setattr(gradients, "record", None)
    with pytest.raises(BudgetExceeded):
        median_gradient_norm(model, data, ledger=ledger, low=0.1, high=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": 0.0}, "0 < low < high"),
        ({"low": 5.0}, "0 < low < high"),
        ({"quantile": 1.0}, "quantile is 1.0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"noise_multiplier": 0.0}, "noise standard deviation"),
        ({"ledger": Ledger(Header(unit="user"))}, "unit is 'user'"),
    ],
)
def test_bad_values(model, data, change, message):
    settings = {"ledger": Ledger(), "low": 0.1, "high": 1.0, "noise_multiplier": 1.0} | change
    with pytest.raises(ValueError, match=message):
        median_gradient_norm(model, data, **settings)


# -- accuracies --------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_that_a_forward_pass_writes_are_restored(data, fails):
    class Nosy(nn.Linear):
        def __init__(self):
            super().__init__(data.tensors[0].shape[1], 3)
            self.register_buffer("seen", torch.zeros(data.tensors[0].shape[1]))

        def forward(self, x):
            self.seen = x.data.mean(0) if not fails else x.data.new_ones(4)
            return super().forward(x) if not fails else super().forward(x[:, :-1])

    model, ledger = Nosy(), Ledger()
    with pytest.raises(RuntimeError, match="'seen' changed"):
        median_gradient_norm(model, data, ledger=ledger, low=0.1, high=10.0, noise_multiplier=5.0)
    assert not model.seen.any() and len(ledger) == 1


def test_private_accuracies_have_the_stated_noise():
    generator = torch.Generator().manual_seed(1)
    correct = torch.rand(500, 4, generator=generator) < torch.tensor([0.1, 0.5, 0.9, 1.0])
    accuracy = PrivateAccuracy(records=500, noise_multiplier=2.0, models=4)
    ledger = Ledger()
    errors = torch.stack([accuracy.release(correct, ledger=ledger) for _ in range(300)]) - correct.double().mean(0)
    std = 2.0 * math.sqrt(4) / (2 * 500)
    assert float(errors.std()) == pytest.approx(std, rel=0.15)  # 1200 values: 7 standard deviations
    assert float(errors.mean().abs()) < 7 * std / math.sqrt(1200)
    assert len(ledger) == 300 and ledger.entries[0][0] == accuracy.step()
    assert accuracy.step().noise_multiplier == pytest.approx(2.0)


def test_one_validation_record_moves_the_sum_by_at_most_the_clip_norm():
    accuracy = PrivateAccuracy(records=3, noise_multiplier=2.0, models=9)
    rows = torch.tensor([[True] * 9, [False] * 9, [True, False] * 4 + [True]]).double() - 0.5
    assert rows.norm(dim=1).max() <= accuracy.step().queries[0].clip_norm * (1 + 1e-12)


def test_bad_accuracies(seeded):
    with pytest.raises(ValueError, match="records is 0"):
        PrivateAccuracy(records=0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="noise_multiplier is 0"):
        PrivateAccuracy(records=5, noise_multiplier=0)
    accuracy = PrivateAccuracy(records=5, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=r"must be bool of shape \(5, 1\)"):
        accuracy.release(torch.zeros(5, 1), ledger=Ledger())
    with pytest.raises(ValueError, match="secure randomness"):
        accuracy.release(torch.zeros(5, 1, dtype=torch.bool), ledger=Ledger(), source=seeded)


def test_histogram_counts_each_record_once(model, data):
    edges = [0.25 * 2**place for place in range(8)]
    ledger, z = Ledger(), 3.0
    x, y = data.tensors
    asked = []

    def norms(chosen):
        asked.extend(chosen.tolist())
        return gradient_norms(model, x[chosen], y[chosen])

    counts = NormHistogram(noise_multiplier=z).release(norms, edges, records=800, ledger=ledger, source=SecureSource())
    truth, _ = np.histogram(np.clip(true_norms(model, data), edges[0], edges[-1] * 0.999), bins=edges)
    assert sorted(asked) == list(range(800))
    assert np.abs(np.array(counts) - truth).max() < 7 * z
    assert np.any(np.array(counts) != np.round(counts))  # noise was added
    ((step, count),) = ledger.entries
    assert count == 1 and step == NormHistogram(noise_multiplier=z).charge() and step.noise_multiplier == z


def test_a_norm_that_is_no_number_counts_once():
    found = torch.tensor([math.nan, math.inf, 0.0, 5.0])
    counts = NormHistogram(noise_multiplier=1e-3).release(
        lambda chosen: found[chosen], [1.0, 2.0, 3.0], records=4, ledger=Ledger(), source=SecureSource()
    )
    assert [round(count) for count in counts] == [1, 3]


def test_one_record_moves_the_histogram_by_one():
    rows = torch.linspace(0.1, 20, 50)

    def released(records):
        return NormHistogram(noise_multiplier=1e-6).release(
            lambda chosen: rows[chosen], [1, 2, 4, 8], records=records, ledger=Ledger(), source=SecureSource()
        )

    assert np.linalg.norm(np.array(released(50)) - released(49)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("edges", [[1.0], [1.0, 1.0], [2.0, 1.0], [0.0, math.inf]])
def test_bad_edges_cost_nothing(edges):
    ledger = Ledger()
    with pytest.raises(ValueError, match="edges are"):
        NormHistogram().release(torch.from_numpy, edges, records=3, ledger=ledger, source=SecureSource())
    assert not ledger.entries
