"""A participant says what it waits for, and why; what heals is retried; nobody is stopped by somebody else's turn."""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from collaboration.network.helpers import SIZE, Place, agreement, begin
from tacit.cli import main
from tacit.cli.network import serve as serve_command
from tacit.collaboration import Lease, LeaseHeld, Reason, Refused
from tacit.collaboration.exchange import Rota
from tacit.collaboration.network import Credentials, GrpcServer, Link, Service, Store, codec, database, make_keys
from tacit.collaboration.network.diagnosis import diagnose
from tacit.collaboration.network.link import _heals
from tacit.collaboration.network.outbox import Outbox, Position

Serve = Callable[..., Place]
Connect = Callable[..., Link]


def body(number: int) -> bytes:
    return codec.pack_upload(number, np.array([0]), np.array([0.25], dtype=np.float32), size=SIZE)


class Said(list[tuple[float, str]]):
    """What was said, and after how many seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        self.append((time.monotonic() - self._began, text))

    @property
    def first(self) -> tuple[float, str]:
        return self[0]


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def ask(address: str, credentials: Credentials | None, patience: float = 2.5) -> tuple[Said, Exception]:
    """What is said while a server is asked in vain, and how that ends."""
    said = Said()
    link = Link(address, credentials, name="ann", patience=patience, tell=said)
    try:
        link.agree()
    except (ValueError, OSError) as error:
        return said, error
    finally:
        link.close()
    raise AssertionError("there was an answer")


# -- why there is no answer ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_proxy")
def test_a_closed_port_is_said_and_waited_for(keys: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    said, error = ask(address, Credentials.read(keys, "ann"))
    after, text = said.first
    assert after < 5 and text.startswith(f"nothing listens on {address}: is the server running")
    assert isinstance(error, OSError) and "has not answered" in str(error)


@pytest.mark.usefixtures("no_proxy")
def test_an_address_that_swallows_everything_is_said_within_five_seconds(keys: Path) -> None:
    """A queue that is full: connections are neither taken nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        said, _ = ask(address, Credentials.read(keys, "ann"), patience=4.0)
        for filler in fillers:
            filler.close()
    after, text = said.first
    assert after < 5 and (f"{address} does not answer" in text or "takes connections but" in text), text


@pytest.mark.usefixtures("no_proxy")
def test_a_host_that_does_not_exist_is_said(keys: Path) -> None:
    found = diagnose("no-such-host.invalid:1", Credentials.read(keys, "ann"))
    assert "there is no host called 'no-such-host.invalid'" in found.text and not found.final
    assert diagnose("nonsense", None).final


@pytest.mark.usefixtures("no_proxy")
def test_another_authority_is_an_error_at_once(serve: Serve, keys: Path, tmp_path: Path) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    make_keys(tmp_path / "other", participants=["ann"])
    began = time.monotonic()
    said, error = ask(place.address, Credentials.read(tmp_path / "other", "ann"), patience=60.0)
    assert time.monotonic() - began < 5 and said == []
    assert isinstance(error, ValueError) and "is not of the authority in our ca.pem" in str(error)
    ours, theirs = Credentials.read(keys, "ann"), Credentials.read(tmp_path / "other", "ann")
    mixed = Credentials(authority=ours.authority, certificate=theirs.certificate, key=theirs.key)
    said, error = ask(place.address, mixed)
    after, text = said.first
    assert after < 5 and "its certificate is in order, but it does not take ours, of 'ann' (serial" in text


@pytest.mark.usefixtures("no_proxy")
def test_a_certificate_for_another_name_is_an_error_that_lists_its_names(keys: Path, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in ("ca.pem", "ca.key", "ann.pem", "ann.key"):
        shutil.copy(keys / name, folder / name)
    make_keys(folder, servers=["training.example.org"])
    service = Service(begin(tmp_path / "server", agreement()))
    server = GrpcServer(service, "127.0.0.2:0", Credentials.read(folder, "server"))
    server.start()
    try:
        _, error = ask(f"127.0.0.2:{server.port}", Credentials.read(folder, "ann"), patience=60.0)
    finally:
        server.stop(0.1)
    assert isinstance(error, ValueError)
    assert "is for 'training.example.org', 'localhost', '127.0.0.1', not for '127.0.0.2'" in str(error)


@pytest.mark.usefixtures("no_proxy")
def test_tls_on_one_side_only_is_said(serve: Serve, keys: Path, tmp_path: Path) -> None:
    secure = serve(begin(tmp_path / "secure", agreement()))
    said, _ = ask(secure.address, None)
    assert "does not answer without TLS; does it want --keys?" in said.first[1]
    plain = GrpcServer(Service(begin(tmp_path / "plain", agreement())), "127.0.0.1:0", None)
    plain.start()
    try:
        _, error = ask(f"127.0.0.1:{plain.port}", Credentials.read(keys, "ann"), patience=60.0)
    finally:
        plain.stop(0.1)
    assert isinstance(error, ValueError) and "does not speak TLS" in str(error)


def test_a_proxy_is_named(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:9")
    found = diagnose("192.0.2.1:1", Credentials.read(keys, "ann"))
    assert "the proxy that https_proxy names" in found.text and "secret" not in found.text


def test_a_server_that_was_there_is_waited_for_whatever_is_wrong_now(
    serve: Serve, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a restart the port may belong to something else for a moment."""
    from tacit.collaboration.network import diagnosis
    from tacit.collaboration.network import link as module

    place, said = serve(begin(tmp_path / "server", agreement())), Said()
    link = Link(place.address, Credentials.read(keys, "ann"), patience=3.0, tell=said)
    link.agree()
    monkeypatch.setattr(module, "diagnose", lambda *_: diagnosis.Finding("somebody else is there.", final=True))
    place.server._server.stop(0).wait()
    with pytest.raises(OSError, match="has not answered for 3 s"):
        link.agree()
    assert [text for _, text in said] == ["somebody else is there. Trying again."]
    link.close()


# -- whose turn it is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["round-robin", "random-order"])
def test_waiting_for_a_turn_is_said_within_five_seconds(
    protocol: str, serve: Serve, link: Connect, keys: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement(protocol=protocol), people=["ann", "bob"]), lease=3.0)
    token = link(place.address, "ann").turn()
    assert token
    said = Said()
    bob = Link(place.address, Credentials.read(keys, "bob"), patience=20.0, tell=said)
    bob.turn()
    bob.close()
    after, text = said.first
    assert after < 5 and text.startswith(f"waiting at {place.address}: ") and "'ann'" in text
    assert len(said) <= 2  # not for every second that is left


def test_a_slow_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(begin(tmp_path / "server", agreement()))
    server = GrpcServer(service, "127.0.0.1:0", None)
    server.start()
    said = Said()
    link = Link(f"127.0.0.1:{server.port}", None, name="ann", tell=said)
    link.agree()
    held = service._lock
    held.acquire()
    timer = threading.Thread(target=lambda: (time.sleep(4.6), release.set()))
    release = threading.Event()
    timer.start()
    asked = threading.Thread(target=link.turn)
    asked.start()
    release.wait()
    held.release()
    asked.join()
    timer.join()
    link.close()
    server.stop(0.1)
    assert [text for _, text in said] == [f"waiting for an answer of {link.address}."]


def test_the_usual_lease_is_short() -> None:
    assert inspect.signature(Service.__init__).parameters["lease"].default <= 60
    assert inspect.signature(serve_command).parameters["lease"].default <= 60


def test_a_turn_that_lapses_costs_its_place_and_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    rota = Rota(["ann", "bob", "carl"], 60.0, patience=10.0)
    rota.acquire("ann", now=0.0)
    for name in ("bob", "carl"):
        with pytest.raises(LeaseHeld):
            rota.acquire(name, now=59.0)
    token = rota.acquire("bob", now=60.0)
    rota.release(token)
    rota.release(rota.acquire("carl", now=61.0))
    rota.release(rota.acquire("bob", now=61.5))  # ann has not asked since; nobody waits ten seconds for her
    with pytest.raises(LeaseHeld, match="'carl'"):
        rota.acquire("ann", now=62.0)  # and she comes back to the end
    rota.release(rota.acquire("carl", now=62.5))
    assert rota.acquire("ann", now=63.0)
    with pytest.raises(LeaseHeld):
        rota.check("ann", token, now=63.0)


@pytest.mark.parametrize("protocol", ["round-robin", "random-order"])
def test_a_participant_that_is_done_or_was_revoked_is_not_waited_for(tmp_path: Path, protocol: str) -> None:
    service = Service(begin(tmp_path, agreement(protocol=protocol)), patience=600.0, clock=lambda: 0.0)
    ask = service.methods()
    service.give_back("ann", service.turn("ann"))
    ask["Done"]("bob", b"")
    token = service.turn("carl")  # past bob
    with pytest.raises(Refused, match="'carl' has the lease"):
        service.turn("ann")
    outside = Store(tmp_path, sole=False)
    outside.revoke("carl")
    outside.close()
    service.give_back("ann", service.turn("ann"))  # past carl, who has the lease and was revoked
    service.give_back("ann", service.turn("ann"))  # past both
    with pytest.raises(Refused, match="revoked"):
        service.give_back("carl", token)
    ask["Agree"]("bob", b"")  # bob comes back
    assert service.turn("bob")
    service.close()


def test_a_lease_that_lapsed_is_reported_once() -> None:
    lease = Lease(10.0)
    lease.acquire("ann", now=0.0)
    assert lease.take_lapsed(9.0) is None
    assert lease.take_lapsed(10.0) == "ann"
    assert lease.take_lapsed(11.0) is None
    lease.release(lease.acquire("bob", now=12.0))
    assert lease.take_lapsed(100.0) is None  # it was given back in time


def test_the_server_says_who_let_a_turn_lapse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    service = Service(begin(tmp_path, agreement(protocol="round-robin")), clock=lambda: now[0])
    token = service.turn("ann")
    now[0] = 61.0
    with caplog.at_level(logging.WARNING):
        service.turn("bob")
    assert "ann let its turn lapse (60 s)" in caplog.text and "--lease" in caplog.text
    with pytest.raises(Refused) as error:
        service.push("ann", token + body(0))
    assert error.value.reason is Reason.LEASE
    service.close()


# -- what heals ------------------------------------------------------------------------------------------------------


class Broken(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    ("code", "details", "heals"),
    [
        ("UNKNOWN", "Stream removed", True),
        ("INTERNAL", "Received RST_STREAM with error code 2", True),
        ("UNAVAILABLE", "Socket closed", True),
        ("CANCELLED", "", True),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", True),
        ("UNKNOWN", "Exception calling application: 'x'", False),
        ("UNIMPLEMENTED", "Method not found!", False),
        ("RESOURCE_EXHAUSTED", "Received message larger than max", False),
        ("UNAUTHENTICATED", "the certificate has 2 common names", False),
    ],
)
def test_a_connection_that_breaks_is_no_refusal(code: str, details: str, heals: bool) -> None:
    error = Broken(grpc.StatusCode[code], details)
    assert _heals(error, None) is heals
    assert _heals(error, Reason.BOUND) is False
    tries = [error, error]

    def call(request: bytes, **options: Any) -> bytes:
        if tries:
            raise tries.pop()
        return b"answer"

    link = Link("127.0.0.1:1", None, name="ann")
    link._calls["Push"] = call
    if heals:
        assert link.call("Push", b"") == b"answer"
    else:
        with pytest.raises(ValueError, match=f"refused \\({code}\\)"):
            link.call("Push", b"")
    link.close()


@contextmanager
def breaking(port: int, after: int) -> Iterator[int]:
    """A proxy in front of a server that cuts each of its first connections after so many bytes."""
    left, ended = [4], threading.Event()

    def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        try:
            while data := source.recv(65536):
                if limit is not None:
                    limit -= len(data)
                    if limit < 0:
                        break
                sink.sendall(data)
        except OSError:
            pass  # the other direction has closed it
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)

        def accept() -> None:
            while not ended.is_set():
                try:
                    inside, _ = listener.accept()
                except TimeoutError:
                    continue
                outside = socket.create_connection(("127.0.0.1", port))
                limit = after if left[0] > 0 else None
                left[0] -= 1
                for pair in ((inside, outside, None), (outside, inside, limit)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            ended.set()
            thread.join()


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("after", [100, 2500, 4000])
def test_connections_that_are_cut_heal_and_every_upload_is_applied_once(
    after: int, serve: Serve, keys: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    with breaking(place.server.port, after) as port:
        link = Link(f"127.0.0.1:{port}", Credentials.read(keys, "ann"), patience=30.0)
        for number in range(10):
            link.push(link.turn(), body(number))
        assert link.agree()[0] == 10
        link.close()
    uploads, parameters = place.service.parameters()
    assert (uploads, parameters[0]) == (10, 2.5)


# -- disks that are full ---------------------------------------------------------------------------------------------


def test_a_full_disk_of_the_server_is_one_sentence_on_both_sides(
    serve: Serve, link: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    big = 400_000
    store = begin(tmp_path / "server", agreement(parameters=big, stop=big, upload=1.0))
    place = serve(store)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 8}")
    ann = link(place.address, "ann")
    values = np.zeros(big, dtype=np.float32)
    ann.report("hello")

    def fill() -> None:
        for number in range(5):
            ann.push(0, codec.pack_upload(number, np.arange(big), values, size=big))

    with caplog.at_level(logging.ERROR), pytest.raises(Refused) as error:
        fill()
    text = str(error.value)
    assert "the server cannot write its state (its disk is full)" in text and "Join again then" in text
    assert "\n" not in text and error.value.reason is Reason.UNAVAILABLE
    (logged,) = [record.getMessage() for record in caplog.records]
    assert "the disk is full; free some space" in logged and "\n" not in logged
    with closing(sqlite3.connect(f"file:{tmp_path}/server/server.sqlite?mode=ro", uri=True)) as db:
        committed = db.execute("SELECT count(*) FROM uploads").fetchone()[0]
    assert place.service.parameters()[0] == committed


def test_a_full_disk_of_a_participant_is_one_sentence_and_lets_the_others_go_on(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "ann", participant="ann", collaboration="c")
    pages = outbox._db.execute("PRAGMA page_count").fetchone()[0]
    outbox._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    position = Position(sequence=1, steps=1, parameters=np.zeros(100_000, dtype=np.float32))
    with pytest.raises(OSError, match=r"participant\.sqlite cannot be written: the disk is full; free some space") as e:
        outbox.put([[bytes(500_000)]], position)
    assert isinstance(e.value, database.StorageFailed) and "\n" not in str(e.value)
    assert outbox.unsent() == [] and outbox.position() is None  # nothing of it
    outbox._db.execute("PRAGMA max_page_count = 1000000")
    outbox.put([[bytes(500_000)]], position)
    assert len(outbox.unsent()) == 1
    outbox.close()


@pytest.mark.parametrize("failure", ["disk", "training", "interrupt"])
def test_a_turn_is_given_back_whatever_ends_it(serve: Serve, keys: Path, tmp_path: Path, failure: str) -> None:
    import torch

    from tacit.collaboration import FlatParameters, Participant
    from tacit.collaboration.network import Membership, find_shards
    from tacit.collaboration.network.membership import open_outbox

    place = serve(begin(tmp_path / "server", agreement(protocol="round-robin"), people=["ann", "bob"]))
    links = {name: Link(place.address, Credentials.read(keys, name), patience=20.0) for name in ("ann", "bob")}
    shards = find_shards([links["ann"]])
    flat = FlatParameters(torch.nn.Linear(SIZE - 1, 1))

    def train() -> None:
        if failure == "training":
            raise ValueError("this model has no per-example gradients")
        if failure == "interrupt":
            raise KeyboardInterrupt

    person = Participant("ann", flat, train, lambda change: (np.array([0]), np.array([0.1], dtype=np.float32)))
    member = Membership(person, shards, open_outbox(tmp_path / "ann", "ann", shards))

    def full(*arguments: Any, **options: Any) -> None:
        raise database.StorageFailed("the disk is full; free some space and start again.")

    member.outbox.put = full  # type: ignore[method-assign]
    expected = {"disk": OSError, "training": ValueError}.get(failure, KeyboardInterrupt)
    began = time.monotonic()
    with pytest.raises(expected):  # type: ignore[call-overload]
        member.exchange()
    links["bob"].turn()
    assert time.monotonic() - began < 5
    for link in links.values():
        link.close()
    member.close()


@pytest.mark.usefixtures("no_proxy")
def test_giving_a_turn_back_does_not_wait_for_a_server_that_is_gone(keys: Path) -> None:
    link = Link("127.0.0.1:9", Credentials.read(keys, "ann"))
    began = time.monotonic()
    link.give_back(1)
    assert time.monotonic() - began < 5
    link.close()


def test_a_server_whose_disk_is_full_at_the_beginning_can_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the attempt that failed must not become part of the next one."""

    class Full(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if "wal_checkpoint" in sql:
                shutil.copy(tmp_path / "server.new-wal", tmp_path / "kept")
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(sql, *values)

    with monkeypatch.context() as patch:
        connect = partial(sqlite3.connect, factory=Full)
        patch.setattr(database.sqlite3, "connect", connect)
        with pytest.raises(
            OSError, match=r"server\.new cannot be written: the disk is full; free some space and start"
        ):
            begin(tmp_path, agreement())
    (tmp_path / "kept").rename(tmp_path / "server.new-wal")  # as a killed process leaves it
    assert not (tmp_path / "server.sqlite").exists()
    store = begin(tmp_path, agreement(bound=0.25))
    assert store.agreement.bound == 0.25 and not (tmp_path / "server.new-wal").exists()
    store.close()


def test_a_full_disk_at_the_beginning_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = database.connect

    def tiny(path: Path) -> sqlite3.Connection:
        connection = real(path)
        connection.execute("PRAGMA max_page_count = 2")
        return connection

    monkeypatch.setattr(database, "connect", tiny)
    with pytest.raises(OSError, match="the disk is full; free some space"):
        begin(tmp_path / "server", agreement())
    monkeypatch.undo()
    begin(tmp_path / "server", agreement()).close()


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_proxy")
def test_the_command_says_what_it_does(records: Path, keys: Path, tmp_path: Path) -> None:
    """Address and certificate at once, then why nothing happens; standard output stays empty."""
    address = f"127.0.0.1:{free_port()}"
    arguments = ["--server", address, "--keys", str(keys), "--name", "ann", "--data", str(records), "--without-noise"]
    joining = subprocess.Popen(
        [sys.executable, "-m", "tacit.cli", "collaborate", "join", *arguments, "--out", str(tmp_path / "ann")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert joining.stderr is not None and joining.stdout is not None
        first = joining.stderr.readline()
        began = time.monotonic()
        second = joining.stderr.readline()
        assert time.monotonic() - began < 5
        assert first.startswith(f"connecting to {address} as ann, certificate ") and " until 20" in first
        assert second.startswith(f"nothing listens on {address}")
    finally:
        joining.send_signal(signal.SIGKILL)
        joining.wait()
        for stream in (joining.stdout, joining.stderr):
            if stream is not None:
                stream.close()


def test_a_certificate_of_another_participant_is_found_out_here(
    keys: Path, records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "keys"
    shutil.copytree(keys, folder)
    for kind in ("pem", "key"):
        shutil.copy(folder / f"bob.{kind}", folder / f"ann.{kind}")
    with pytest.raises(SystemExit) as stop:
        main(["collaborate", "join", "--server", "127.0.0.1:9", "--keys", str(folder), "--name", "ann", "--data",
              str(records), "--without-noise"])  # fmt: skip
    assert stop.value.code == 2
    assert "name is 'ann', but the certificate" in capsys.readouterr().err


def test_stores_are_as_before(tmp_path: Path) -> None:
    """A constraint that is broken is a mistake in the program, not a full disk."""
    store: Store = begin(tmp_path, agreement())
    with pytest.raises(sqlite3.IntegrityError), database.transaction(store._db):
        store._db.execute("INSERT INTO participants (name) VALUES ('ann')")
    store.close()


@pytest.mark.parametrize("command", ["join", "contribute"])
def test_a_participant_asked_to_end_before_it_has_connected_ends_with_zero_and_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_proxy: None
) -> None:
    make_keys(tmp_path / "keys", servers=["127.0.0.1"], participants=["north"])
    (tmp_path / "own_code_here.py").write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n\n"
        "def dataset():\n    return torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4).long())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["--server", f"127.0.0.1:{free_port()}", "--keys", "keys", "--name", "north", "--epsilon", "4"]
    arguments += ["--model", "own_code_here:build", "--data", "own_code_here:dataset"]
    done = threading.Event()

    def ask_again() -> None:
        while not done.wait(0.3):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # one that comes before the command listens is lost
    asking = threading.Thread(target=ask_again)
    asking.start()
    try:
        with pytest.raises(SystemExit) as ended:
            main(["collaborate", command, *arguments, "--json"])
    finally:
        done.set()
        asking.join()
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 0
    assert "asked to end while waiting for 127.0.0.1" in json.loads(capsys.readouterr().out)["stopped"]
