"""CIFAR-10 of Abadi et al. 2016, section 5.3: convolutions from public data, fully connected layers trained privately.

The public set is CIFAR-100 where there is one, else the Tiny-ImageNet subset that stands in for it. What is learned
from it is written to a file of its own; see `tacit.features.public`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.data import Images, load
from tacit.features import Convolutions
from tacit.features.public import read_public
from tacit.mechanisms import Groups
from tacit.models.abadi import augment, cifar_cnn, standardise
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.recipes.outcome import write_tensors
from tacit.recipes.recipe import Recipe, Sgd

PUBLIC = ("cifar100", "tinyimagenet")
"""In the order in which they are asked for."""
LOTS = {2.0: 2000, 4.0: 4000, 8.0: 4000}
"""By ε (Figure 6)."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The fully connected layers as learned from public data, with a new softmax layer on top."""

    weights: str
    digest: str

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        classifier = cifar_cnn(classes=classes).get_submodule("classifier")
        prefix = "classifier."
        known = {
            name: value for name, value in read_public(self.weights, self.digest).items() if name.startswith(prefix)
        }
        own = classifier.state_dict()
        if set(known) != {prefix + name for name in own if not name.startswith("4.")} or shape != (2304,):
            raise ValueError(f"public weights {self.weights!r} are not those of the paper's CIFAR network.")
        classifier.load_state_dict(own | {name.removeprefix(prefix): value for name, value in known.items()})
        return classifier


def public_images() -> Images:
    """The public set that is at hand."""
    reasons = []
    for name in PUBLIC:
        try:
            return load(name)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(f"pre-training needs a public set, one of {', '.join(PUBLIC)}: {' '.join(reasons)}")


def pretrain(
    images: Images,
    path: Path,
    *,
    epochs: int = 8,
    batch: int = 64,
    learning_rate: float = 0.03,
    seed: int | None = None,
    watch: Callable[[float], None] = lambda share: None,
) -> str:
    """Train the paper's CIFAR network on public ``images``, without privacy, and write all but its last layer.

    Images are distorted anew in each epoch, as in the paper; momentum 0.9, the learning rate falls to a twentieth.
    Returns the digest of the file.
    """
    source: Source = SecureSource() if seed is None else SeededSource(seed)
    with torch.random.fork_rng(devices=(), enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        model = cifar_cnn(classes=images.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps, step = epochs * (len(images.train) // batch), 0
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=learning_rate, total_steps=max(steps, 2))
    for _ in range(epochs):
        order = torch.from_numpy(source.permutation(len(images.train)))
        for chosen in torch.split(order[: len(order) // batch * batch], batch):
            _learn(model, optimizer, standardise(augment(images.train[chosen], source)), images.train_labels[chosen])
            step += 1
            if step < steps:
                schedule.step()
            watch(step / steps)
    tensors = {name: value for name, value in model.state_dict().items() if not name.startswith("classifier.4.")}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(F.cross_entropy(model(x), y))
    optimizer.step()


def cifar(
    epsilon: float,
    *,
    weights: Path,
    digest: str,
    epochs: float = 1000,
    noise: float | None = 6.0,
    learning_rate: float = 0.05,
) -> Recipe:
    """Figure 6 for this ε: σ = 6, clip norm 3 and twice that for the softmax layer, for as long as the budget lasts.

    Three layers are clipped and noised apart, and one record can move all three: a step has z = σ / √3. The paper does
    not print a learning rate. ``noise`` None: solved for, so that ``epochs`` fit the budget.
    """
    return Recipe(
        name="abadi-cifar",
        front=Convolutions(weights=str(weights), digest=digest),
        model=Pretrained(weights=str(weights), digest=digest),
        lot_size=LOTS[max((e for e in LOTS if e <= epsilon), default=min(LOTS))],
        epochs=epochs,
        clipping=Groups({"0.*": 3.0, "2.*": 3.0, "4.*": 6.0}),
        optimizer=Sgd(learning_rate=learning_rate),
        noise=noise,
        loss_bound=None,
    )
