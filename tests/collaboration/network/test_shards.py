"""Several servers, each with a slice of the parameters: one upload for all of them, whatever any of them does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from collaboration.network.helpers import SIZE, Killed, Place, agreement, begin
from tacit.accounting import account
from tacit.collaboration import FlatParameters, LocalDpSgd, Participant, Settings
from tacit.collaboration.network import (
    Agreement,
    Credentials,
    GrpcServer,
    Link,
    Membership,
    Service,
    Shard,
    Store,
    codec,
    find_shards,
)
from tacit.collaboration.network.hosting import Terms, open_state
from tacit.collaboration.network.joining import agreed_settings, join
from tacit.collaboration.network.membership import identity, open_outbox
from tacit.collaboration.network.records import public_records, training_records
from tacit.ledger import Ledger

CUTS = ((0, 13), (13, SIZE))
Serve = Callable[..., Place]
Connect = Callable[..., Link]


class Wire:
    """A link to a service in this process; after ``lose`` the participant is dead: before or after it was heard."""

    address = "nowhere"

    def __init__(self, service: Service) -> None:
        self.service, self.lose = service, ""
        self.seen: list[bytes] = []

    def turn(self) -> int:
        return 0

    def pull(self, fraction: float, *, size: int, into: np.ndarray | None = None) -> object:
        found = codec.unpack_download(self.service.pull("ann", codec.pack_fraction(fraction)), size=size)
        if into is not None:
            into[:] = found.values
        return found

    def push(self, token: int, body: bytes) -> None:
        self.seen.append(body)
        if self.lose == "request":
            raise Killed
        self.service.push("ann", codec.pack_token(token) + body)
        if self.lose == "answer":
            raise Killed


class Group:
    """Two servers, and ann, whose n-th draw is n/1024 everywhere."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.draws = folder, 0
        for number, (start, stop) in enumerate(CUTS):
            begin(self.place(number), agreement(start=start, stop=stop, collaboration=f"{number}" * 32)).close()
        self.wires = [Wire(Service(Store(self.place(number)))) for number in range(len(CUTS))]

    def place(self, number: int) -> Path:
        return self.folder / f"server{number}"

    def restart(self, number: int) -> None:
        self.wires[number].service = Service(Store(self.place(number)))

    def shards(self) -> list[Shard]:
        return [
            Shard(link=wire, agreement=wire.service.agreement, due=codec.split_token(wire.service.agree("ann"))[0])  # type: ignore[arg-type]
            for wire in self.wires
        ]

    def member(self, shards: Sequence[Shard] | None = None) -> Membership:
        def uploads(change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            self.draws += 1
            return np.arange(5, 25), np.full(20, self.draws / 1024, dtype=np.float32)

        shards = self.shards() if shards is None else shards
        person = Participant("ann", FlatParameters(nn.Linear(7, 5)), lambda: None, uploads)
        return Membership(person, shards, open_outbox(self.folder / "ann", "ann", shards))

    def parameters(self) -> np.ndarray:
        return np.concatenate([wire.service.parameters()[1] for wire in self.wires])

    def close(self) -> None:
        for wire in self.wires:
            wire.service.close()


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


@pytest.mark.parametrize("lose", ["request", "answer"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_participant_that_dies_between_two_servers(number: int, lose: str, group: Group) -> None:
    """The parts of one draw reach all servers, once each; nothing is drawn for the server that was not reached."""
    first = group.member()
    first.exchange()
    group.wires[number].lose = lose
    with pytest.raises(Killed):
        first.exchange()
    first.close()
    group.wires[number].lose = ""
    second = group.member()
    second.exchange()
    second.close()
    assert group.draws == 3
    assert [wire.service.parameters()[0] for wire in group.wires] == [3, 3]
    expected = np.zeros(SIZE)
    expected[5:25] = (1 + 2 + 3) / 1024
    assert group.parameters().tolist() == expected.tolist()
    again = group.wires[number].seen
    assert len(again) == 4 and again[1] == again[2]
    other = group.wires[1 - number].seen
    assert len(other) == 3  # acknowledged before, or not sent before
    group.close()


def test_a_server_that_forgets_or_invents_uploads(group: Group, tmp_path: Path) -> None:
    """Nothing is drawn again for it, and the others are asked for nothing."""
    group.wires[1].service.close()
    shutil.copytree(group.place(1), tmp_path / "old")
    group.restart(1)
    one = group.member()
    one.exchange()
    one.close()
    group.wires[1].service.close()
    shutil.rmtree(group.place(1))
    (tmp_path / "old").rename(group.place(1))
    group.restart(1)
    with pytest.raises(ValueError, match="has lost some of its state"):
        group.member()
    honest, _ = group.shards()
    for due in (0, 2, 2**63):
        lying = Shard(link=group.wires[1], agreement=group.wires[1].service.agreement, due=due)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"has lost some of its state|old copy, or another participant"):
            group.member([honest, lying])
    assert group.draws == 1
    assert [len(wire.seen) for wire in group.wires] == [1, 1]
    group.close()


def test_servers_that_change(group: Group) -> None:
    """Which servers, in which number, with which slices: all of it is as it was when the folder was begun."""
    group.member().close()
    left, right = group.shards()

    def other(shard: Shard, **changes: object) -> Shard:
        facts = {name: getattr(shard.agreement, name) for name in Agreement.__dataclass_fields__}
        return Shard(link=shard.link, agreement=Agreement(**(facts | changes)), due=shard.due)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="belongs to 'ann' in the collaboration"):
        group.member([left, other(right, collaboration="2" * 32)])
    with pytest.raises(ValueError, match="have another start, stop"):
        group.member([other(left, stop=20), other(right, start=20)])
    with pytest.raises(ValueError, match="have another bound"):
        group.member([left, other(right, bound=0.25)])
    alone = other(left, stop=SIZE, collaboration=identity([left, right]))  # calls itself what both are called
    with pytest.raises(ValueError, match="another number of servers"):
        group.member([alone])
    group.member().close()  # and the folder was let go each time
    names = [(left, right), (other(left, collaboration="0 1"), other(right, collaboration="2")),
             (other(left, collaboration="0"), other(right, collaboration="1 2"))]  # fmt: skip
    assert len({identity(shards) for shards in names}) == 3
    group.close()


def test_a_whole_run_with_two_servers_one_of_which_is_away_for_a_while(
    serve: Serve, link: Connect, keys: Path, records: Path, tmp_path: Path
) -> None:
    """Over TLS, with noise: the budget holds, and the model is that of both servers together."""
    public, mine = public_records(str(records)), training_records(str(records))
    cuts = [(0, 100_000), (100_000, 140_106)]
    terms = [Terms(model="mlp", bound=1.0, upload=0.1, part=cut) for cut in cuts]
    stores = [open_state(tmp_path / f"s{n}", t, ["ann"], public) for n, t in enumerate(terms)]
    assert stores[0].agreement.mean == stores[1].agreement.mean != (0.0,)  # slices are normalised as well
    short = GrpcServer(Service(stores[1]), "127.0.0.1:0", Credentials.read(keys, "server"))
    short.start()
    left, addresses = serve(stores[0]), [f"127.0.0.1:{short.port}"]
    settings = Settings(participants=1, epochs=3, privacy=LocalDpSgd(epsilon=4.0, delta=1e-5))

    def run(**options: object) -> object:
        shards = find_shards([link(address, "ann") for address in (left.address, addresses[-1])])
        return join(
            shards, "ann", None, mine, tmp_path / "ann", agreed_settings(shards[0].agreement, settings), **options
        )  # type: ignore[arg-type]

    def away(*_: object) -> None:
        short.stop(0.0)
        raise Killed

    with pytest.raises(Killed):
        run(progress=away)
    right = serve(Store(tmp_path / "s1"))
    addresses.append(right.address)
    stand = run()
    assert stand.uploads == 3 and stand.stopped is None  # type: ignore[attr-defined]
    assert [place.service.parameters()[0] for place in (left, right)] == [3, 3]
    together = np.concatenate([place.service.parameters()[1] for place in (left, right)])
    assert np.array_equal(FlatParameters(stand.model).vector, together)  # type: ignore[attr-defined]
    spent = account(Ledger.load(tmp_path / "ann" / "ledger.jsonl"), delta=1e-5)
    assert stand.claim.whole.epsilon == spent.epsilon <= 4.0  # type: ignore[attr-defined]
    assert len(Ledger.load(tmp_path / "ann" / "ledger.jsonl")) == 12  # four lots an epoch


def test_the_command_serves_a_slice_with_public_records(records: Path, keys: Path, tmp_path: Path) -> None:
    """They say how inputs are normalised; there is no accuracy, as there is no whole model."""
    arguments = ["--state", str(tmp_path / "state"), "--model", "mlp", "--slice", "5:25", "--keys", str(keys)]
    arguments += ["--listen", "127.0.0.1:0", "--validate", str(records), "--status-port", "0", "--json"]
    server = subprocess.Popen(
        [sys.executable, "-m", "tacit.cli", "collaborate", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stdout is not None
        started = json.loads(server.stdout.readline())
        assert (started["start"], started["stop"], started["parameters"]) == (5, 25, 140_106)
        assert started["mean"] != [0.0] and started["status"].startswith("http://127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
