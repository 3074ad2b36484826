"""What whoever runs a server relies on: health, metrics, logs, access, backups, and files to install it with."""

from __future__ import annotations

import base64
import configparser
import contextlib
import http.client
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from collaboration.network.helpers import SIZE, agreement, begin
from tacit.cli import main
from tacit.cli.logs import JsonLines, RateLimit, configure
from tacit.collaboration import GaussianPrivacy, Refused, join, serve
from tacit.collaboration.network import Service, codec, make_keys, status
from tacit.collaboration.network.database import StorageFailed
from tacit.collaboration.network.status import Access, StatusPage
from tacit.ledger import Ledger

ROOT = Path(__file__).parents[3]


def push(service: Service, sequence: int) -> bytes:
    values = np.full(4, 0.25, dtype=np.float32)
    return service.push("ann", codec.pack_token(0) + codec.pack_upload(sequence, np.arange(4), values, size=SIZE))


@pytest.fixture
def show(tmp_path: Path) -> Iterator[Callable[..., tuple[Service, StatusPage]]]:
    made: list[tuple[Service, StatusPage]] = []

    def start(**access: Any) -> tuple[Service, StatusPage]:
        service = Service(begin(tmp_path / f"server{len(made)}", agreement()))
        page = StatusPage(service, None, Access(port=0, **access))
        page.start()
        made.append((service, page))
        return made[-1]

    yield start
    for service, page in made:
        page.stop()
        service.close()


def get(page: StatusPage, path: str, *, context: Any = None, **headers: str) -> tuple[int, str]:
    kind: Any = http.client.HTTPSConnection if context is not None else http.client.HTTPConnection
    options = {} if context is None else {"context": context}
    connection = kind("127.0.0.1", page.port, timeout=20, **options)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def metrics(page: StatusPage) -> dict[str, float]:
    code, text = get(page, "/metrics")
    assert code == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'tacit_[a-z_]+(\{participant="[^"]*"\})? [0-9.e+-]+', line) for line in lines), text
    assert all(f"# TYPE {re.split('[{ ]', line)[0]} " in text for line in lines)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_health_and_metrics_follow_the_server(show: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    service, page = show()
    push(service, 0)
    assert get(page, "/healthz") == (200, "ok\n") and get(page, "/readyz") == (200, "ready\n")
    found = metrics(page)
    assert found["tacit_uploads_total"] == 1 and found["tacit_storage_ok"] == found["tacit_ready"] == 1
    assert found['tacit_participant_uploads_total{participant="ann"}'] == 1

    def fails(entries: Any) -> None:
        raise StorageFailed("the disk is full; free some space")

    monkeypatch.setattr(service._state.store, "commit", fails)
    with pytest.raises(Refused, match="its disk is full"):
        push(service, 1)
    with pytest.raises(Refused, match="its disk is full"):  # nobody waits for a turn that leads nowhere
        service.turn("bob")
    code, text = get(page, "/readyz")
    assert code == 503 and "its disk is full" in text
    assert get(page, "/healthz")[0] == 200  # restarting it would not free any space
    found = metrics(page)
    assert found["tacit_storage_ok"] == found["tacit_ready"] == 0 and found["tacit_uploads_total"] == 1
    assert json.loads(get(page, "/status.json")[1])["unready"].endswith("its disk is full")


def test_a_server_that_is_being_stopped_is_not_ready(show: Callable[..., Any]) -> None:
    service, page = show()
    service.retire()
    assert get(page, "/readyz") == (503, "the server is being stopped\n")


def test_slow_connections_hold_no_threads(show: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_SECONDS", 3.0)
    _, page = show()
    before = threading.active_count()
    slow = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(200)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert get(page, "/healthz")[0] == 200
    assert threading.active_count() <= before + 20  # a pool that answers, whoever waits
    slow[0].settimeout(30)
    until = time.monotonic() + 30
    with contextlib.suppress(ConnectionError):  # its time is over, however it dribbles
        while time.monotonic() < until:
            slow[0].sendall(b"1")
            time.sleep(0.2)
    assert time.monotonic() < until
    for connection in slow:
        connection.close()


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\xff\x00 \r\n\r\n", b"GET\r\n\r\n", b"x" * 9000]
)
def test_nonsense_does_not_end_the_status_port(show: Callable[..., Any], sent: bytes) -> None:
    _, page = show()
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionError):  # what is too long is cut off
            assert b"200" not in connection.recv(100)
    assert get(page, "/healthz")[0] == 200


def test_a_password_is_asked_for(show: Callable[..., Any]) -> None:
    _, page = show(password="watch:s3:cret")
    good = "Basic " + base64.b64encode(b"watch:s3:cret").decode()
    for path in ("/", "/status.json", "/metrics"):
        assert get(page, path)[0] == get(page, path, Authorization=good[:-4])[0] == 401
        assert get(page, path, Authorization=good)[0] == 200
    assert get(page, "/healthz")[0] == get(page, "/readyz")[0] == 200
    with pytest.raises(ValueError, match="without encryption"):
        Access(port=0, host="0.0.0.0", password="watch:s3cret")
    with pytest.raises(ValueError, match="user:password"):
        Access(port=0, password="s3cret")


def test_a_certificate_is_asked_for(show: Callable[..., Any], keys: Path) -> None:
    _, page = show(keys=keys)
    assert page.address.startswith("https://")
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    context.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get(page, "/status.json", context=context)
    context.load_cert_chain(keys / "ann.pem", keys / "ann.key")
    assert get(page, "/status.json", context=context)[0] == 200


def test_logs_are_json_and_limited(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(RateLimit(most=3, window=60.0, clock=lambda: now[0]))
    log = logging.Logger("tacit")
    log.addHandler(handler)
    for number in range(1000):
        log.warning("%s of %r refused", number, "eve\n\x1b[2J")
    log.error("something else")
    now[0] = 61.0
    log.warning("%s of %r refused", 1000, "eve")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["warning"] * 3 + ["error", "warning"]
    assert lines[0]["message"] == "0 of 'eve\\n\\x1b[2J' refused" and lines[-1]["left_out"] == 997
    with pytest.raises(ValueError, match="choose text or json"):
        configure("xml")


# -- backups ---------------------------------------------------------------------------------------------------------


def build() -> nn.Module:
    return nn.Linear(4, 2)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["collaborate", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + " ".join(printed.err.split())


def test_a_server_put_back_from_a_backup_goes_on_and_nothing_is_applied_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two uploads are lost with the server's disk; a third was made while it was away."""
    import torch

    records = torch.randn(40, 4), torch.arange(40) % 2

    def take_part(address: str, epochs: int, **options: Any) -> Any:
        return join(address, name="ann", folder=tmp_path / "ann", network=build, dataset=records, epochs=4,
                    privacy=GaussianPrivacy(epsilon=40.0, delta=1e-5, clip_norm=0.1),
                    ended=lambda: len(Ledger.load(tmp_path / "ann" / "ledger.jsonl")) >= epochs, **options)  # fmt: skip

    terms: dict[str, Any] = {"listen": "127.0.0.1:0", "admit": ["ann"], "upload": 1.0, "bound": 1.0}
    server = serve(tmp_path / "run", network=build, **terms)
    take_part(server.address, 1)
    assert run(capsys, "backup", "--state", str(tmp_path / "run"), "--out", str(tmp_path / "b.sqlite"))[0] == 0
    assert run(capsys, "backup", "--state", str(tmp_path / "run"), "--out", str(tmp_path / "b.sqlite"))[0] == 2
    take_part(server.address, 3)
    server.stop()

    assert run(capsys, "restore", "--state", str(tmp_path / "run"), "--backup", str(tmp_path / "b.sqlite"))[0] == 2
    code, text = run(capsys, "restore", "--state", str(tmp_path / "run2"), "--backup", str(tmp_path / "b.sqlite"))
    assert code == 0 and "ann: the next upload is number 1" in text
    server = serve(tmp_path / "run2", **{**terms, "upload": None, "bound": None})
    try:
        ledger = (tmp_path / "ann" / "ledger.jsonl").read_bytes()
        with pytest.raises(ValueError, match="--older-server"):
            take_part(server.address, 4)
        assert (tmp_path / "ann" / "ledger.jsonl").read_bytes() == ledger
        stand = take_part(server.address, 4, older_server=True)
        assert stand.uploads == 4 and server.service.uploads() == 4
        assert len(Ledger.load(tmp_path / "ann" / "ledger.jsonl")) == 4  # all that was ever released, each once
        assert stand.claim.whole.epsilon <= 40.0
        with pytest.raises(Refused, match="it was applied before"):  # numbers 1 and 2 are taken, with nothing in them
            server.service.push("ann", codec.pack_token(0) + old(1))
        assert take_part(server.address, 4, older_server=True).uploads == 4  # nothing is older any more
    finally:
        server.stop()


def old(number: int) -> bytes:
    return codec.pack_upload(number, np.arange(10), np.full(10, 0.1, dtype=np.float32), size=10)


# -- files to install with -------------------------------------------------------------------------------------------


def test_the_steps_of_the_container_fit_the_repository() -> None:
    """There is no docker here: what its steps name must exist, and what it starts must be a command of ours."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() for source in sources), line
    text = "\n".join(lines)
    assert 'collab = ["grpcio' in (ROOT / "pyproject.toml").read_text() and '-c constraints.txt ".[collab]"' in text
    assert text.index("\nUSER tacit") < text.index("\nENTRYPOINT") and "STOPSIGNAL SIGTERM" in text
    entry, command = (json.loads(next(line for line in lines if line.startswith(word)).partition(" ")[2])
                      for word in ("ENTRYPOINT", "CMD "))  # fmt: skip
    check_options([*entry, *command])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it installs torch
def test_the_steps_of_the_container_give_a_server_that_is_healthy_and_ends_well(tmp_path: Path) -> None:
    """The steps of the Dockerfile without docker: its files alone, its pip command, its command, its health check.

    Paths and ports are those of this test; packages of the system and the user are left out.
    """
    root, lines = tmp_path / "root", (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    source, prefix = root / "source", root / "opt" / "tacit"
    source.mkdir(parents=True)
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *names, target = line.split()[1:]
            for name in names:
                if (ROOT / name).is_dir():
                    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
                    shutil.copytree(ROOT / name, source / target, ignore=leave_out)
                else:
                    shutil.copy(ROOT / name, source / target)
    install = next(line for line in lines if "pip install" in line).removeprefix("RUN ")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(install.replace("/opt/tacit", str(prefix)), shell=True, check=True, cwd=source, env=clean,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    shutil.rmtree(source)  # the second image has the environment only
    state = root / "state"
    state.mkdir()
    make_keys(root / "keys", servers=["127.0.0.1"], participants=["ann"])
    entry, command = (json.loads(next(line for line in lines if line.startswith(word)).partition(" ")[2])
                      for word in ("ENTRYPOINT", "CMD "))  # fmt: skip
    check = json.loads(next(line for line in lines if line.startswith("HEALTHCHECK")).partition(" CMD ")[2])
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    swap = {"/state": str(state), "/keys": str(root / "keys"), "0.0.0.0:8470": "127.0.0.1:0", "8080": str(port)}
    words = [swap.get(word, word) for word in [*entry, *command]]
    env = clean | {"PATH": f"{prefix}/bin:{clean['PATH']}", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    first = [*words, "--model", "mlp", "--shape", "28x28", "--admit", "ann"]
    with subprocess.Popen(first, cwd=state, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and "listening" in server.stdout.readline()
            asked = [word.replace("8080", str(port)) for word in check]
            subprocess.run(asked, check=True, env=env, cwd=state, timeout=60)
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    assert subprocess.run(asked, check=False, env=env, cwd=state, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.parametrize("unit", ["tacit-server", "tacit-participant"])
def test_the_systemd_units_start_commands_that_exist(unit: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(ROOT / "deploy" / f"{unit}.service")
    assert parser["Service"]["KillSignal"] == "SIGTERM" and parser["Service"]["RestartPreventExitStatus"] == "2"
    check_options([Path(word).name if word.startswith("/opt") else word
                   for word in shlex.split(parser["Service"]["ExecStart"])])  # fmt: skip


def check_options(words: list[str]) -> None:
    assert words[:2] == ["tacit", "collaborate"]
    done = subprocess.run(
        [sys.executable, "-m", "tacit.cli", "collaborate", words[2], "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for word in words[3:]:
        if word.startswith("--"):
            assert word in done.stdout, word
