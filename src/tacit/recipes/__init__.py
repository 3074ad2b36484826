"""Experiments as short, typed configurations, and the runner that carries them out."""

from tacit.recipes.outcome import Outcome
from tacit.recipes.recipe import Ema, Head, Linear, Mlp, Recipe, Sgd, Tail
from tacit.recipes.train import Moment, train

__all__ = ["Ema", "Head", "Linear", "Mlp", "Moment", "Outcome", "Recipe", "Sgd", "Tail", "train"]
