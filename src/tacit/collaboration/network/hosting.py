"""A server from its first start on: what is agreed, and the state in a folder."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from tacit.collaboration.architecture import NONE, Architecture
from tacit.collaboration.exchange import Protocol
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.certificates import check_name
from tacit.collaboration.network.records import check_public, moments
from tacit.collaboration.network.store import Store, rules_for
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.problem import builder

log = logging.getLogger("tacit")


Network = Callable[[], nn.Module]
Public = tuple[Tensor, Tensor]
"""Public images (bytes) and labels."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a new collaboration; None is the usual, or what was decided when it began.

    ``model`` is ``"mlp"`` or ``"cnn"``, the paper's networks, or a name for people to read, beside a network of one's
    own. See `Agreement` for the others.
    """

    model: str | None = None
    bound: float | None = None
    upload: float | None = None
    protocol: str | None = None
    pool: int | None = None
    part: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None
    schema: str | None = None
    mechanism: str | None = None
    epsilon: float | None = None
    delta: float | None = None


def layout_digest(flat: FlatParameters) -> str:
    """Return names and shapes of all parameters: those who share must have the same."""
    return hashlib.sha256(json.dumps(flat.layout).encode()).hexdigest()


def open_state(
    folder: Path, terms: Terms, people: Sequence[str], public: Public | None = None, network: Network | None = None
) -> Store:
    """Return the state in ``folder``, begun with ``terms`` if there is none; ``people`` are admitted.

    ``public`` are images for the paper's networks, ``network`` builds one's own instead.
    """
    for name in people:
        check_name(name)
    if (folder / "server.sqlite").exists():
        store = Store(folder)
        try:
            _check_same(store.agreement, terms, network)
            if public is not None:
                check_public(public, store.agreement.shape)
        except ValueError:
            store.close()
            raise
    else:
        if terms.model is None:
            raise ValueError(
                f"{folder} has no server's state yet; say --model mlp, cnn or package.module:build to begin one."
            )
        agreement, flat = _begun(terms, public, network)
        initial = flat.vector[agreement.start : agreement.stop]
        store = Store.create(folder, agreement, initial, rules_for(agreement, participants=len(people)))
    for name in people:
        store.admit(name)
    return store


def _begun(terms: Terms, public: Public | None, network: Network | None) -> tuple[Agreement, FlatParameters]:
    """Return what is agreed, and the first parameters."""
    # Without public records inputs stay as they are: the private ones' mean is not public.
    shape = terms.shape or ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if network is None:
        channels = shape[0] if shape else 1
        mean, std = (0.0,) * channels, (1.0,) * channels
        if public is not None:
            shape = shape or tuple(public[0].shape[1:])
            check_public(public, shape)
            mean, std = moments(public[0])
        network = builder(str(terms.model), channels=len(mean))
        architecture = NONE
        model = network()
    else:
        model = network()
        architecture = Architecture.of(model)
    flat = FlatParameters(model)
    start, stop = terms.part or (0, flat.vector.size)
    agreement = Agreement(
        collaboration=secrets.token_hex(16),
        model=str(terms.model),
        layout=layout_digest(flat),
        parameters=flat.vector.size,
        start=start,
        stop=stop,
        bound=terms.bound if terms.bound is not None else (1.0 if terms.mechanism == "dp-sgd" else 0.01),
        upload=terms.upload if terms.upload is not None else 0.1,
        protocol=Protocol(terms.protocol or ("asynchronous" if terms.part or terms.pool else "round-robin")),
        pool=terms.pool or 0,
        mean=mean,
        std=std,
        shape=shape,
        schema=terms.schema or "",
        mechanism=terms.mechanism or "",
        epsilon=terms.epsilon or 0.0,
        delta=terms.delta or 0.0,
        architecture=architecture,
    )
    if (terms.pool or terms.part) and agreement.protocol is not Protocol.ASYNCHRONOUS:
        raise ValueError(f"protocol is {agreement.protocol}; pools and slices have no turns, they are asynchronous.")
    if terms.pool and terms.part:
        raise ValueError("a pool needs all parameters on one server; leave out the slice or the pool.")
    return agreement, flat


def _check_same(agreed: Agreement, terms: Terms, network: Network | None) -> None:
    """Refuse terms, or a network, that are not those the collaboration began with."""
    held = {
        "model": terms.model if network is not None and agreed.own_network else agreed.model,
        "bound": agreed.bound,
        "upload": agreed.upload,
        "protocol": str(agreed.protocol),
        "pool": agreed.pool,
        "part": (agreed.start, agreed.stop),
        "shape": agreed.shape,
        "schema": agreed.schema,
        "mechanism": agreed.mechanism,
        "epsilon": agreed.epsilon,
        "delta": agreed.delta,
    }
    for name, value in held.items():
        wanted = getattr(terms, name)
        if wanted is not None and wanted != value:
            raise ValueError(
                f"{name} is {wanted}, but the collaboration began with {value}; leave it out, or begin another in "
                "another folder."
            )
    if network is not None:
        check_network(agreed, network())


def check_network(agreed: Agreement, model: nn.Module) -> None:
    """Refuse a network that is not the one the collaboration is about; the first difference is named."""
    if agreed.own_network:
        difference = Architecture.of(model).difference(agreed.architecture)
        if difference is not None:
            raise ValueError(
                f"the network here is not the collaboration's, {agreed.model}: {difference}. Nothing was sent; build "
                "the same network everywhere."
            )
    flat = FlatParameters(model)
    if layout_digest(flat) != agreed.layout or flat.vector.size != agreed.parameters:
        raise ValueError(
            f"the collaboration's {agreed.model} has {agreed.parameters} parameters, or others, and the network here "
            f"{flat.vector.size}; use the same network, from the same version of tacit."
        )
