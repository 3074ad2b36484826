"""What the tests of the network share: a small collaboration on this machine, with certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra collab (grpcio) is not installed")

from collaboration.network.helpers import PEOPLE, Place
from tacit.collaboration.network import Credentials, GrpcServer, Link, Service, Store, make_keys


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
