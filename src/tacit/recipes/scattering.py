"""A linear classifier on scattering features: the best known private training without public data on this scale.

How the settings were chosen: on training images held out from the training of the others (10,000 of MNIST and CIFAR-10,
a sixth of SVHN, 300 of the digits), at the budget they are for; never on a test set. Where nothing was tried it says
so. The search itself is not charged to any ledger: these are public benchmarks. On data of your own, take a rule as it
stands or pay for the search.

What was seen on the held-out images (percent, ε = 3 on CIFAR-10 unless said otherwise):

* The metric of procedural pictures (`Invariant`): docs/accuracy.md has what each variant of it gave.
* MNIST before, at ε = 2: 98.1 as it is, 98.8 with figures put upright. Lots of 8,192 over 60 epochs, not 4,096 over 25:
  98.9. Whitening instead of normalised groups changed nothing (98.9 to 99.0 at ε = 3).
* CIFAR-10 before, scattering alone: channels standardised 63.6, whitened by their own covariance 67.5, by that of dead
  leaves (free) 67.8, at learning rate 4; 69.2 at 8, 69.7 at 16, 68.6 at 32. Without private means 1.2 less; with
  private variances too 1.4 less. Exponents 0.5 and 0.6: 69.4 and 69.3. At ε = 1 learning rates 4 and 8
  did equally well (66.7).
* SVHN at ε = 3: 85.6 at learning rate 16, 86.8 at 8; 84.3 with normalised groups.
* Averaging the weights moved nothing by more than 0.2 either way.
* CIFAR-10 with patches under a Gaussian kernel (`GaussianKernel`): docs/accuracy.md has what each part gave. 10,000
  images to train on with the noise of lots from 50,000, 4,000 held out: 67.6 at ε = 1 (66.1 at learning rate 32), 70.6
  at ε = 3 (70.1 at 16, 69.6 at 16 with clip norm 0.3), 72.1 at ε = 8 (72.1 and 71.4 at 32 and 64 with clip norm 0.1).
  45,000 to train on, 5,000 held out, ε = 8: 76.3 at learning rate 20 and clip norm 0.3 (75.0 to 75.8 at 10 and 40, at
  clip norm 1 and 0.1); 76.8 with lots of 16,384 over 60 epochs at 28 (76.4 at 20), of which a quarter of the records,
  12,500, over 46 epochs is the largest that the recipe may have.
"""

from __future__ import annotations

from tacit.features import Front, GaussianKernel, Grouped, Invariant, Patches, Scattering, Statistics, Whitened
from tacit.mechanisms import Flat
from tacit.recipes.recipe import Linear, Recipe, Sgd


def scattering(dataset: str, epsilon: float) -> Recipe:
    """The recipe for a data set; one that is not known is taken for photographs."""
    return _RECIPES.get(dataset, photographs)(epsilon)


def written(epsilon: float) -> Recipe:
    """MNIST: figures put upright, groups of channels normalised, in the metric of random pen strokes."""
    front = Invariant(base=Scattering(upright=True, normalisation=Grouped(groups=27)), dimensions=1500)
    if epsilon < 2:
        return _linear(front, lot_size=8192, epochs=60, learning_rate=15.0 if epsilon < 1 else 30.0, clip_norm=0.02)
    return _linear(front, lot_size=8192, epochs=60, learning_rate=6.0 if epsilon <= 5 else 9.0, clip_norm=0.2)


def clothes(epsilon: float) -> Recipe:
    """Fashion-MNIST: groups of channels normalised, in the metric of dead leaves, centred by a private mean."""
    base = Scattering(normalisation=Grouped(groups=27))
    front = Invariant(base=base, pictures="leaves", dimensions=1500, statistics=Statistics())
    if epsilon < 2:
        return _linear(front, lot_size=8192, epochs=60, learning_rate=0.65 if epsilon < 1 else 1.3, clip_norm=0.6)
    return _linear(front, lot_size=8192, epochs=60, learning_rate=12.0, clip_norm=0.2)


def photographs(epsilon: float) -> Recipe:
    """CIFAR-10: scattering and patches of image and mirror image, at 4×4 places, under a Gaussian kernel."""
    scattering = Scattering(mirror=True, pooling=2, normalisation=Whitened())
    front = GaussianKernel(scattering=scattering, patches=Patches())
    if epsilon > 5:
        return _linear(front, lot_size=12_500, epochs=46, learning_rate=28.0, clip_norm=0.3)
    return _linear(front, lot_size=8192, epochs=30, learning_rate=16.0 if epsilon < 2 else 32.0)


def house_numbers(epsilon: float) -> Recipe:
    """SVHN: as photographs, but a mirrored digit is another one. For the 26,000 records that there are here."""
    front = Scattering(pooling=2, normalisation=Whitened(statistics=Statistics()))
    return _linear(front, lot_size=4096, epochs=60, learning_rate=4.0 if epsilon < 2 else 8.0)


def small_digits(epsilon: float) -> Recipe:
    """scikit-learn's digits, 8×8: one scale, so that 4×4 places are left.

    On held-out images at ε = 2: 96, the pixels 92. The test images are other writers': there it is about 90.
    """
    front = Scattering(scales=1, normalisation=Grouped(groups=3))
    return _linear(front, lot_size=350, epochs=30, learning_rate=2.0)


def _linear(front: Front, *, lot_size: int, epochs: int, learning_rate: float, clip_norm: float = 0.1) -> Recipe:
    """With a clip norm that shortens nearly every gradient, the learning rate alone says how far a step goes."""
    return Recipe(
        name="scattering",
        front=front,
        model=Linear(),
        lot_size=lot_size,
        epochs=epochs,
        clipping=Flat(clip_norm),
        optimizer=Sgd(learning_rate=learning_rate, momentum=0.9),
    )


_RECIPES = {
    "mnist": written,
    "fashion": clothes,
    "cifar10": photographs,
    "svhn": house_numbers,
    "digits": small_digits,
}
