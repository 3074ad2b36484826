"""A participant of distributed selective SGD (Shokri & Shmatikov 2015, Figure 3): a state machine without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from tacit.collaboration.dataset import Loss, batch_of, count
from tacit.collaboration.messages import Download, Positions, Upload, Vector
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.selection import Selection
from tacit.randomness import Source


class Uploads(Protocol):
    """Makes positions (None for all) and values to send of the change over a local epoch, which it may overwrite.

    Called once for each upload.
    """

    def __call__(self, change: Vector) -> tuple[Positions | None, Vector]: ...


class Training(Protocol):
    """One local epoch for each call; ``steps`` counts what was done so far and is all there is to remember."""

    steps: int

    def __call__(self) -> None: ...


class Participant:
    """One party: a model's parameters, a way to train them for an epoch on records that stay here, a way to upload.

        participant.begin(server.pull())        # download, overwrite
        participant.train()                     # one epoch of local SGD
        upload = participant.finish()           # the change: selected, bounded, perhaps with noise

    An upload that `finish` returned is to be sent as it is, as often as it takes: finishing again would be another
    release. ``sequence`` is the number of the next upload.
    """

    def __init__(
        self, name: str, parameters: FlatParameters, train: Callable[[], None], uploads: Uploads, *, sequence: int = 0
    ) -> None:
        self.name, self.sequence, self.parameters = name, sequence, parameters
        self.training, self._uploads = train, uploads
        self._spare: Vector | None = None
        self._begun = False

    @property
    def steps(self) -> int:
        """Return the number of steps of local training so far, if it counts them."""
        return int(getattr(self.training, "steps", 0))

    def resume(self, *, sequence: int, steps: int, parameters: Vector) -> None:
        """Go on where another process stopped."""
        if parameters.shape != self.parameters.vector.shape:
            raise ValueError(
                f"the stored position has {parameters.size} parameters, the model {self.parameters.vector.size}; it "
                "belongs to another model."
            )
        self.sequence = sequence
        self.parameters.vector[:] = parameters
        if steps:
            setattr(self.training, "steps", steps)  # noqa: B010

    @property
    def spare(self) -> Vector:
        """Return memory of the model's size; `begin` takes a whole download in it without a copy."""
        self._begun = False  # the parameters before the epoch were kept here
        if self._spare is None:
            self._spare = np.empty_like(self.parameters.vector)
        return self._spare

    def begin(self, download: Download) -> None:
        """Overwrite local parameters with downloaded ones."""
        vector, before = self.parameters.vector, self.spare
        if download.indices is None:
            if download.values.shape != vector.shape:
                raise ValueError(
                    f"the download has {download.values.size} values, the model {vector.size} parameters; the "
                    "participants must have the same network."
                )
            np.copyto(vector, download.values)
        else:
            vector[download.indices] = download.values
        if download.values is not before:
            np.copyto(before, vector)
        self._begun = True

    def train(self) -> None:
        """One epoch on the local records."""
        self.training()

    def finish(self) -> Upload:
        """Return the upload of this epoch. An entry that is not finite counts as unchanged."""
        if not self._begun or self._spare is None:
            raise RuntimeError("there is nothing to upload; begin with a download.")
        change = np.subtract(self.parameters.vector, self._spare, out=self._spare)
        self._begun, self._spare = False, None  # the memory is the upload's from now on
        if not np.isfinite(change).all():
            np.nan_to_num(change, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        indices, values = self._uploads(change)
        sequence, self.sequence = self.sequence, self.sequence + 1
        return Upload(participant=self.name, sequence=sequence, indices=indices, values=values)


class SelectedUploads:
    """The selected changes, bounded to [-γ, γ], without noise: nothing is promised about the records behind them."""

    def __init__(self, selection: Selection, *, bound: float, source: Source) -> None:
        self._selection, self._bound, self._source = selection, inside(bound), source

    def __call__(self, change: Vector) -> tuple[Positions | None, Vector]:
        indices = self._selection.choose(change, self._source)
        chosen = change if indices is None else change[indices]
        return indices, np.clip(chosen, -self._bound, self._bound, out=chosen)


def inside(bound: float) -> np.float32:
    """Return the largest float32 that does not exceed ``bound``: a value clipped to it passes the server's check."""
    nearest = np.float32(bound)
    return nearest if float(nearest) <= bound else np.nextafter(nearest, np.float32(0))


class LocalSgd:
    """One epoch of plain SGD for each call: minibatches in an order drawn anew, learning rate α / (1 + t · decay)."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        *,
        learning_rate: float,
        decay: float = 1e-7,
        batch_size: int = 32,
        generator: torch.Generator,
        loss: Loss = F.cross_entropy,
    ) -> None:
        self._model, self._dataset, self._loss = model, dataset, loss
        self._rate, self._decay, self._size, self._generator = learning_rate, decay, batch_size, generator
        self._optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        self.steps = 0

    def __call__(self) -> None:
        order = torch.randperm(count(self._dataset), generator=self._generator)
        self._model.train()
        for rows in torch.split(order, self._size):
            self._optimizer.param_groups[0]["lr"] = self._rate / (1 + self.steps * self._decay)
            self._optimizer.zero_grad()
            inputs, target = batch_of(self._dataset, rows)
            torch.autograd.backward(self._loss(self._model(*inputs), target))
            self._optimizer.step()
            self.steps += 1
        self._optimizer.zero_grad()  # of a large model, gradients are as much memory as the parameters
