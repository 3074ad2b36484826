"""The recipes by name, and paper 1's numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tacit.accounting import guarantee
from tacit.data import Images
from tacit.features import Pca
from tacit.ledger import Budget, GaussianSum, Header, Poisson, Step
from tacit.mechanisms import PerLayer
from tacit.recipes import Ema, Linear, Mlp, Recipe, abadi
from tacit.recipes.catalogue import RECIPES, head, recipe
from tacit.recipes.schedule import schedule


@pytest.mark.parametrize(
    ("epsilon", "noise", "pca_noise", "decay"), [(0.5, 8, 16, 0.9995), (2, 4, 7, 0.9995), (8, 2, 4, 0.9998)]
)
def test_paper_1_is_as_printed(epsilon: float, noise: float, pca_noise: float, decay: float) -> None:
    printed = abadi.printed(epsilon)
    assert printed.noise == noise
    assert printed.front == Pca(dimensions=60, noise_multiplier=pca_noise, sampling_rate=1.0)
    assert printed.model == Mlp(hidden=(1000,), activation="relu")
    assert (printed.lot_size, printed.clipping) == (600, PerLayer(each=4.0))
    rates = [printed.optimizer.at(epoch) for epoch in (0, 5, 10, 100)]
    assert rates == pytest.approx([0.1, 0.076, 0.052, 0.052])
    assert (printed.optimizer.momentum, printed.averaging) == (0.0, None)
    assert abadi.averaged(epsilon) == replace(printed, name="abadi-averaged", averaging=Ema(decay=decay))


@pytest.mark.parametrize(
    ("accountant", "epsilon", "about"),
    [
        ("pld", 0.5, 5_076),  # counted by other code, with another accountant of the same kind
        ("pld", 2.0, 17_180),
        ("pld", 8.0, 41_338),
        ("moments", 0.5, 1_432),
        ("moments", 2.0, 10_331),
        ("moments", 8.0, 30_633),
    ],
)
def test_the_budget_pays_for_exactly_so_many_steps(accountant: str, epsilon: float, about: int) -> None:
    printed = abadi.printed(epsilon)
    assert printed.noise is not None
    model, budget = printed.model.build((60,), 10), Budget(epsilon, 1e-5)
    found = schedule(printed, model, records=60_000, budget=budget, accountant=accountant)
    assert found.noise_multiplier == pytest.approx(printed.noise / math.sqrt(2))  # two layers, noise σ S on each
    layers = tuple(GaussianSum(group=name, clip_norm=4.0, noise_std=4.0 * printed.noise) for name in ("one", "two"))
    step = Step(Poisson(rate=0.01, records=60_000), layers)

    def cost(steps: int) -> float:
        entries = [*((charge, 1) for charge in printed.front.charges(60_000)), (step, steps)]
        return guarantee(entries, Header(), delta=1e-5, accountant=accountant).epsilon

    assert cost(found.steps) <= epsilon < cost(found.steps + 1)
    assert found.steps == pytest.approx(about, rel=0.006)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 50.0])
def test_every_recipe_fits_images_of_28_by_28(name: str, epsilon: float, images: Images) -> None:
    digits = replace(images, name="mnist", train=torch.zeros(60_000, 1, 1, 1, dtype=torch.uint8).expand(-1, 1, 28, 28))
    found = recipe(name, digits, epsilon)
    assert isinstance(found, Recipe)
    shape = found.front.features((1, 28, 28))
    assert found.model.build(shape, 10)(torch.zeros(2, *shape)).shape == (2, 10)
    assert found.lot_size <= 15_000


def test_few_records_make_small_lots(images: Images) -> None:
    assert recipe("pca", images, 2.0).lot_size == 150  # a quarter of 600
    with pytest.raises(ValueError, match="recipe is 'magic'; choose one of best, "):
        recipe("magic", images, 2.0)


def test_networks_by_name() -> None:
    assert head("linear") == Linear()
    assert head("mlp:300") == Mlp(hidden=(300,))
    for wrong in ("mlp", "mlp:", "mlp:3,,4", "mlp:-3", "linear:3", "brain", ""):
        with pytest.raises(ValueError, match="model is "):
            head(wrong)
