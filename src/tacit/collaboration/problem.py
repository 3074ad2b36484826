"""Problems: a data set as the paper's networks want it, and a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from tacit.collaboration.messages import Positions
from tacit.data import Images, load
from tacit.models import shokri
from tacit.randomness import Source


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Training and test records, and a function that makes a network, initialised by torch's generator.

    ``raw`` inputs lie in [-1, 1] and are still to be normalised, privately.
    """

    name: str
    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    build: Callable[[], nn.Module]
    raw: bool = False

    def network(self, seed: int) -> nn.Module:
        """Return a network whose initial parameters depend on ``seed`` alone; torch's own generator stays as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def last(self, records: int) -> Problem:
        """Return the last ``records`` training records alone; a fifth of them, at the end, are now the test records."""
        if not 5 <= records <= len(self.inputs):
            raise ValueError(f"the last {records} records were asked for; it must be from 5 to {len(self.inputs)}.")
        first, tests = len(self.inputs) - records, records // 5
        return replace(
            self,
            inputs=self.inputs[first:-tests],
            labels=self.labels[first:-tests],
            test_inputs=self.inputs[-tests:],
            test_labels=self.labels[-tests:],
        )


def problem(dataset: str, model: str) -> Problem:
    """Return an image data set with one of the paper's networks: ``"mlp"`` or ``"cnn"``.

    Inputs are normalised by the mean and standard deviation of each channel over the training set. Those are taken to
    be public: they are not in any ledger. See `raw_problem` for inputs that participants normalise privately.
    """
    return of_images(load(dataset), model)


def raw_problem(dataset: str, model: str) -> Problem:
    """As `problem`, with inputs as they are: for settings that ask for private normalisation."""
    return _of_images(load(dataset), model)


def builder(model: str, *, channels: int) -> Callable[[], nn.Module]:
    """Return what makes a network of the paper, ``"mlp"`` or ``"cnn"``, for images of one channel or three."""
    if channels not in (1, 3):
        raise ValueError(f"images have {channels} channels; the paper's networks take 1 or 3.")
    networks: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: shokri.mlp(channels=channels),
        "cnn": shokri.mnist_cnn if channels == 1 else shokri.svhn_cnn,
    }
    if model not in networks:
        raise ValueError(f"model is {model!r}; choose mlp or cnn.")
    return networks[model]


def of_images(images: Images, model: str) -> Problem:
    """Return the problem of images that are already loaded; see `problem`."""
    raw = _of_images(images, model)
    mean, std = raw.inputs.mean(dim=(0, 2, 3), keepdim=True), raw.inputs.std(dim=(0, 2, 3), keepdim=True)
    for inputs in (raw.inputs, raw.test_inputs):
        inputs.sub_(mean).div_(std)
    return replace(raw, raw=False)


def _of_images(images: Images, model: str) -> Problem:
    build = builder(model, channels=images.train.shape[1])
    if images.classes != 10:
        raise ValueError(f"{images.name} has {images.classes} classes; the paper's networks tell 10 apart.")
    return Problem(
        name=f"{images.name}, {model}",
        inputs=shokri.inputs(images.train),
        labels=images.train_labels,
        test_inputs=shokri.inputs(images.test),
        test_labels=images.test_labels,
        build=build,
        raw=True,
    )


def share_out(records: int, participants: int, each: int, source: Source) -> list[Positions]:
    """The records of each participant: ``each`` of them, dealt from shuffled decks, so that none is dealt a second
    time before all were dealt once.
    """
    if not 1 <= each <= records:
        raise ValueError(f"each participant would have {each} records; it must be from 1 to {records}.")
    dealt: list[Positions] = []
    deck = source.permutation(records)
    for _ in range(participants):
        if deck.size < each:  # the rest of the deck, and the first of a new one that are not in it
            fresh = source.permutation(records)
            missing = each - deck.size
            new = fresh[~np.isin(fresh, deck)]
            hand, deck = np.concatenate([deck, new[:missing]]), fresh[~np.isin(fresh, new[:missing])]
        else:
            hand, deck = deck[:each], deck[each:]
        dealt.append(hand)
    return dealt
