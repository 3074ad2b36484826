"""The accuracy of the global model on public records, measured beside the server."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tacit.collaboration.dataset import as_dataset, batch_of, check_fits, count
from tacit.collaboration.network.hosting import Network, check_network
from tacit.collaboration.network.records import check_public, normalised
from tacit.collaboration.network.service import Service
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.problem import builder

log = logging.getLogger("tacit")

_TIME_TO_LEARN = 30  # uploads
_BATCH = 1000


class Judge:
    """The accuracy of the global parameters on public records, computed beside the server whenever they changed.

    ``dataset`` is what ``model`` takes, with whole numbers as targets. ``chance`` is what always answering the most
    frequent class of these records would reach.
    """

    def __init__(
        self,
        service: Service,
        dataset: Dataset[Any],
        model: nn.Module,
        *,
        name: str = "public records",
        every: float = 2.0,
    ) -> None:
        agreed = service.agreement
        if agreed.size != agreed.parameters:
            raise ValueError("a server that owns a slice has no whole model to validate; leave out --validate.")
        self._service, self._every, self.name, self._dataset = service, every, name, dataset
        self._model, self._flat = model, FlatParameters(model)
        self.records = count(dataset)
        self.chance = _check_classes(dataset)
        self._stop, self._doubted = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.history: list[tuple[int, float]] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.look()
            if self._stop.wait(self._every):
                return

    def look(self) -> float:
        """Return the accuracy now; kept in ``history`` beside the number of uploads."""
        uploads, parameters = self._service.parameters()
        if self.history and self.history[-1][0] == uploads:
            return self.history[-1][1]
        self._flat.vector[:] = parameters
        self._model.eval()
        right = 0
        with torch.no_grad():
            for places in torch.split(torch.arange(self.records), _BATCH):
                inputs, labels = batch_of(self._dataset, places)
                right += int((self._model(*inputs).argmax(dim=1) == labels).sum())
        accuracy = right / self.records
        self.history.append((uploads, accuracy))
        log.info("after %d uploads: accuracy %.4f on %s (chance %.4f)", uploads, accuracy, self.name, self.chance)
        self._doubt(uploads, accuracy)
        return accuracy

    def _doubt(self, uploads: int, accuracy: float) -> None:
        """Warn, once, that a model which has had time to learn does no better than chance on these records."""
        spread = math.sqrt(self.chance * (1 - self.chance) / self.records)
        if self._doubted or uploads < _TIME_TO_LEARN or accuracy > self.chance + 3 * spread:
            return
        self._doubted = True
        log.warning(
            "after %d uploads the accuracy on %s is %.3f, no better than always answering its most frequent class "
            "(%.3f): the model has not learned yet, or these records are not of the participants' task; then neither "
            "their accuracy nor the normalisation taken from them means anything",
            uploads,
            self.name,
            accuracy,
            self.chance,
        )


def _check_classes(dataset: Dataset[Any]) -> float:
    """Return the share of the most frequent class; refuses targets that are no classes, or only one."""
    targets = torch.cat([batch_of(dataset, places)[1] for places in torch.split(torch.arange(count(dataset)), _BATCH)])
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"the public records' targets are {targets.dtype} of shape {tuple(targets.shape[1:])}; accuracy needs one "
            "whole number a record. Leave out --validate for another task."
        )
    if int(targets.min()) == int(targets.max()):
        raise ValueError("all public records have the same label; their accuracy would say nothing about a model.")
    return int(torch.bincount(targets - targets.min()).max()) / len(targets)


def judge_of(
    service: Service, records: Any, *, network: Network | None = None, name: str = "public records"
) -> Judge | None:
    """Return the judge of the global model; None for a server of a slice, which has no whole one.

    ``records`` are images (bytes) and labels for the paper's networks, else a data set as ``network()`` takes it.
    """
    agreed = service.agreement
    if agreed.size != agreed.parameters:
        return None
    if agreed.own_network:
        if network is None:
            raise ValueError(f"to validate {agreed.model} the server must build it; give --model package.module:build.")
        model, dataset = network(), as_dataset(records)
        check_network(agreed, model)
        check_fits(model, dataset, lambda outputs, _: outputs.sum())
        return Judge(service, dataset, model, name=name)
    check_public(records, agreed.shape)
    model = builder(agreed.model, channels=len(agreed.mean))()
    inputs = normalised(records[0], agreed.mean, agreed.std)
    return Judge(service, TensorDataset(inputs, records[1]), model, name=name)
