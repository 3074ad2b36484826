"""A trained model, read back from the directory of its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.features import (
    Fitted,
    GaussianKernel,
    Grouped,
    Invariant,
    Patches,
    Pca,
    Pixels,
    RandomProjection,
    Scattering,
    Statistics,
    Whitened,
)
from tacit.features.front import pieces
from tacit.mechanisms import Automatic, DimensionWeighted, Flat, Joint, PerLayer
from tacit.recipes.outcome import read_json, read_tensors
from tacit.recipes.recipe import Ema, Linear, Mlp, Recipe, Sgd, Tail
from tacit.tuning import NormHistogram

_FRONTS = (Pixels, Pca, RandomProjection, Scattering, Grouped, Whitened, Invariant, Patches, GaussianKernel, Statistics)
_TRAINING = (Recipe, Sgd, Tail, Ema, NormHistogram, Flat, PerLayer, DimensionWeighted, Joint, Automatic)
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (*_FRONTS, Linear, Mlp, *_TRAINING)}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A front end and the network on it."""

    front: Fitted
    model: nn.Module

    @classmethod
    def load(cls, out: str | Path) -> Trained:
        """The model in the directory of a finished run; nothing is unpickled."""
        place = Path(out)
        if not (place / "model.json").exists():
            raise ValueError(f"there is no trained model in {place}: model.json is missing.")
        facts, tensors = read_json(place / "model.json"), read_tensors(place / "model.safetensors")
        try:
            front = _configured(facts["front"]).restore(_part(tensors, "front."), _sizes(facts["image_shape"]))
            model = _configured(facts["model"]).build(_sizes(facts["feature_shape"]), *_sizes([facts["classes"]]))
            model.load_state_dict(_part(tensors, "model."))
        except (KeyError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
            raise ValueError(f"model.json and model.safetensors in {place} do not fit together: {error}.") from error
        return cls(front=front, model=model.eval())

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """One row of scores for each image (bytes, shape (n, channels, height, width)); the largest is the answer."""
        return torch.cat([self.model(self.front.transform(piece)) for piece in pieces(images)])


def recipe_of(facts: dict[str, Any]) -> Recipe:
    """Return the recipe of a run, from what its run.json has under ``recipe``."""
    try:
        found = _configured(facts)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"run.json has a recipe that this version of tacit cannot read: {error}.") from error
    if not isinstance(found, Recipe):
        raise ValueError("run.json has no recipe of images; `tacit train` on a data set of images writes one.")
    return found


def _configured(facts: Any) -> Any:
    """The configuration that `described` wrote down."""
    if isinstance(facts, list):
        return tuple(_configured(value) for value in facts)
    if not isinstance(facts, dict):
        return facts
    values = {name: _configured(value) for name, value in facts.items()}
    kind = values.pop("kind")
    if kind not in _KINDS:
        raise ValueError(f"the model needs a {kind!s:.60}; this version of tacit knows {', '.join(_KINDS)}.")
    return _KINDS[kind](**values)


def _sizes(values: Any) -> tuple[int, ...]:
    """A shape: whole numbers, each at least 1."""
    if not isinstance(values, list) or not all(type(value) is int and 1 <= value < 2**40 for value in values):
        raise ValueError("model.json has a shape that is not a list of whole numbers.")
    return tuple(values)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
