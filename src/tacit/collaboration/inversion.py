"""Gradient inversion of real uploads: a participant trains on one record, the attacker sees what it sends.

The worst case of a collaboration: one record, one step, and an attacker who knows network and learning rate. Uploads
without noise promise nothing about the records behind them, however few parameters they have; this shows how much they
give away, and what is left of it with noise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.audit.inversion import guess_label, invert_linear, likeness, search
from tacit.collaboration.messages import Download, Upload
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.participant import LocalSgd, Participant, SelectedUploads
from tacit.collaboration.privacy import LocalDpSgd
from tacit.collaboration.selection import Largest
from tacit.features.leaves import dead_leaves
from tacit.ledger import Header, Ledger
from tacit.randomness import SecureSource, SeededSource, Source

_RATE, _CLASSES, _SIDE, _WIDTH = 0.1, 10, 16, 64
_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Inverted:
    """The likeness of the recovered images to the real ones for one kind of upload, averaged over the images."""

    upload: str
    epsilon: float | None
    linear: float
    search: float
    images: int

    def __str__(self) -> str:
        promised = "nothing is promised" if self.epsilon is None else f"ε = {self.epsilon:g} for each example"
        return (
            f"{self.upload} ({promised}): likeness {self.linear:.2f} by the linear layer, {self.search:.2f} by search"
        )


def invert_uploads(
    *,
    fractions: tuple[float, ...] = (1.0, 0.1, 0.01),
    epsilons: tuple[float, ...] = (8.0, 1.0),
    images: int = 4,
    steps: int = 200,
    seed: int | None = None,
) -> list[Inverted]:
    """Attack uploads of the largest ``fractions`` of the parameters, and whole private uploads of each ε.

    The pictures are dead leaves, made up; the network is an MLP with one hidden layer of 64.
    """
    pictures = dead_leaves(images, (1, _SIDE, _SIDE), seed=11)
    kinds: list[tuple[str, float, float | None]] = [(f"the largest {part:.0%}", part, None) for part in fractions]
    kinds += [("all parameters, trained with noise", 1.0, epsilon) for epsilon in epsilons]
    found = []
    for name, part, epsilon in kinds:
        pairs = [_attack(picture, number, part, epsilon, steps, seed) for number, picture in enumerate(pictures)]
        linear, searched = (float(np.mean(values)) for values in zip(*pairs, strict=True))
        found.append(Inverted(upload=name, epsilon=epsilon, linear=linear, search=searched, images=images))
    return found


def _attack(
    picture: Tensor, number: int, part: float, epsilon: float | None, steps: int, seed: int | None
) -> tuple[float, float]:
    """Return the likeness of what the two attacks recover from the upload of one participant with one record."""
    label, generator = number % _CLASSES, torch.Generator().manual_seed(number if seed is None else seed + number)
    model = _network(generator)
    known = copy.deepcopy(model)  # the attacker knows what was downloaded
    upload, layout = _upload(model, picture, label, part, epsilon, seed)
    values = np.full(sum(int(np.prod(shape)) for _, shape in layout), np.nan, dtype=np.float32)
    values[slice(None) if upload.indices is None else upload.indices] = (
        -upload.values / _RATE
    )  # the gradient, as far as it was uploaded
    sizes = [int(np.prod(shape)) for _, shape in layout]
    parts = torch.split(torch.from_numpy(values), sizes)
    gradients = [piece.view(shape) for piece, (_, shape) in zip(parts, layout, strict=True)]
    by_layer = invert_linear(gradients[0], gradients[1])
    by_search = search(
        known, gradients, shape=(1, _SIDE, _SIDE), label=guess_label(gradients[-1]), steps=steps, generator=generator
    )
    return likeness(by_layer, picture), likeness(by_search, picture)


def _network(generator: torch.Generator) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(_SIDE**2, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return model


def _upload(
    model: nn.Module, picture: Tensor, label: int, part: float, epsilon: float | None, seed: int | None
) -> tuple[Upload, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Return the upload after one local epoch on one record, by the participant's code, and the parameters' layout."""
    source = SecureSource() if seed is None else SeededSource(seed)
    dataset = TensorDataset(picture[None], torch.tensor([label]))
    parameters = FlatParameters(model)
    if epsilon is None:
        train = LocalSgd(model, dataset, learning_rate=_RATE, batch_size=1, generator=torch.Generator().manual_seed(0))
        return _sent(parameters, train, part, source), parameters.layout
    way = LocalDpSgd(epsilon=epsilon, delta=_DELTA, lots_per_epoch=1, learning_rate=_RATE)
    private = way.trainer(
        model,
        dataset,
        epochs=1,
        noise_multiplier=way.noise_multiplier(records=1, epochs=1),
        ledger=Ledger(Header(secure_randomness=seed is None)),
        seed=seed,
    )
    return _sent(parameters, private, part, source), parameters.layout


def _sent(parameters: FlatParameters, train: Callable[[], None], part: float, source: Source) -> Upload:
    uploads = SelectedUploads(Largest(fraction=part), bound=1e6, source=source)
    participant = Participant("attacked", parameters, train, uploads)
    participant.begin(Download(indices=None, values=parameters.vector.copy()))
    participant.train()
    return participant.finish()
