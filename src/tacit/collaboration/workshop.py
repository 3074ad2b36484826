"""How a participant is put together from settings: the same for a simulation and for a real network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from tacit.collaboration.dataset import Loss
from tacit.collaboration.messages import Positions, Vector, portion
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.participant import LocalSgd, Participant, SelectedUploads, Training, Uploads
from tacit.collaboration.privacy import (
    UNIT,
    GaussianPrivacy,
    GaussianUploads,
    LocalDpSgd,
    SparseVectorPrivacy,
    SparseVectorUploads,
    whole_data_set,
)
from tacit.collaboration.selection import Agreed, AtRandom
from tacit.collaboration.settings import Settings
from tacit.ledger import Everyone, Header, Ledger, Step
from tacit.mechanisms import SparseVectorQuery, SumQuery
from tacit.randomness import Source


class Workshop:
    """Makes participants with ``records`` records and ``parameters`` parameters each; the noise is solved for once.

    ``noise`` is the noise multiplier that the budget asks for, 0 where there is none to solve for; ``query`` is that of
    sparse vector uploads, if they are, and ``normalisation`` the noise multiplier with which inputs are normalised, if
    they are privately. With ``places`` all upload those, and nothing is selected. What was ``spent`` before is within
    the same budget.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        records: int,
        parameters: int,
        places: Agreed | None = None,
        spent: Sequence[tuple[Step, int]] = (),
    ) -> None:
        self._settings, self._places, privacy = settings, places, settings.privacy
        if places is not None and isinstance(privacy, SparseVectorPrivacy):
            raise ValueError("sparse-vector finds its own places; for agreed ones choose gaussian or dp-sgd.")
        if spent and isinstance(privacy, SparseVectorPrivacy):
            raise ValueError("sparse-vector uploads are planned for a ledger of their own; choose gaussian or dp-sgd.")
        self.noise = 0.0
        self.normalisation: float | None = None
        self.query: SparseVectorQuery | None = None
        self._sum: SumQuery | None = None
        if isinstance(privacy, LocalDpSgd):
            self.noise = privacy.noise_multiplier(records=records, epochs=settings.epochs, spent=spent)
            self.normalisation = privacy.normalisation
        elif isinstance(privacy, GaussianPrivacy):
            self.noise = privacy.noise_multiplier(epochs=settings.epochs, spent=spent)
            self._sum = SumQuery(group="upload", clip_norm=privacy.clip_norm, noise_std=self.noise * privacy.clip_norm)
        elif isinstance(privacy, SparseVectorPrivacy):
            self.query = SparseVectorQuery(
                group="upload",
                epsilon=privacy.epsilon_per_epoch,
                releases=portion(settings.upload, parameters),
                bound=settings.limit,
                threshold=settings.threshold,
            )

    def participant(
        self,
        name: str,
        model: nn.Module,
        dataset: Dataset[Any],
        *,
        source: Source,
        ledger: Callable[[Header], Ledger],
        loss: Loss = F.cross_entropy,
        watch: Callable[[Vector], None] | None = None,
    ) -> Participant:
        """Return one participant; ``ledger`` opens the ledger of its uploads or its training, if they are private."""
        settings, privacy = self._settings, self._settings.privacy
        flat = FlatParameters(model)
        train: Training
        if isinstance(privacy, LocalDpSgd):
            seed = None if source.secure else seed_from(source)
            book = ledger(training_header(name, source))
            train = privacy.trainer(
                model,
                dataset,
                epochs=settings.epochs,
                noise_multiplier=self.noise,
                ledger=book,
                seed=seed,
                loss=loss,
            )
        else:
            train = local_sgd(model, dataset, settings, source, loss=loss)
        uploads = self._uploads(source, ledger)
        return Participant(name, flat, train, uploads if watch is None else _Watched(uploads, watch))

    @property
    def step(self) -> Step | None:
        """Return what an upload will be charged with when it is made, if it is then, and known beforehand."""
        return None if self._sum is None else Step(Everyone(unit=UNIT), (self._sum.event(),))

    def _uploads(self, source: Source, ledger: Callable[[Header], Ledger]) -> Uploads:
        settings = self._settings
        if self.query is not None:
            book = ledger(whole_data_set(secure=source.secure))
            return SparseVectorUploads(self.query, ledger=book, source=source)
        if self._sum is not None:
            return GaussianUploads(
                self._sum,
                self._places or AtRandom(fraction=settings.upload),
                bound=settings.limit,
                ledger=ledger(whole_data_set(secure=source.secure)),
                source=source,
            )
        return SelectedUploads(self._places or settings.rule(), bound=settings.limit, source=source)


class _Watched:
    """Uploads whose changes ``watch`` sees first."""

    def __init__(self, uploads: Uploads, watch: Callable[[Vector], None]) -> None:
        self._uploads, self._watch = uploads, watch

    def __call__(self, change: Vector) -> tuple[Positions | None, Vector]:
        self._watch(change)
        return self._uploads(change)


def local_sgd(
    model: nn.Module, dataset: Dataset[Any], settings: Settings, source: Source, *, loss: Loss = F.cross_entropy
) -> LocalSgd:
    """Return plain local training, in an order that ``source`` decides."""
    generator = torch.Generator().manual_seed(seed_from(source))
    return LocalSgd(
        model,
        dataset,
        loss=loss,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        generator=generator,
    )


def training_header(name: str, source: Source) -> Header:
    """Return the header of the ledger of a participant whose training is private."""
    return Header(secure_randomness=source.secure, purpose=name)


def seed_from(source: Source) -> int:
    """Return a seed for a generator of torch."""
    return int(source.integers(2**62, 1)[0])
