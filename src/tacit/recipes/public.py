"""CIFAR-10 of Abadi et al. 2016, section 5.3: convolutions from public data, fully connected layers trained privately.

The public set is CIFAR-100 where there is one, else the Tiny-ImageNet subset that stands in for it. What is learned
from it is written to a file of its own; see `tacit.recipes.pretraining` and `tacit.features.public`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit.data import Images, load
from tacit.features import Convolutions
from tacit.features.public import read_public
from tacit.mechanisms import Groups
from tacit.models.abadi import cifar_cnn
from tacit.recipes.recipe import Recipe, Sgd, Tail

PUBLIC = ("cifar100", "tinyimagenet")
"""In the order in which they are asked for."""
LOTS = {2.0: 2000, 4.0: 4000, 8.0: 4000}
"""By ε (Figure 6)."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The fully connected layers as learned from public data, with a new softmax layer on top that begins at zero.

    What goes into each layer is centred by its mean over the public images and scaled to ``lengths`` there, and the
    weights are changed to make up for it. The network computes the same; but gradients are no longer all alike, as they
    are when inputs share one large component, and the lengths say how fast each layer moves beside the others.
    """

    weights: str
    digest: str
    lengths: tuple[float, float, float] = (25.0, 25.0, 100.0)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        known = read_public(self.weights, self.digest)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        plain = cifar_cnn(classes=classes).get_submodule("classifier")
        try:
            for number, length in zip((0, 2, 4), self.lengths, strict=True):
                centre, spread = (known[f"classifier.{number}.{name}"] for name in ("centre", "spread"))
                layers[f"centred{number}"] = Centred(centre, length / float(spread))
                layers[str(number)] = linear = plain.get_submodule(str(number))
                state = {name: known.get(f"classifier.{number}.{name}") for name in ("weight", "bias")}
                weight, bias = state["weight"], state["bias"]
                if number == 4:
                    weight, bias = torch.zeros(classes, len(centre)), torch.zeros(classes)
                assert weight is not None and bias is not None
                linear.load_state_dict({"weight": weight * float(spread) / length, "bias": bias + weight @ centre})
                if number < 4:
                    layers[str(number + 1)] = nn.ReLU()
        except (KeyError, RuntimeError, AssertionError) as error:
            raise ValueError(f"public weights {self.weights!r} are not those of the paper's CIFAR network.") from error
        if shape != (2304,):
            raise ValueError(f"features have shape {shape}; those of the paper's CIFAR network have (2304,).")
        return nn.Sequential(layers)


class Centred(nn.Module):
    """(x - centre) · scale, both learned from public data and fixed."""

    centre: Tensor
    scale: Tensor

    def __init__(self, centre: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("centre", centre.clone())
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.centre) * self.scale


def public_images() -> Images:
    """The public set that is at hand."""
    reasons = []
    for name in PUBLIC:
        try:
            return load(name)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(f"pre-training needs a public set, one of {', '.join(PUBLIC)}: {' '.join(reasons)}")


def cifar(epsilon: float, *, weights: Path, digest: str) -> Recipe:
    """Figure 6 for this ε: σ = 6, clip norm 3 and twice that for the softmax layer, for as long as the budget lasts.

    Three layers are clipped and noised apart, and one record can move all three: a step has z = σ / √3. The paper does
    not print a learning rate; this one is for the more than a thousand steps that σ = 6 takes.
    """
    return Recipe(
        name="abadi-cifar",
        front=Convolutions(weights=str(weights), digest=digest),
        model=Pretrained(weights=str(weights), digest=digest),
        lot_size=LOTS[max((e for e in LOTS if e <= epsilon), default=min(LOTS))],
        epochs=1000,
        clipping=Groups({"0.*": 3.0, "2.*": 3.0, "4.*": 6.0}),
        optimizer=Sgd(learning_rate=0.01),
        noise=6.0,
        averaging=Tail(fraction=0.25),
        loss_bound=None,
    )
