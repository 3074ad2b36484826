"""What the protocol costs, for the paper's MLP on MNIST (140,106 parameters): in one process, and over a network.

**Exchange**: CPU milliseconds of everything but local training. Ten participants with 140,106 parameters each exchange
with the server in turn; between download and upload each really trains, on one minibatch, so that caches are as cold as
in use. The median of several rounds. The targets are 1.5 ms without sparse vector and 10 ms with it.

**Load**: 150 clients (8 for a model of 10 million parameters) over loopback, each with a certificate and a TLS
connection of its own, in two processes, upload (θ_u = 0.1) or download (all, or a tenth) one message after the other
from one server, whose uploads are on the disk before they are acknowledged. Beside it a bare gRPC echo, with the same
certificates and options, of a message of the same length: it looks at nothing, keeps nothing, has 16 threads (more made
it no quicker) and sends all of it back, whereas an upload's acknowledgement is one byte. So there is a bare sink too
that answers with one byte: what gRPC and TLS alone make of uploads. Throughput (target: at least half of the echo's),
latency, and by how much the server's memory grows at most; they take turns.

**Memory**: by how much a participant's process grows at most when it trains a model of 10 million parameters alone, and
when it takes part with it (two exchanges over mutual TLS, plain uploads of a tenth and of all parameters).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from torch.utils.data import TensorDataset

from tacit.collaboration import GaussianPrivacy, Problem, Settings, SparseVectorPrivacy, join, serve, simulate
from tacit.collaboration.network import Agreement, Credentials, GrpcServer, Link, Service, Store, codec, make_keys
from tacit.collaboration.network.serving import SERVICE
from tacit.collaboration.network.store import rules_for
from tacit.collaboration.participant import LocalSgd
from tacit.models import shokri

Row = dict[str, Any]

BASE = Settings(participants=10, epochs=5, share=0.1)
SPARSE = SparseVectorPrivacy(epsilon_per_epoch=14_010.0)
GAUSSIAN = GaussianPrivacy(epsilon=100.0, delta=1e-5, clip_norm=0.1)
CASES: list[tuple[str, float | None, Settings]] = [
    ("largest, upload 0.1", 1.5, BASE),
    ("largest, upload 0.01", 1.5, replace(BASE, upload=0.01)),
    ("everything", 1.5, replace(BASE, upload=1.0)),
    ("threshold, upload 0.1", 1.5, replace(BASE, selection="threshold")),
    ("random, upload 0.1", 1.5, replace(BASE, selection="random")),
    ("largest, upload 0.1, download 0.1", 1.5, replace(BASE, download=0.1)),
    ("sparse vector, upload 0.1", 10.0, replace(BASE, privacy=SPARSE)),
    ("sparse vector, upload 0.01", 10.0, replace(BASE, upload=0.01, privacy=SPARSE)),
    ("gaussian, upload 0.1", None, replace(BASE, privacy=GAUSSIAN)),
]


def measure(settings: Settings, rounds: int) -> float:
    """Milliseconds an exchange."""
    problem = Problem(
        name="noise",
        inputs=torch.randn(320, 1, 32, 32),
        labels=torch.arange(320) % 10,
        test_inputs=torch.randn(10, 1, 32, 32),
        test_labels=torch.arange(10),
        build=lambda: shokri.mlp(channels=1),
    )
    results = [simulate(problem, settings, baselines=False) for _ in range(rounds)]
    return statistics.median(1000 * result.protocol_seconds / result.exchanges for result in results)


# -- load ------------------------------------------------------------------------------------------------------------

PROCESSES = 2


@dataclass(frozen=True)
class Size:
    """A model, and how many clients there are: a large model's messages would not fit in memory for more."""

    parameters: int
    clients: int
    calls: int  # of each client


SMALL, LARGE = Size(140_106, 150, 10), Size(10_000_000, 8, 4)
REAL = ("upload", "download", "download of a tenth")
BARE = {"echo of an upload": "Echo", "sink of an upload": "Sink"}
SPAWN = multiprocessing.get_context("spawn")


def agreed(size: Size) -> Agreement:
    owned: dict[str, Any] = {"parameters": size.parameters, "start": 0, "stop": size.parameters}
    rules: dict[str, Any] = {"bound": 0.01, "upload": 0.1, "protocol": "asynchronous", "pool": 0}
    return Agreement(collaboration="load", model="mlp", layout="load", **owned, **rules)


def run_server(folder: Path, bare: bool, said: Any, stop: Any) -> None:
    """In a process of its own: the real server, or one that sends back what it gets, or nothing but a byte."""
    credentials = Credentials.read(folder / "keys", "server")
    if bare:
        own = grpc.ssl_server_credentials(
            [(credentials.key, credentials.certificate)], credentials.authority, require_client_auth=True
        )
        options = [
            ("grpc.max_receive_message_length", 1 << 27),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=options)
        bare_methods = {
            "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
            "Sink": grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x00"),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, bare_methods),))
        said.put(server.add_secure_port("127.0.0.1:0", own))
        server.start()
        stop.wait()
        server.stop(1.0).wait()
        return
    real = GrpcServer(Service(Store(folder / "state")), "127.0.0.1:0", credentials)
    real.start()
    said.put(real.port)
    stop.wait()
    real.stop(1.0)


def run_clients(folder: Path, port: int, first: int, count: int, size: Size, kind: str, start: Any, said: Any) -> None:
    """In a process of its own: so many clients, each a thread and a connection; says how long each call took."""
    rng = np.random.default_rng(first)
    most, parameters = agreed(size).most, size.parameters
    places = np.sort(rng.choice(parameters, size=most, replace=False))
    values = rng.uniform(-0.01, 0.01, size=most).astype(np.float32)
    links = [
        Link(f"127.0.0.1:{port}", Credentials.read(folder / "keys", f"client{number}"), patience=60.0)
        for number in range(first, first + count)
    ]
    times: list[list[float]] = [[] for _ in links]
    due = [0] * count

    def once(link: Link, sequence: int) -> None:
        if kind == "upload":
            link.push(0, codec.pack_upload(sequence, places, values, size=parameters))
        elif kind == "download":
            link.pull(1.0, size=parameters)
        elif kind == "download of a tenth":
            link.pull(0.1, size=parameters)
        elif kind in BARE:
            body = codec.pack_token(0) + codec.pack_upload(sequence, places, values, size=parameters)
            link.call(BARE[kind], body)
        else:
            link.call("Echo", bytes(4 * parameters + 20))

    def work(number: int) -> None:
        for sequence in range(due[number], due[number] + size.calls):
            begun = time.perf_counter()
            once(links[number], sequence)
            times[number].append(time.perf_counter() - begun)

    if kind in REAL:
        due = [link.agree()[0] for link in links]
    else:
        for link in links:
            link.call("Echo", b"")  # so that everybody is connected
    said.put("ready")
    start.wait()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said.put((begun, time.perf_counter(), [value for one in times for value in one]))
    for link in links:
        link.close()


def under_load(folder: Path, kind: str, size: Size) -> Row:
    """All clients at once; perf_counter is the same clock in all processes."""
    said, start, stop = SPAWN.Queue(), SPAWN.Event(), SPAWN.Event()
    server = SPAWN.Process(target=run_server, args=(folder, kind not in REAL, said, stop))
    server.start()
    port, each = said.get(timeout=300), size.clients // PROCESSES
    clients = [
        SPAWN.Process(target=run_clients, args=(folder, port, number * each, each, size, kind, start, said))
        for number in range(PROCESSES)
    ]
    before, used = memory(server.pid, "VmRSS"), cpu_seconds(server.pid)
    for client in clients:
        client.start()
    for _ in clients:
        assert said.get(timeout=300) == "ready"
    start.set()
    results = [said.get(timeout=300) for _ in clients]
    for client in clients:
        client.join()
    grown, used = memory(server.pid, "VmHWM") - before, cpu_seconds(server.pid) - used
    stop.set()
    server.join()
    seconds = max(end for _, end, _ in results) - min(begin for begin, _, _ in results)
    times = np.array([value for _, _, found in results for value in found])
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return {
        "case": kind,
        "per_second": times.size / seconds,
        "p50_ms": 1000 * p50,
        "p99_ms": 1000 * p99,
        "cpu_ms": 1000 * used / times.size,
        "megabytes": grown,
    }


WIDTH = 3000, 330  # of the layers of a network of 10 million parameters


def wide() -> torch.nn.Module:
    """Return a network of 9,993,330 parameters."""
    torch.manual_seed(0)
    inputs, outputs = WIDTH
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, inputs), torch.nn.ReLU(), torch.nn.Linear(inputs, outputs)
    )  # fmt: skip


def run_participant(folder: Path, address: str, said: Any) -> None:
    """In a process of its own: train alone, or take part if there is an ``address``; say how many MB that needed."""
    torch.set_num_threads(1)
    inputs, labels = torch.randn(64, WIDTH[0]), torch.randint(0, WIDTH[1], (64,))
    learning: dict[str, Any] = {"learning_rate": 0.01}
    before = memory(os.getpid(), "VmRSS")
    if address:
        own: dict[str, Any] = {"name": "client0", "keys": folder / "keys", "folder": folder / "client0", "epochs": 2}
        join(address, network=wide, dataset=(inputs, labels), privacy=None, **own, **learning)
    else:
        train = LocalSgd(wide(), TensorDataset(inputs, labels), generator=torch.Generator(), **learning)
        train()
        train()
    said.put(memory(os.getpid(), "VmHWM") - before)


def participant_memory(upload: float) -> Row:
    """MB beside the model's own size, and how many models taking part needs beyond training alone."""
    model = 4 * sum(parameter.numel() for parameter in wide().parameters()) / 2**20
    grown = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_keys(folder / "keys", servers=["127.0.0.1"], participants=["client0"])
        own: dict[str, Any] = {"keys": folder / "keys", "admit": ["client0"], "listen": "127.0.0.1:0"}
        with serve(folder / "state", network=wide, upload=upload, **own) as server:
            for address in ("", server.address):
                said = SPAWN.Queue()
                process = SPAWN.Process(target=run_participant, args=(folder, address, said))
                process.start()
                grown.append(said.get(timeout=600))
                process.join()
    alone, together = grown
    return {"upload": upload, "model": model, "alone": alone, "together": together, "more": (together - alone) / model}


def memory(process: int | None, which: str) -> float:
    """Megabytes that a process has now (VmRSS) or has had at once, at most (VmHWM)."""
    text = Path(f"/proc/{process}/status").read_text()
    return float(text.split(f"{which}:")[1].split()[0]) / 1024


def cpu_seconds(process: int | None) -> float:
    """Seconds that a process has computed, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(size: Size, rounds: int) -> list[Row]:
    """Medians of some rounds, and the ratio to the echo."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = [f"client{number}" for number in range(size.clients)]
        make_keys(folder / "keys", servers=["127.0.0.1"], participants=names)
        initial = np.zeros(size.parameters, dtype=np.float32)
        store = Store.create(
            folder / "state", agreed(size), initial, rules_for(agreed(size), participants=size.clients)
        )
        for name in names:
            store.admit(name)
        store.close()
        kinds = (
            "echo of an upload",
            "upload",
            "echo of a download",
            "download",
            "download of a tenth",
            "sink of an upload",
        )
        found: dict[str, list[Row]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind in kinds:
                found[kind].append(under_load(folder, kind, size))
    rows = []
    for kind in kinds:
        row: Row = {"case": kind}
        row |= {
            key: statistics.median(r[key] for r in found[kind])
            for key in ("per_second", "p50_ms", "p99_ms", "megabytes")
        }
        rows.append(row)
    for echo, real in ((rows[0], rows[1]), (rows[2], rows[3])):
        real["ratio"], real["target"] = real["per_second"] / echo["per_second"], 0.5
        real["p50_ratio"], real["p99_ratio"] = real["p50_ms"] / echo["p50_ms"], real["p99_ms"] / echo["p99_ms"]
    rows[4]["of_whole"] = rows[4]["per_second"] / rows[3]["per_second"]
    rows[1]["ratio_to_sink"] = rows[1]["per_second"] / rows[5]["per_second"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["exchange", "load", "large", "memory"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, list[Row]] = {}
    if arguments.only in (None, "exchange"):
        facts["exchange"] = [
            {"case": name, "milliseconds": measure(settings, arguments.rounds), "target": target}
            for name, target, settings in CASES
        ]
    for name, size in (("load", SMALL), ("large", LARGE)):
        if arguments.only in (None, name):
            facts[name] = load(size, max(arguments.rounds // 2, 1))
    if arguments.only in (None, "memory"):
        facts["memory"] = [participant_memory(upload) for upload in (0.1, 1.0)]
    if arguments.json:
        print(json.dumps(facts))
        return
    if "exchange" in facts:
        print(f"{'exchange':<36} {'ms of CPU':>9} {'target':>7}")
        for row in facts["exchange"]:
            print(f"{row['case']:<36} {row['milliseconds']:>9.2f} {row['target'] or '–':>7}")
    for name, size in (("load", SMALL), ("large", LARGE)):
        if name not in facts:
            continue
        columns = f"{'a second':>9} {'p50 ms':>8} {'p99 ms':>8} {'more MB':>8} {'of echo':>8} {'target':>7}"
        print(f"{f'{size.parameters:,} parameters, {size.clients} clients':<36} {columns}")
        for row in facts[name]:
            ratio = f"{row['ratio']:>8.2f} {row['target']:>7}" if "ratio" in row else f"{'–':>8} {'–':>7}"
            rate = f"{row['per_second']:>9.1f} {row['p50_ms']:>8.1f} {row['p99_ms']:>8.1f} {row['megabytes']:>8.0f}"
            print(f"{row['case']:<36} {rate} {ratio}")
        print(f"uploads, of the sink: {facts[name][1]['ratio_to_sink']:.2f}")
        print(f"downloads of a tenth, of whole ones: {facts[name][4]['of_whole']:.2f}")
    for row in facts.get("memory", []):
        print(
            f"a participant of {row['model']:.0f} MB that uploads {row['upload']:g} grows by {row['together']:.0f} MB; "
            f"training alone {row['alone']:.0f}: {row['more']:.2f} models more"
        )


if __name__ == "__main__":
    main()
