"""The worked example as three hospitals would run it: processes over mutual TLS, killed, out of disk, put back.

North, south and east have tables of their own (`examples/hospitals.py`). The server is killed and started again, north
is killed, south is asked to end and comes back with another key, the server's disk fills up, and its state is put back
from a backup that lacks uploads. In the end every ledger says what was released, within the budget,
every number was applied once, and the model has learned.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tacit.accounting import account
from tacit.ledger import Ledger

EXAMPLE = Path(__file__).parents[3] / "examples" / "hospitals.py"
NAMES, EPOCHS, ROWS = ("north", "south", "east"), 40, 2000


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Site:
    """The folder that all of them work in, and the commands they give."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.port, self.status = free_port(), free_port()

    def start(self, *arguments: str, limit: int | None = None) -> subprocess.Popen[str]:
        def full() -> None:  # no file may become longer: the disk is full for whoever writes to it
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        log = self._stack.enter_context((self.folder / f"{arguments[0]}.log").open("a"))
        process = subprocess.Popen(
            [sys.executable, "-m", "tacit.cli", "collaborate", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=full,
        )
        self._stack.callback(process.kill)
        return process

    def done(self, *arguments: str) -> dict[str, Any]:
        process = self.start(*arguments, "--json")
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (arguments, (self.folder / f"{arguments[0]}.log").read_text()[-2000:])
        return dict(json.loads(out))

    def serve(self, state: str, *more: str, limit: int | None = None) -> subprocess.Popen[str]:
        own = [
            "--listen",
            f"127.0.0.1:{self.port}",
            "--status-port",
            str(self.status),
            "--log-format",
            "json",
            "--patience",
            "120",
        ]
        process = self.start("serve", "--state", state, "--keys", "keys", *own, *more, limit=limit)
        assert process.stdout is not None and "listening" in process.stdout.readline()
        return process

    def join(self, name: str, *more: str) -> subprocess.Popen[str]:
        own = ["--name", name, "--data", f"{name}.csv", "--schema", "schema.json", "--model", "hospitals:build"]
        own += ["--epsilon", "4", "--epochs", str(EPOCHS), "--keys", "keys", "--json"]
        return self.start("join", "--server", f"127.0.0.1:{self.port}", *own, *more)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.status}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def uploads(self) -> dict[str, int]:
        return {one["name"]: one["uploads"] for one in json.loads(self.get("/status.json")[1])["participants"]}

    def wait(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + 240
        while not what():
            assert time.monotonic() < until, (self.folder / "join.log").read_text()[-2000:]
            time.sleep(0.1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # about 40 s of CPU in fifteen processes that wait for one another
def test_three_hospitals_come_through_a_bad_week(site: Site) -> None:
    spec = importlib.util.spec_from_file_location("hospitals", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    folder = site.folder
    shutil.copy(EXAMPLE, folder / "hospitals.py")
    columns = folder / "schema.json"
    columns.write_text(json.dumps(example.schema()))
    for seed, (name, diseases) in enumerate(example.TREATS.items()):
        example.write_table(folder / f"{name}.csv", diseases, ROWS, seed)
    example.write_table(folder / "everybody.csv", example.DISEASES, 1500, 99)
    people = [word for name in NAMES for word in ("--participant", name)]
    site.done("keys", "--out", "keys", "--server", "127.0.0.1", *people)
    terms = ["--model", "hospitals:build", "--schema", "schema.json", "--upload", "1"]
    terms += ["--mechanism", "dp-sgd", "--epsilon", "4", "--delta", "1e-5"]
    server = site.serve("run", *terms, *(word for name in NAMES for word in ("--admit", name)))
    running = {name: site.join(name) for name in NAMES}

    # The server is killed, then north.
    site.wait(lambda: min(site.uploads().values()) >= 2)
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = site.serve("run")
    running["north"].send_signal(signal.SIGKILL)
    running["north"].wait()
    running["north"] = site.join("north")

    # South is asked to end, and comes back with another key.
    running["south"].send_signal(signal.SIGTERM)
    out, _ = running["south"].communicate(timeout=240)
    stopped = json.loads(out)
    assert running["south"].returncode == 0 and "asked to end" in stopped["stopped"] and stopped["uploads"] < EPOCHS
    renewed = site.done("keys", "--out", "keys", "--renew", "south")["renewed"][0]
    site.done("revoke", "--state", "run", "--serial", renewed["before"])
    running["south"] = site.join("south")
    before = site.uploads()
    site.done("backup", "--state", "run", "--out", "backup.sqlite")
    site.wait(lambda: all(site.uploads()[name] >= min(before[name] + 3, EPOCHS) for name in NAMES))

    # The disk is full: one sentence on both sides, and the status port says so.
    last = site.uploads()
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) == 0
    server = site.serve("run", limit=40_000)
    for process in running.values():
        process.wait(timeout=240)
    assert site.get("/healthz")[0] == 200 and site.get("/readyz")[0] == 503
    assert "tacit_storage_ok 0" in site.get("/metrics")[1]
    assert "the server cannot write its state" in (folder / "join.log").read_text()
    server.send_signal(signal.SIGKILL)
    server.wait()

    # Its state is put back from the backup, which lacks uploads.
    lacking = site.done("restore", "--state", "run2", "--backup", "backup.sqlite")["uploads"]
    server = site.serve("run2")
    behind = next(name for name in NAMES if last[name] > lacking[name])
    refused = site.join(behind)
    refused.wait(timeout=240)
    assert refused.returncode == 2 and "--older-server" in (folder / "join.log").read_text()
    running = {name: site.join(name, "--older-server") for name in NAMES}
    ends = {name: process.communicate(timeout=400)[0] for name, process in running.items()}
    assert all(process.returncode == 0 for process in running.values()), (folder / "join.log").read_text()[-3000:]
    assert site.uploads() == dict.fromkeys(NAMES, EPOCHS)
    for name, out in ends.items():
        told = json.loads(out)
        ledger = Ledger.load(folder / "runs" / name / "ledger.jsonl")
        # A kill can waste an epoch that was charged; the budget holds, and training may end that much earlier.
        assert told["uploads"] == EPOCHS or told["stopped"]
        assert len(ledger) >= 4 * told["uploads"]
        assert account(ledger, delta=1e-5).epsilon == pytest.approx(told["epsilon"]) and told["epsilon"] <= 4.0
    latest = site.join("east")  # who was done first takes the latest model
    assert latest.wait(timeout=240) == 0
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) == 0
    assert all(json.loads(line) for line in (folder / "serve.log").read_text().splitlines())

    # Each hospital's own model knows the three diseases that it treats; the joint one knows all six.
    found = {}
    for name in NAMES:
        own = [example.alone(folder / f"{name}.csv", columns, epsilon) for epsilon in (None, example.EPSILON)]
        found[name] = max(example.accuracy(model, folder / "everybody.csv", columns) for model in own)
    for name in NAMES:
        model = example.build()
        model.load_state_dict(load_file(folder / "runs" / name / "model.safetensors"))
        together = example.accuracy(model, folder / "everybody.csv", columns)
        assert together > max(found.values()) + 0.15, (name, together, found)
