"""The length and the noise of a recipe's run for a budget, decided before any record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from tacit.accounting import Filter, guarantee, plan
from tacit.accounting.accountants import find
from tacit.ledger import Budget, GaussianSum, Header, Ledger, Poisson, Step
from tacit.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The number of steps and z of each of them as a whole."""

    steps: int
    noise_multiplier: float


def schedule(recipe: Recipe, model: nn.Module, *, records: int, budget: Budget, accountant: str = "pld") -> Schedule:
    """The schedule of ``recipe`` for a number of records; a budget that cannot pay for one epoch is refused."""
    find(accountant)
    if recipe.lot_size > records:
        raise ValueError(f"lot_size is {recipe.lot_size}; it must be at most the number of records, {records}.")
    charges = recipe.charges(records)
    if charges:
        alone = guarantee([(step, 1) for step in charges], Header(), delta=budget.delta, accountant=accountant).epsilon
        if alone >= budget.epsilon:
            raise ValueError(
                f"epsilon is {budget.epsilon:g}; what is learned besides the gradients costs {alone:.4g}, and "
                "nothing is left for one epoch: raise epsilon or the noise of the front end."
            )
    if recipe.noise is None:
        found = plan(
            records=records,
            lot_size=recipe.lot_size,
            epochs=recipe.epochs,
            epsilon=budget.epsilon,
            delta=budget.delta,
            accountant=accountant,
            also=[(step, 1) for step in charges],
        )
        return Schedule(steps=found.steps, noise_multiplier=found.noise_multiplier)
    shapes = {name: value.shape for name, value in model.named_parameters()}
    groups = len(recipe.clipping.bind(shapes, lot_size=recipe.lot_size).groups)
    # Each of G groups has noise σ S_g: z = (Σ 1/σ²)^(-1/2) = σ / √G (McMahan, Andrew et al. 2019, Equation 1).
    z = recipe.noise / math.sqrt(groups)
    step = Step(
        Poisson(rate=recipe.lot_size / records, records=records),
        (GaussianSum(group="gradients", clip_norm=1.0, noise_std=z),),
    )
    book = Ledger()
    for charge in charges:
        book.record(charge)
    epoch, most = math.ceil(records / recipe.lot_size), math.ceil(recipe.epochs * records / recipe.lot_size)
    steps = Filter(budget, accountant=accountant).remaining(book, step, most=most)
    if steps < min(epoch, most):
        raise ValueError(
            f"epsilon is {budget.epsilon:g}; with noise {recipe.noise:g} that pays for {steps} steps and one epoch has "
            f"{epoch}: raise epsilon or the noise."
        )
    return Schedule(steps=steps, noise_multiplier=z)
