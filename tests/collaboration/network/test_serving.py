"""Over gRPC with certificates: the same result as in process, and who one is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from torch.utils.data import TensorDataset

from collaboration.network.helpers import PEOPLE, Place, agreement, begin
from tacit.collaboration import (
    FlatParameters,
    GaussianPrivacy,
    LocalDpSgd,
    ParameterServer,
    Participant,
    Problem,
    Reason,
    Refused,
    Rules,
    Settings,
    SparseVectorPrivacy,
)
from tacit.collaboration.network import Credentials, GrpcServer, Link, Membership, Service, find_shards
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.workshop import Workshop
from tacit.ledger import Ledger
from tacit.randomness import SeededSource

Serve = Callable[..., Place]
Connect = Callable[..., Link]


def people(problem: Problem, settings: Settings) -> list[Participant]:
    """The same participants each time."""
    size = FlatParameters(problem.network(1)).vector.size
    workshop = Workshop(settings, records=20, parameters=size)
    made = []
    for number, name in enumerate(PEOPLE):
        rows = slice(20 * number, 20 * number + 20)
        source = SeededSource(100 + number)
        held = TensorDataset(problem.inputs[rows], problem.labels[rows])
        made.append(workshop.participant(name, problem.network(1), held, source=source, ledger=lambda h: Ledger(h)))
    return made


PRIVACY = {
    "none": None,
    "sparse": SparseVectorPrivacy(epsilon_per_epoch=100.0),
    "gaussian": GaussianPrivacy(epsilon=50.0, delta=1e-5, clip_norm=0.1),
    "dp-sgd": LocalDpSgd(epsilon=5.0, delta=1e-5),
}


@pytest.mark.parametrize(("privacy", "download"), [("none", 0.3), ("sparse", 1.0), ("gaussian", 0.3), ("dp-sgd", 1.0)])
def test_the_same_order_gives_the_same_bits_as_in_process(
    small: Problem, privacy: str, download: float, serve: Serve, link: Connect, tmp_path: Path
) -> None:
    settings = Settings(
        participants=3, epochs=3, upload=0.2, download=download, bound=0.05, privacy=PRIVACY[privacy], seed=1
    )
    initial = FlatParameters(small.network(1)).vector
    agreed = agreement(parameters=initial.size, stop=initial.size, bound=0.05, upload=0.2, protocol="round-robin")
    order = [0, 1, 2] * 3

    local = ParameterServer(initial, Rules(bound=0.05, upload=0.2, decay_every=3), PEOPLE)
    here = people(small, settings)
    for number in order:
        here[number].begin(local.pull(download))
        here[number].train()
        upload = here[number].finish()
        local.push(upload.participant, upload.sequence, upload.indices, upload.values)

    place = serve(begin(tmp_path / "server", agreed, initial=initial))
    there = [
        Membership(person, shards, open_outbox(tmp_path / person.name, person.name, shards), download=download)
        for person in people(small, settings)
        for shards in [find_shards([link(place.address, person.name)])]
    ]
    for number in order:
        there[number].exchange()
    uploads, parameters = place.service.parameters()
    assert uploads == 9
    assert parameters.tobytes() == local.parameters.tobytes()
    assert not np.array_equal(parameters, initial)
    for membership in there:
        assert membership.outbox.unsent() == []
        membership.close()


def test_the_certificate_names_the_participant(serve: Serve, keys: Path, tmp_path: Path, link: Connect) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    due, agreed = link(place.address, "ann").agree()
    assert (due, agreed) == (0, agreement())
    with pytest.raises(Refused) as error:  # of the same authority, but nobody admitted her
        link(place.address, "eve").agree()
    assert error.value.reason is Reason.UNKNOWN
    metadata = [("tacit-participant", "ann")]  # saying so is not enough
    eve = Credentials.read(keys, "eve")
    own = grpc.ssl_channel_credentials(eve.authority, eve.key, eve.certificate)
    with grpc.secure_channel(place.address, own) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/tacit.Collaboration/Agree")(b"", metadata=metadata, timeout=5)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def _status(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    made = grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    with made as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/tacit.Collaboration/Agree")(b"", timeout=5)
    return refused.value.code()


def test_without_a_certificate_of_the_authority_there_is_no_connection(
    serve: Serve, keys: Path, tmp_path: Path
) -> None:
    from tacit.collaboration.network import make_keys

    place = serve(begin(tmp_path / "server", agreement()))
    ours = Credentials.read(keys, "ann")
    make_keys(tmp_path / "other", servers=["127.0.0.1"], participants=["ann"])
    other = Credentials.read(tmp_path / "other", "ann")
    server = Credentials.read(keys, "server")
    for credentials in (
        None,  # no TLS
        grpc.ssl_channel_credentials(ours.authority),  # no certificate
        grpc.ssl_channel_credentials(ours.authority, other.key, other.certificate),  # somebody else's authority
        grpc.ssl_channel_credentials(ours.authority, server.key, server.certificate),  # a server's certificate
    ):
        assert _status(place.address, credentials) is grpc.StatusCode.UNAVAILABLE


def test_a_participant_cannot_pass_for_the_server(keys: Path, tmp_path: Path) -> None:
    service = Service(begin(tmp_path / "server", agreement()))
    server = GrpcServer(service, "127.0.0.1:0", Credentials.read(keys, "bob"))
    server.start()
    try:
        ann = Credentials.read(keys, "ann")
        own = grpc.ssl_channel_credentials(ann.authority, ann.key, ann.certificate)
        assert _status(f"127.0.0.1:{server.port}", own) is grpc.StatusCode.UNAVAILABLE
    finally:
        server.stop(0.1)


def test_without_tls_only_on_this_machine(tmp_path: Path) -> None:
    service = Service(begin(tmp_path / "server", agreement()))
    for listen in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"):
        with pytest.raises(ValueError, match="without certificates only"):
            GrpcServer(service, listen, None)
        with pytest.raises(ValueError, match="without certificates only"):
            Link(listen, None, name="ann")
    server = GrpcServer(service, "127.0.0.1:0", None)
    server.start()
    link = Link(f"127.0.0.1:{server.port}", None, name="ann")
    assert link.agree()[0] == 0
    link.close()
    server.stop(0.1)


def test_long_messages_pass_and_longer_ones_do_not(serve: Serve, link: Connect, tmp_path: Path, keys: Path) -> None:
    """Two million parameters: 8 MB each way, beyond gRPC's usual 4 MiB."""
    from tacit.collaboration.network import codec

    size = 2_000_000
    place = serve(begin(tmp_path / "server", agreement(parameters=size, stop=size, upload=1.0)))
    ann = link(place.address, "ann")
    values = np.full(size, 0.25, dtype=np.float32)
    ann.push(0, codec.pack_upload(0, np.arange(size), values, size=size))
    assert np.array_equal(ann.pull(1.0, size=size).values, values)
    half = ann.pull(0.5, size=size)
    assert half.indices is not None and half.values.size == size // 2
    credentials = Credentials.read(keys, "ann")
    own = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    unlimited = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(place.address, own, options=unlimited) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/tacit.Collaboration/Push")(bytes(8 * size + 100_000), timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert place.service.parameters()[0] == 1


def test_without_grpc_there_is_a_sentence() -> None:
    script = """
import sys
sys.modules["grpc"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "grpc" else found(name, *rest)
from tacit.cli import main
main(["collaborate", "keys"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "tacit: a collaboration over a network needs grpcio; install it with: pip install 'tacit[collab]'"
    )
