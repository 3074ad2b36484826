"""A server from its first start on: what is agreed, the state in a folder, and how good the model is."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit.collaboration.exchange import Protocol
from tacit.collaboration.network.certificates import check_name
from tacit.collaboration.network.codec import Agreement
from tacit.collaboration.network.records import check_public, moments, normalised
from tacit.collaboration.network.service import Service
from tacit.collaboration.network.store import Store, rules_for
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.problem import builder

log = logging.getLogger("tacit")

_TIME_TO_LEARN = 30  # uploads


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What whoever begins a collaboration decides; None is the usual, or what was decided when it began."""

    model: str | None = None
    bound: float | None = None
    upload: float | None = None
    protocol: str | None = None
    pool: int | None = None
    part: tuple[int, int] | None = None
    image: tuple[int, ...] | None = None


def layout_digest(flat: FlatParameters) -> str:
    """Names and shapes of all parameters: those who share must have the same."""
    return hashlib.sha256(json.dumps(flat.layout).encode()).hexdigest()


def open_state(folder: Path, terms: Terms, people: Sequence[str], public: tuple[Tensor, Tensor] | None) -> Store:
    """The state in ``folder``, begun with ``terms`` if there is none; ``people`` are admitted."""
    for name in people:
        check_name(name)
    if (folder / "server.sqlite").exists():
        store = Store(folder)
        try:
            _check_same(store.agreement, terms)
            if public is not None:
                check_public(public, store.agreement.image)
        except ValueError:
            store.close()
            raise
    else:
        if terms.model is None:
            raise ValueError(f"{folder} has no server's state yet; say --model mlp or cnn to begin one.")
        store = _begin(folder, terms, len(people), public)
    for name in people:
        store.admit(name)
    return store


def _begin(folder: Path, terms: Terms, people: int, public: tuple[Tensor, Tensor] | None) -> Store:
    # Without public records inputs stay as they are: nobody knows the private ones' mean.
    image = terms.image or ()
    channels = image[0] if image else 1
    mean, std = (0.0,) * channels, (1.0,) * channels
    if public is not None:
        image = image or tuple(public[0].shape[1:])
        check_public(public, image)
        mean, std = moments(public[0])
    flat = FlatParameters(builder(str(terms.model), channels=len(mean))())
    start, stop = terms.part or (0, flat.vector.size)
    agreement = Agreement(
        collaboration=secrets.token_hex(16),
        model=str(terms.model),
        layout=layout_digest(flat),
        parameters=flat.vector.size,
        start=start,
        stop=stop,
        bound=terms.bound if terms.bound is not None else 0.01,
        upload=terms.upload if terms.upload is not None else 0.1,
        protocol=Protocol(terms.protocol or ("asynchronous" if terms.part or terms.pool else "round-robin")),
        pool=terms.pool or 0,
        mean=mean,
        std=std,
        image=image,
    )
    if (terms.pool or terms.part) and agreement.protocol is not Protocol.ASYNCHRONOUS:
        raise ValueError(f"protocol is {agreement.protocol}; pools and slices have no turns, they are asynchronous.")
    if terms.pool and terms.part:
        raise ValueError("a pool needs all parameters on one server; leave out the slice or the pool.")
    return Store.create(folder, agreement, flat.vector[start:stop], rules_for(agreement, participants=people))


def _check_same(agreed: Agreement, terms: Terms) -> None:
    held = {
        "model": agreed.model,
        "bound": agreed.bound,
        "upload": agreed.upload,
        "protocol": str(agreed.protocol),
        "pool": agreed.pool,
        "part": (agreed.start, agreed.stop),
        "image": agreed.image,
    }
    for name, value in held.items():
        wanted = getattr(terms, name)
        if wanted is not None and wanted != value:
            raise ValueError(
                f"{name} is {wanted}, but the collaboration began with {value}; leave it out, or begin another in "
                "another folder."
            )


class Judge:
    """The accuracy of the global parameters on public records, computed beside the server whenever they changed.

    ``chance`` is what always answering the most frequent class of these records would reach.
    """

    def __init__(
        self, service: Service, public: tuple[Tensor, Tensor], *, name: str = "public records", every: float = 2.0
    ) -> None:
        agreed = service.agreement
        if agreed.size != agreed.parameters:
            raise ValueError("a server that owns a slice has no whole model to validate; leave out --validate.")
        check_public(public, agreed.image)
        self._service, self._every, self.name = service, every, name
        self._model: nn.Module = builder(agreed.model, channels=len(agreed.mean))()
        self._flat = FlatParameters(self._model)
        self._inputs, self._labels = normalised(public[0], agreed.mean, agreed.std), public[1]
        self.records = len(self._labels)
        self.chance = int(torch.bincount(self._labels).max()) / self.records
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
        """The accuracy now; kept in ``history`` beside the number of uploads."""
        uploads, parameters = self._service.parameters()
        if self.history and self.history[-1][0] == uploads:
            return self.history[-1][1]
        self._flat.vector[:] = parameters
        self._model.eval()
        with torch.no_grad():
            pairs = zip(torch.split(self._inputs, 1000), torch.split(self._labels, 1000), strict=True)
            right = sum(int((self._model(inputs).argmax(dim=1) == labels).sum()) for inputs, labels in pairs)
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
