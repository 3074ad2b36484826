"""A real federation on this machine: SuperLink, three SuperNodes, TLS, registered keys. Minutes, most of it waiting."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")


from flower import helpers
from flower.federation import Federation, wait
from flower.test_exchange import SETTINGS, kept, reference, taken
from tacit.collaboration import FlatParameters
from tacit.collaboration.network import Store
from tacit.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

EXCHANGE = """
from dataclasses import replace
from pathlib import Path
from exchange.helpers import network, records
from tacit.collaboration import GaussianPrivacy, Settings
from tacit.flower import Host, Member, participant_app, server_app

def prepare(context):
    number, folder = int(context.node_config["partition-id"]), Path(str(context.run_config["folder"]))
    inputs, labels = records(number)
    own = folder / str(context.node_id)
    privacy = GaussianPrivacy(epsilon=50.0, delta=1e-5, clip_norm=0.1)
    settings = Settings(epochs=3, privacy=privacy, seed=9 + number)
    return Member(network=network, inputs=inputs, labels=labels, settings=settings, folder=own)

def host(context):
    folder = Path(str(context.run_config["folder"])) / "server"
    return Host(network=network, folder=folder, participants=3, bound=0.05, upload=0.2, patience=300.0)

client = participant_app(prepare)
server = server_app(host)
"""

ECHO = """
import json, time
from pathlib import Path
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
import numpy as np

client = ClientApp()
server = ServerApp()

@client.train()
def echo(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    nodes, seconds = list(grid.get_node_ids()), []
    content = RecordDict({"values": ArrayRecord([np.zeros(14_010, dtype=np.float32)])})
    for turn in range(6):
        began = time.monotonic()
        (number,) = grid.push_messages([Message(content, nodes[turn % len(nodes)], "train")])
        while not list(grid.pull_messages([number])):
            time.sleep(0.1)
        seconds.append(time.monotonic() - began)
    Path(str(context.run_config["folder"])).write_text(json.dumps(seconds))
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, list[int]]]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        nodes = [node for number in range(3) if (node := made.node(number, 3)) is not None]
        made.node(3, 4, registered=False)
        wait(lambda: sum("Activated" in line for line in made.log("superlink").splitlines()) >= 3, "three SuperNodes")
        yield made, nodes
    finally:
        made.stop()


def test_an_exchange_has_the_bits_of_one_in_process(federation: tuple[Federation, list[int]], tmp_path: Path) -> None:
    made, nodes = federation
    app = made.app("exchange", EXCHANGE, Path(helpers.__file__))
    made.finish(made.run(app, tmp_path))
    committed = taken(tmp_path)
    assert sorted(committed) == sorted((str(node), sequence) for node in nodes for sequence in range(3))
    expected, _ = reference(SETTINGS, [int(name) for name, _ in committed], download=1.0, nodes=nodes)
    store = Store(tmp_path / "server")
    found = store.server().parameters
    store.close()
    assert found.tobytes() == expected.tobytes()
    assert not np.array_equal(found, FlatParameters(helpers.network()).vector)


def test_only_registered_keys_take_part(federation: tuple[Federation, list[int]]) -> None:
    made, nodes = federation
    listed = made.cli("supernode", "list", "here")["nodes"]
    assert sorted(int(known["node-id"]) for known in listed) == sorted(nodes)
    assert "SuperNode ID" not in made.log("supernode-3")


def test_a_killed_server_loses_nothing_and_no_upload_is_charged_twice(
    federation: tuple[Federation, list[int]], tmp_path: Path
) -> None:
    made, nodes = federation
    app = made.folder / "apps" / "exchange"
    if not app.exists():
        app = made.app("exchange", EXCHANGE, Path(helpers.__file__))
    made.run(app, tmp_path)
    wait(lambda: (tmp_path / "server" / "server.sqlite").exists() and taken(tmp_path), "a first upload")
    (process,) = made.serverapps()
    os.kill(process, signal.SIGKILL)
    had = taken(tmp_path)
    assert len(had) < 9
    made.finish(made.run(app, tmp_path))
    committed = taken(tmp_path)
    assert list(committed.items())[: len(had)] == list(had.items())
    assert sorted(committed) == sorted((str(node), sequence) for node in nodes for sequence in range(3))
    for node in nodes:
        assert len(Ledger.load(tmp_path / str(node) / "ledger.jsonl")) == 3  # one charge for each upload
        assert kept(tmp_path, node) == {sequence: committed[str(node), sequence] for sequence in range(3)}


def test_the_example_averages_privately(federation: tuple[Federation, list[int]], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    made, _ = federation
    app = made.folder / "apps" / "flower"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "flower", app)
    settings = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(settings.replace("hospitals.exchange", "hospitals.averaging"))
    made.finish(made.run(app, tmp_path / "server", "epochs=2", "epsilon=20.0"))
    ledger = Ledger.load(tmp_path / "server" / "ledger.jsonl")
    assert len(ledger) == 2 and ledger.header.unit == "participant" and ledger.header.secure_randomness


def test_the_latency_of_a_message(
    federation: tuple[Federation, list[int]], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    made, _ = federation
    made.finish(made.run(made.app("echo", ECHO), tmp_path / "seconds.json"))
    seconds = json.loads((tmp_path / "seconds.json").read_text())
    record_property("seconds", seconds)
    print("seconds for a message of 56 kB and its echo:", [round(value, 1) for value in seconds])
    assert len(seconds) == 6 and max(seconds) < 120
