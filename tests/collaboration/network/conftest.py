"""What the tests of the network share: a small collaboration on this machine, with certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="the extra collab (grpcio) is not installed")

from collaboration.network.helpers import PEOPLE, Killed, Place
from tacit.collaboration import Settings
from tacit.collaboration.network import Credentials, GrpcServer, Link, Service, Store, find_shards, make_keys
from tacit.collaboration.network.hosting import Terms, open_state
from tacit.collaboration.network.joining import Stand, agreed_settings, join
from tacit.collaboration.network.records import public_records, training_records


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, servers=["127.0.0.1"], participants=[*PEOPLE, "eve"])
    return folder


@pytest.fixture
def serve(tmp_path: Path, keys: Path) -> Iterator[Callable[..., Place]]:
    """Start servers, with TLS, that end with the test."""
    with ExitStack() as stack:

        def start(store: Store, **options: Any) -> Place:
            service = Service(store, **options)
            server = GrpcServer(service, "127.0.0.1:0", Credentials.read(keys, "server"))
            server.start()
            stack.callback(server.stop, 0.2)
            return Place(service=service, server=server, address=f"127.0.0.1:{server.port}")

        yield start


@pytest.fixture
def link(keys: Path) -> Iterator[Callable[..., Link]]:
    with ExitStack() as stack:

        def connect(address: str, name: str, **options: Any) -> Link:
            made = Link(address, Credentials.read(keys, name), patience=20.0, **options)
            stack.callback(made.close)
            return made

        yield connect


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of little images whose brightest row is their label."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, size=400)
    images = rng.integers(0, 60, size=(400, 12, 12), dtype=np.uint8)
    images[np.arange(400), labels] += 150
    path = tmp_path_factory.mktemp("records") / "records.npz"
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture
def take_part(
    records: Path, serve: Callable[..., Place], link: Callable[..., Link], tmp_path: Path
) -> Callable[..., Any]:
    """Join, as ann, a collaboration of her own for three epochs."""
    terms = Terms(model="mlp", bound=1.0, upload=0.1)
    place = serve(open_state(tmp_path / "server", terms, ["ann"], public_records(str(records))), lease=600.0)

    def run(privacy: Any, *, until: int | None = None, epochs: int = 3, **options: Any) -> tuple[Any, Place]:
        shards = find_shards([link(place.address, "ann")])
        own = Settings(participants=1, epochs=epochs, privacy=privacy, learning_rate=0.1)

        def progress(stand: Stand) -> None:
            if stand.uploads == until:
                raise Killed

        settings = agreed_settings(shards[0].agreement, own)
        mine = training_records(str(records))
        return join(shards, "ann", None, mine, tmp_path / "ann", settings, progress=progress, **options), place

    return run
