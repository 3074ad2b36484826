"""Private PCA against NumPy, and against neighbours."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacit.accounting import Filter, account
from tacit.features import Pca, private_pca
from tacit.features import pca as module
from tacit.features.pca import private_moments
from tacit.ledger import Budget, BudgetExceeded, Everyone, GaussianSum, Header, Ledger, Poisson, Step
from tacit.randomness import SecureSource

SOURCE = SecureSource()
QUIET = 1e-9
any_float = st.floats(allow_nan=True, allow_infinity=True)


def moments(rows: Tensor, **settings: Any) -> Tensor:
    settings = {
        "noise_multiplier": QUIET,
        "ledger": Ledger(Header(secure_randomness=False)),
        "source": SOURCE,
    } | settings
    return private_moments(rows, **settings)


@pytest.fixture
def rows() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    scales = torch.linspace(3.0, 0.1, 12)
    return torch.randn(400, 12, generator=generator) * scales + 0.5


def test_without_noise_it_is_numpy(rows: Tensor) -> None:
    units = rows.numpy().astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(units.T @ units)
    expected = vectors[:, np.argsort(values)[::-1][:4]].T
    found = private_pca(
        rows, 4, noise_multiplier=QUIET, ledger=Ledger(Header(secure_randomness=False)), source=SOURCE
    ).numpy()
    assert found.shape == (4, 12)
    assert np.abs(np.sum(found * expected, axis=1)) == pytest.approx(np.ones(4), abs=1e-6)
    assert np.allclose(found @ found.T, np.eye(4), atol=1e-9)


def test_several_pieces_add_up(rows: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = moments(rows)
    monkeypatch.setattr(module, "pieces", lambda chosen: torch.split(chosen, 7))
    assert torch.allclose(moments(rows), whole, atol=1e-6)


def test_the_noise_has_the_stated_size_and_is_symmetric() -> None:
    nobody = torch.zeros(3, 60)
    noise = [moments(nobody, noise_multiplier=5.0) for _ in range(20)]
    for each in noise:
        assert torch.equal(each, each.T)
    diagonal = torch.cat([each.diagonal() for each in noise])
    beside = torch.cat([each[tuple(torch.triu_indices(60, 60, 1))] for each in noise])
    assert diagonal.std().item() == pytest.approx(5.0, rel=0.1)  # 1,200 values: 0.1 is five standard deviations
    assert beside.std().item() == pytest.approx(5.0 / math.sqrt(2), rel=0.02)  # 35,400 values
    assert abs(beside.mean().item()) < 0.1
    assert not torch.equal(noise[0], noise[1])


@given(st.lists(any_float, min_size=1, max_size=6))
def test_a_records_contribution_has_norm_at_most_one_in_exact_arithmetic(row: list[float]) -> None:
    unit = module._units(torch.tensor([row], dtype=torch.float64))[0].tolist()
    square = sum(Fraction(value) ** 2 for value in unit)
    assert square <= 1  # and |u(a)| = |a|²
    if any(row) and all(map(math.isfinite, row)):
        assert square > Fraction(999, 1000)  # normalised, not only clipped


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_differ_by_at_most_one_in_the_vector_that_is_released(
    rows: Tensor, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Tensor] = []
    real = module.SumQuery.release

    def spy(query: Any, receipt: Any, total: Tensor, source: Any) -> Tensor:
        released.append(total.clone())
        return real(query, receipt, total, source)

    monkeypatch.setattr(module.SumQuery, "release", spy)
    extra = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (3 * seed - 6)
    moments(rows)
    moments(torch.cat([rows, extra]))
    assert released[0].shape == (12 * 13 // 2,)
    distance = (released[0] - released[1]).norm().item()
    assert distance <= 1 + 1e-12
    assert distance > 1 - 1e-6  # the bound is not loose either


def test_rows_of_nothing_or_nonsense_add_nothing(rows: Tensor) -> None:
    bad = torch.zeros(4, 12)
    bad[1, 3], bad[2, 5], bad[3, 0] = math.nan, math.inf, -math.inf
    bad[1, 4] = 7.0
    assert torch.allclose(moments(torch.cat([rows, bad])), moments(rows), atol=1e-6)
    assert torch.allclose(moments(bad), torch.zeros(12, 12, dtype=torch.float64), atol=1e-6)


def test_rows_far_too_large_or_small_keep_their_direction() -> None:
    for size in (1e-300, 1e300):
        found = moments(torch.tensor([[3 * size, 4 * size]], dtype=torch.float64))
        assert found.flatten().tolist() == pytest.approx([0.36, 0.48, 0.48, 0.64])


def test_the_ledger_says_what_was_done(rows: Tensor) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    query = GaussianSum(group="pca", clip_norm=1.0, noise_std=4.0)
    private_pca(rows, 3, noise_multiplier=4.0, ledger=ledger, source=SOURCE)
    private_pca(rows, 3, noise_multiplier=4.0, ledger=ledger, source=SOURCE, sampling_rate=0.25)
    assert ledger.entries == ((Step(Everyone(), (query,)), 1), (Step(Poisson(rate=0.25, records=400), (query,)), 1))
    assert account(ledger, delta=1e-5).epsilon > account(Ledger(Header(secure_randomness=False)), delta=1e-5).epsilon


def test_a_sample_takes_about_its_share(rows: Tensor) -> None:
    taken = [moments(rows, sampling_rate=0.25).trace().item() for _ in range(30)]
    assert np.mean(taken) == pytest.approx(100, abs=8)  # 30 binomials of standard deviation 8.7: five deviations
    assert np.std(taken) > 3


def test_a_refused_release_learns_nothing(rows: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    ledger.guard(Filter(Budget(epsilon=0.01, delta=1e-5)))
    looked: list[int] = []
    monkeypatch.setattr(module, "_units", lambda values: looked.append(1))
    with pytest.raises(BudgetExceeded):
        private_pca(rows, 3, noise_multiplier=1.0, ledger=ledger, source=SOURCE)
    assert not looked and len(ledger) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise"),
        ({"noise_multiplier": math.nan}, "noise"),
        ({"sampling_rate": 0.0}, "sampling rate is 0.0"),
        ({"sampling_rate": 1.5}, "sampling rate is 1.5"),
        ({"dimensions": 0}, "dimensions is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str, rows: Tensor) -> None:
    with pytest.raises(ValueError, match=message):
        Pca(**settings)
    ledger = Ledger(Header(secure_randomness=False))
    chosen: dict[str, Any] = {"dimensions": 2, "noise_multiplier": 1.0} | settings
    with pytest.raises(ValueError, match=message):
        private_pca(rows, ledger=ledger, source=SOURCE, **chosen)
    assert len(ledger) == 0


def test_more_directions_than_columns_are_refused_before_anything_is_charged(rows: Tensor) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    with pytest.raises(ValueError, match="dimensions is 13; the images have only 12"):
        private_pca(rows, 13, noise_multiplier=1.0, ledger=ledger, source=SOURCE)
    with pytest.raises(ValueError, match="one record in each row"):
        private_pca(rows[:0], 2, noise_multiplier=1.0, ledger=ledger, source=SOURCE)
    assert len(ledger) == 0
