"""The recipes by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tacit.data import Images
from tacit.recipes import abadi
from tacit.recipes.recipe import Head, Linear, Mlp, Recipe

RECIPES: dict[str, Callable[[str, float], Recipe]] = {
    "best": lambda dataset, epsilon: abadi.tuned(epsilon),
    "pca": lambda dataset, epsilon: abadi.tuned(epsilon),
    "abadi": lambda dataset, epsilon: abadi.printed(epsilon),
    "abadi-averaged": lambda dataset, epsilon: abadi.averaged(epsilon),
}
"""For a data set's name and ε."""


def check_name(name: str) -> None:
    """Refuse a name that is not in the list."""
    if name not in RECIPES:
        raise ValueError(f"recipe is {name!r}; choose one of {', '.join(RECIPES)}.")


def recipe(name: str, images: Images, epsilon: float) -> Recipe:
    """The recipe ``name`` for this data set and ε.

    Recipes are made for tens of thousands of records; on fewer, a lot is at most a quarter of them.
    """
    check_name(name)
    found = RECIPES[name](images.name, epsilon)
    return replace(found, lot_size=min(found.lot_size, max(len(images.train) // 4, 1)))


def head(text: str) -> Head:
    """A network from a few words: ``linear``, or ``mlp:256,64`` for hidden layers of these widths.

    >>> head("mlp:256,64")
    Mlp(hidden=(256, 64), activation='tanh')
    """
    kind, _, widths = text.partition(":")
    if text == "linear":
        return Linear()
    if kind == "mlp" and all(width.isdecimal() and int(width) for width in widths.split(",")):
        return Mlp(hidden=tuple(int(width) for width in widths.split(",")))
    raise ValueError(f"model is {text!r}; write linear, or mlp:300, or mlp:256,64 for two hidden layers.")
