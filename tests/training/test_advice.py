"""Advice before training: warnings with a reason and a remedy, from public numbers only."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import tacit
from tacit.accounting.advice import budget_advice
from tacit.training.advice import data_advice

DATA = TensorDataset(torch.zeros(60, 4), torch.arange(60) % 3)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": tacit.Budget(2.0, 0.05)}, ["delta is 0.05 with 60 records", "for example 0.002"]),
        ({"budget": tacit.Budget(12.0, 1e-3)}, ["epsilon is 12, above 10", "Take at most 10"]),
        ({"clipping": 500.0}, ["the clip norm of gradients is 500; hardly any gradient", "Begin with 1.0"]),
        ({"clipping": 1e-4}, ["the clip norm of gradients is 0.0001; nearly every gradient"]),
        ({"clipping": tacit.PerLayer(each=500.0)}, ["hardly any gradient is shortened"]),
        ({"noise_multiplier": 200.0}, ["times as long as the longest gradient", "Choose lots of", "15 parameters"]),
        (
            {"dataset": Subset(DATA, [0, 1, 1, *range(57)])},
            ["the data set lists some records more than once", "users="],
        ),
    ],
)
def test_a_setting_that_will_disappoint_is_reported_with_a_remedy(
    make: Any, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: list[str]
) -> None:
    _, _, run = make(**settings)
    (said,) = warnings(caplog)
    assert all(word in said for word in words) and said.endswith(".")
    run.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": tacit.Budget(2.0, 1e-3)},
        {"budget": tacit.Budget(10.0, 1e-3)},
        {"clipping": tacit.Automatic()},
        {"clipping": tacit.Adaptive(count_noise_std=5.0)},
        {"clipping": tacit.Joint({"weight": 1.0, "bias": 2.0}, 0.5)},
        {"dataset": Subset(DATA, list(range(20, 50)))},
        {"users": [0, 1, 1, *range(57)], "examples_per_user": 2, "dataset": Subset(DATA, [0, 1, 1, *range(57)])},
    ],
)
def test_ordinary_settings_are_not_commented_on(
    make: Any, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    make(**settings)[2].close()
    assert not warnings(caplog)


def test_the_advice_for_a_large_model_with_a_small_lot_names_the_lot_size(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 1000), nn.Linear(1000, 200), nn.Linear(200, 3))
    make(model, lot_size=12)[2].close()
    (said,) = warnings(caplog)
    assert "the noise of a step is 38 times as long" in said and "Choose lots of 100 records or more" in said


def test_correlated_noise_is_judged_by_what_later_steps_leave_of_it(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The same fresh noise, with and without most of it taken back over four hundred steps."""
    given = {"noise_multiplier": 80.0, "lot_size": 12, "steps": 400, "epochs": None}
    make(**given, noise=tacit.mechanisms.SparseInverse(), sampling="cyclic")[2].close()
    assert not warnings(caplog)
    make(**given)[2].close()
    assert "times as long as the longest gradient" in warnings(caplog)[0]


@pytest.mark.parametrize(
    ("dataset", "repeated"),
    [
        (Subset(Subset(DATA, [0, 1, 2, 3]), [0, 0, 3]), 1),
        (Subset(Subset(DATA, [5, 5, 6]), [0, 2]), 0),
        (Subset(Subset(DATA, [5, 5, 6]), [0, 1]), 1),
        (Subset(DATA, torch.tensor([1, 2, 1])), 1),
        (Subset(DATA, [0, -60]), 1),
        (ConcatDataset([DATA, DATA]), 60),
        (ConcatDataset([DATA, Subset(DATA, [3])]), 1),
        (ConcatDataset([DATA, TensorDataset(torch.zeros(60, 4))]), 0),
        (DATA, 0),
    ],
)
def test_repeated_records_are_found_through_subsets_and_not_counted(dataset: Any, repeated: int) -> None:
    found = data_advice(dataset)
    assert [sentence.partition(";")[0] for sentence in found] == (
        ["the data set lists some records more than once"] if repeated else []
    )
    assert not any(digit in sentence for sentence in found for digit in "0123456789")


def test_a_budget_is_judged_by_the_number_of_records() -> None:
    assert not budget_advice(epsilon=1.0, delta=1e-5, records=99_999)
    assert len(budget_advice(epsilon=1.0, delta=1e-5, records=100_000)) == 1
    assert "e^1000" in budget_advice(epsilon=1000.0, delta=1e-9, records=10)[0]
