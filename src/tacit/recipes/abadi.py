"""MNIST of Abadi et al. 2016, section 5.2: 60 private principal components and 1,000 hidden units.

The paper clips each of the two layers at 4 and adds noise σ · 4 to each. That is a query of two groups: one record can
move both, so the whole step has z = σ / √2, and this is what the ledger gets.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.features import Pca
from tacit.mechanisms import Flat, PerLayer
from tacit.recipes.recipe import Ema, Mlp, Recipe, Sgd, Tail

NOISE = {0.5: (8.0, 16.0), 2.0: (4.0, 7.0), 8.0: (2.0, 4.0)}
"""(σ, σ_p) as printed, by the ε they were used for (Figure 3)."""

AVERAGING = {0.5: 0.9995, 2.0: 0.9995, 8.0: 0.9998}
"""The decay of averaged weights, by the same ε: the best of 0.999 to 0.9999 on 10,000 training images held out."""


def printed(epsilon: float) -> Recipe:
    """The experiment as printed, for as many epochs as the budget pays for; noise of the nearest ε not above.

    Lots of 600, clip norm 4 for each layer, learning rate 0.1 falling to 0.052 over 10 epochs, no momentum. How long
    it runs is up to the accountant: the paper's (``accountant="moments"``) pays for fewer epochs than ours.
    """
    noise, pca_noise = NOISE[_level(epsilon)]
    return Recipe(
        name="abadi",
        front=Pca(dimensions=60, noise_multiplier=pca_noise),
        model=Mlp(hidden=(1000,), activation="relu"),
        lot_size=600,
        epochs=1000,
        clipping=PerLayer(each=4.0),
        optimizer=Sgd(learning_rate=0.1, final_learning_rate=0.052, decay_epochs=10),
        noise=noise,
        loss_bound=None,
    )


def averaged(epsilon: float) -> Recipe:
    """As printed, with an average of the weights over the last 20 to 50 epochs or so, which costs nothing."""
    return replace(printed(epsilon), name="abadi-averaged", averaging=Ema(decay=AVERAGING[_level(epsilon)]))


def _level(epsilon: float) -> float:
    return max((e for e in NOISE if e <= epsilon), default=min(NOISE))


def tuned(epsilon: float) -> Recipe:
    """The same idea with later findings: large lots, one clip norm, tanh, momentum, and an average of weights. The run
    solves for the noise. Small budgets get larger lots.
    """
    return Recipe(
        name="pca",
        front=Pca(dimensions=60, noise_multiplier=16.0 if epsilon < 1 else 7.0 if epsilon < 4 else 4.0),
        model=Mlp(hidden=(300,), activation="tanh"),
        lot_size=8192 if epsilon < 1 else 4096 if epsilon < 4 else 2048,
        epochs=40 if epsilon < 4 else 60,
        clipping=Flat(1.0),
        optimizer=Sgd(learning_rate=1.0, momentum=0.9),
        averaging=Tail(fraction=0.3),
    )
