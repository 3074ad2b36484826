"""Recipes: what they mean, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tacit.mechanisms import Flat, PerLayer
from tacit.recipes import Ema, Linear, Mlp, Recipe, Sgd, Tail
from tacit.recipes.averaging import Average
from tacit.recipes.outcome import described

Make = Callable[..., Recipe]


def test_the_learning_rate_falls_in_a_line_and_stays() -> None:
    sgd = Sgd(learning_rate=0.1, final_learning_rate=0.052, decay_epochs=10)
    assert [sgd.at(epoch) for epoch in (0, 2.5, 10, 400)] == pytest.approx([0.1, 0.088, 0.052, 0.052])
    assert Sgd(learning_rate=3.0).at(99) == 3.0


def averages(kind: Tail | Ema | None, weights: list[float]) -> list[float]:
    model = nn.Linear(1, 1, bias=False)
    average, found = Average(kind, model, len(weights)), []
    for step, weight in enumerate(weights, start=1):
        nn.init.constant_(model.weight, weight)
        average.add(step)
        found.append(average.weights()["weight"].item())
    return found


def test_the_tail_is_the_mean_of_the_last_steps() -> None:
    weights = [5.0, -3.0, 8.0, 1.0, 2.0, 4.0, 9.0, 2.0, 6.0, 4.0]
    found = averages(Tail(fraction=0.3), weights)
    assert found[:7] == pytest.approx(weights[:7])  # before the tail: as they are
    assert found[-1] == pytest.approx(sum(weights[-3:]) / 3)
    assert averages(Tail(fraction=1.0), weights)[-1] == pytest.approx(sum(weights) / 10)
    assert averages(Tail(fraction=0.01), weights)[-1] == pytest.approx(4.0)
    assert averages(None, weights) == pytest.approx(weights)


def test_the_moving_average_has_no_bias_to_the_start() -> None:
    weights = [5.0, -3.0, 8.0, 1.0, 2.0]
    shares = [0.9 ** (len(weights) - 1 - i) for i in range(len(weights))]
    expected = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(shares)
    assert averages(Ema(decay=0.9), weights)[-1] == pytest.approx(expected)
    assert averages(Ema(decay=0.9), [7.0] * 4) == pytest.approx([7.0] * 4)


def test_an_average_goes_on_where_it_was_saved() -> None:
    model = nn.Linear(2, 1)
    first = Average(Ema(decay=0.5), model, 9)
    first.add(1)
    second = Average(Ema(decay=0.5), model, 9)
    second.restore({name: value.clone() for name, value in first.state().items()})
    nn.init.ones_(model.weight)
    for average in (first, second):
        average.add(2)
    assert torch.equal(first.weights()["weight"], second.weights()["weight"])
    with pytest.raises(ValueError, match="the saved average has"):
        second.restore({"other": torch.zeros(1)})


def test_heads_have_the_layers_they_say() -> None:
    mlp = Mlp(hidden=(1000,), activation="relu").build((60,), 10)
    assert sum(p.numel() for p in mlp.parameters()) == 60 * 1000 + 1000 + 1000 * 10 + 10
    shapes = {name: p.shape for name, p in mlp.named_parameters()}
    assert len(PerLayer(each=4.0).bind(shapes).groups) == 2
    assert Mlp().build((1, 8, 8), 3)(torch.zeros(5, 1, 8, 8)).shape == (5, 3)
    assert torch.equal(Linear().build((4,), 3)(torch.randn(2, 4)), torch.zeros(2, 3))


def test_a_recipe_can_be_written_down(recipe: Make) -> None:
    facts = described(recipe(clipping=PerLayer(each=4.0)))
    assert facts["name"] == "small"
    assert facts["front"] == {"kind": "Pca", "dimensions": 6, "noise_multiplier": 20.0, "sampling_rate": 1.0}
    assert facts["clipping"] == {"kind": "PerLayer", "each": 4.0, "total": None}
    assert facts["averaging"] == {"kind": "Tail", "fraction": 0.25}
    with pytest.raises(ValueError, match="a function in a recipe cannot be written down"):
        described({"schedule": averages})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(learning_rate=0.0), "learning_rate is 0.0"),
        (lambda: Sgd(learning_rate=1.0, momentum=1.0), "momentum is 1.0"),
        (lambda: Sgd(learning_rate=1.0, decay_epochs=2.0), "give both or neither"),
        (lambda: Tail(fraction=0.0), "fraction is 0.0"),
        (lambda: Ema(decay=1.0), "decay is 1.0"),
        (lambda: Mlp(activation="step"), "activation is 'step'"),
        (lambda: Mlp(hidden=()), r"hidden is \(\)"),
    ],
)
def test_parts_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lot_size": 0}, "lot_size is 0"),
        ({"lot_size": 1.5}, "lot_size is 1.5"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": math.inf}, "epochs is inf"),
        ({"epochs": None}, "epochs is None"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"loss_bound": math.nan}, "loss_bound is nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(recipe: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**settings)
    assert recipe(clipping=Flat(2.0)).clipping == Flat(2.0)
