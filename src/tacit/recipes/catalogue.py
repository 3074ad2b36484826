"""The recipes by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tacit.data import Images
from tacit.features import Pixels
from tacit.mechanisms import Flat
from tacit.recipes import abadi
from tacit.recipes.recipe import Head, Linear, Mlp, Recipe, Sgd, Tail
from tacit.recipes.scattering import scattering


def linear(epsilon: float) -> Recipe:
    """One linear layer on the pixels: for small images and few records, where everything else costs too much."""
    return Recipe(
        name="linear",
        front=Pixels(),
        model=Linear(),
        lot_size=4096,
        epochs=20,
        clipping=Flat(1.0),
        optimizer=Sgd(learning_rate=1.0, momentum=0.9),
        averaging=Tail(fraction=0.5),
    )


def best(dataset: str, epsilon: float) -> Recipe:
    """Return the recipe that `tacit train` uses unless told otherwise."""
    return scattering(dataset, epsilon)


RECIPES: dict[str, Callable[[str, float], Recipe]] = {
    "best": best,
    "scattering": scattering,
    "linear": lambda dataset, epsilon: linear(epsilon),
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
