"""Crashes at any moment, on either side: every upload is applied exactly once, and every draw of noise was charged."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import numpy as np
import pytest

from collaboration.network.faulty_participant import run as take_part
from collaboration.network.faulty_server import run as serve
from collaboration.network.helpers import PEOPLE, SIZE, agreement, begin
from tacit.collaboration import FlatParameters, Participant, Reason, Refused
from tacit.collaboration.network import Agreement, Membership, Service, Shard, Store, codec, make_keys
from tacit.collaboration.network.intake import ALREADY, APPLIED
from tacit.collaboration.network.membership import identity, open_outbox
from tacit.collaboration.network.outbox import Outbox
from tacit.collaboration.network.store import Entry
from tacit.ledger import Ledger


class Crash(BaseException):
    """The process is gone."""


class CrashingStore(Store):
    """Dies at the next commit or snapshot, before or after it, when told to."""

    fatal = ""

    def commit(self, entries: Sequence[Entry]) -> None:
        if self.fatal == "before":
            raise Crash
        super().commit(entries)
        if self.fatal == "after":
            raise Crash


def bodies(rng: np.random.Generator, sequence: int) -> bytes:
    places = np.sort(rng.choice(SIZE, size=10, replace=False))
    values = (rng.integers(-500, 501, size=10) / 1024).astype(np.float32)
    return codec.pack_upload(sequence, places, values, size=SIZE)


def total(found: Sequence[bytes]) -> np.ndarray:
    expected = np.zeros(SIZE, dtype=np.float64)
    for body in found:
        _, places, values = codec.unpack_upload(body, size=SIZE)
        np.add.at(expected, places, values.astype(np.float64))
    return expected


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_a_server_that_dies_at_a_commit_applies_each_upload_once(every: int, tmp_path: Path) -> None:
    """The same upload is sent until it is acknowledged, to one server after the other on the same state."""
    begin(tmp_path, agreement()).close()
    rng, dice = np.random.default_rng(every), random.Random(every)
    store = CrashingStore(tmp_path)
    service = Service(store, snapshot_every=every)
    sent: list[bytes] = []
    already = 0
    for sequence in range(15):
        for name in PEOPLE:
            body = bodies(rng, sequence)
            sent.append(body)
            store.fatal = dice.choice(["", "before", "after"])
            while True:
                try:
                    answer = service.push(name, codec.pack_token(0) + body)
                    break
                except Crash:
                    store.close()
                    store = CrashingStore(tmp_path)
                    store.fatal = dice.choice(["", "before"])
                    service = Service(store, snapshot_every=every)
            already += answer == ALREADY
            assert service.push(name, codec.pack_token(0) + body) == ALREADY  # as often as one likes
    assert already > 5
    uploads, parameters = service.parameters()
    assert uploads == 45
    assert np.array_equal(parameters.astype(np.float64), total(sent))
    stat = service._state.server.stat
    service.close()
    again = Service(Store(tmp_path), snapshot_every=every)
    assert again.parameters()[1].tobytes() == parameters.tobytes()
    assert again._state.server.stat.tobytes() == stat.tobytes()
    again.close()


@pytest.mark.parametrize("every", [1, 3, 7])
def test_uploads_that_share_a_commit_survive_a_snapshot_in_between(every: int, tmp_path: Path) -> None:
    """Many at a time, so that some are committed and not yet applied when a snapshot is due."""
    people = [f"p{number}" for number in range(12)]
    service = Service(begin(tmp_path, agreement(), people=people), snapshot_every=every)
    rng = np.random.default_rng(every)
    sent = {name: [bodies(rng, sequence) for sequence in range(8)] for name in people}
    together: list[int] = []
    commit = service._state.store.commit

    def slow(entries: Sequence[Entry]) -> None:
        together.append(len(entries))
        commit(entries)
        time.sleep(0.002)  # meanwhile others queue up

    service._state.store.commit = slow  # type: ignore[method-assign]

    def push(name: str) -> None:
        for body in sent[name]:
            assert service.push(name, codec.pack_token(0) + body) == APPLIED

    threads = [threading.Thread(target=push, args=(name,)) for name in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(together) == 96 and max(together) > 1
    expected = total([body for found in sent.values() for body in found])
    assert np.array_equal(service.parameters()[1].astype(np.float64), expected)
    service._state.store.close()  # as if killed: no snapshot at the end
    again = Service(Store(tmp_path))
    assert again.parameters()[0] == 96
    assert np.array_equal(again.parameters()[1].astype(np.float64), expected)
    again.close()


def test_after_a_failed_commit_for_several_uploads_none_of_them_waits_for_ever(tmp_path: Path) -> None:
    """Those who wait are told; what comes later is taken."""
    people = [f"p{number}" for number in range(6)]
    service = Service(begin(tmp_path, agreement(), people=people))
    rng = np.random.default_rng(0)
    sent = {name: codec.pack_token(0) + bodies(rng, 0) for name in people}
    commit, begun = service._state.store.commit, threading.Event()

    def failing(entries: Sequence[Entry]) -> None:
        begun.set()
        while len(service._intake._queue) < 5 and len(entries) == 1:
            time.sleep(0.001)  # the first one fails when all others wait
        raise RuntimeError("nobody thought of this")

    service._state.store.commit = failing  # type: ignore[method-assign]
    errors: dict[str, Exception] = {}

    def push(name: str) -> None:
        try:
            service.push(name, sent[name])
        except (RuntimeError, Refused) as error:
            errors[name] = error

    threads = [threading.Thread(target=push, args=(name,), daemon=True) for name in people]
    threads[0].start()
    begun.wait()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(errors) == people
    kinds = [type(error) for error in errors.values()]
    assert kinds.count(RuntimeError) == 2 and kinds.count(Refused) == 4  # who led the first group and the second
    assert {error.reason for error in errors.values() if isinstance(error, Refused)} == {Reason.UNAVAILABLE}
    service._state.store.commit = commit  # type: ignore[method-assign]
    assert [service.push(name, sent[name]) for name in people] == [APPLIED] * 6
    service.close()


def test_uploads_that_could_overflow_are_looked_at_one_by_one(tmp_path: Path) -> None:
    largest = float(np.finfo(np.float32).max)
    service = Service(begin(tmp_path, agreement(bound=0.4 * largest)))
    body = codec.pack_upload(0, np.arange(1), np.full(1, 0.39 * largest, dtype=np.float32), size=SIZE)
    batch = [service._intake._read(name, codec.pack_token(0) + body) for name in PEOPLE]
    service._intake._take(batch)  # as if they had come at once
    assert [upload.answer for upload in batch] == [APPLIED, APPLIED, None]
    assert batch[2].refusal is not None and batch[2].refusal[0] is Reason.OVERFLOW
    assert service.parameters()[0] == 2 and np.isfinite(service.parameters()[1]).all()
    service.close()


def test_the_store_keeps_upload_bodies_until_a_snapshot_and_needs_them_before_it(tmp_path: Path) -> None:
    service = Service(begin(tmp_path, agreement()), snapshot_every=2)
    rng = np.random.default_rng(0)

    def kept() -> list[int]:
        with closing(sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)) as db:
            return [row[0] for row in db.execute("SELECT number FROM bodies ORDER BY number")]

    seen = []
    for sequence in range(3):
        service.push("ann", codec.pack_token(0) + bodies(rng, sequence))
        seen.append(kept())
    assert seen == [[1], [], [3]]
    service._state.store.close()  # as if killed: no snapshot at the end
    with closing(sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)) as db:
        db.execute("DELETE FROM bodies")
    with pytest.raises(ValueError, match="upload 3 is missing"):
        Service(Store(tmp_path))


class Wire:
    """A link that loses requests or answers as it is told, to a service in this process."""

    address = "nowhere"

    def __init__(self, service: Service, name: str) -> None:
        self.service, self.name, self.lose = service, name, ""
        self.seen: list[bytes] = []

    def turn(self) -> int:
        return 0

    def pull(self, fraction: float, *, size: int, into: np.ndarray | None = None) -> object:
        found = codec.unpack_download(self.service.pull(self.name, codec.pack_fraction(fraction)), size=size)
        if into is not None:
            into[:] = found.values
        return found

    def push(self, token: int, body: bytes) -> None:
        self.seen.append(body)
        if self.lose == "request":
            raise Crash
        self.service.push(self.name, codec.pack_token(token) + body)
        if self.lose == "answer":
            raise Crash


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_participant_that_dies_sends_the_same_bytes_again(lose: str, tmp_path: Path) -> None:
    from torch import nn

    service = Service(begin(tmp_path / "server", agreement()))
    wire = Wire(service, "ann")
    draws = 0

    def member() -> Membership:
        def uploads(change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            nonlocal draws
            draws += 1
            return np.arange(3), np.full(3, draws / 1024, dtype=np.float32)

        model = nn.Linear(7, 5)
        person = Participant("ann", FlatParameters(model), lambda: model.bias.data.add_(1.0), uploads)
        due = codec.split_token(service.agree("ann"))[0]
        shard = Shard(link=wire, agreement=service.agreement, due=due)  # type: ignore[arg-type]
        return Membership(person, [shard], open_outbox(tmp_path / "ann", "ann", [shard]))

    first = member()
    first.exchange()
    wire.lose = lose
    with pytest.raises(Crash):
        first.exchange()
    local = first.participant.parameters.vector.copy()
    first.close()
    wire.lose = ""
    second = member()
    assert second.done == 2
    assert np.array_equal(second.participant.parameters.vector, local)
    second.exchange()
    assert draws == 3
    assert len(wire.seen) == 4 and wire.seen[1] == wire.seen[2]
    assert service.parameters()[0] == 3
    assert service.parameters()[1][:4].tolist() == [6 / 1024, 6 / 1024, 6 / 1024, 0.0]
    second.close()
    service.close()


def test_state_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    from torch import nn

    service = Service(begin(tmp_path / "server", agreement()))

    def member(folder: str, due: int, name: str = "ann") -> Membership:
        person = Participant(
            name, FlatParameters(nn.Linear(7, 5)), lambda: None, lambda change: (np.arange(0), change[:0])
        )
        shard = Shard(link=Wire(service, name), agreement=service.agreement, due=due)  # type: ignore[arg-type]
        return Membership(person, [shard], open_outbox(tmp_path / folder, name, [shard]))

    with pytest.raises(ValueError, match="old copy, or another participant has the same name"):
        member("ann", 1)
    one = member("ann", 0)
    one.exchange()
    with pytest.raises(ValueError, match="another process works on"):
        member("ann", 1)
    one.close()
    with pytest.raises(ValueError, match="has lost some of its state"):
        member("ann", 0)
    with pytest.raises(ValueError, match="belongs to 'ann'"):
        member("ann", 1, name="bob")
    with pytest.raises(ValueError, match="another process works on"):
        Store(tmp_path / "server")
    service.close()


def test_a_disk_that_fails_stops_the_server(tmp_path: Path) -> None:
    store = begin(tmp_path, agreement())
    service = Service(store)

    def full(entries: Sequence[Entry]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    rng = np.random.default_rng(0)
    body = bodies(rng, 0)
    commit, store.commit = store.commit, full  # type: ignore[method-assign]
    with pytest.raises(Refused) as error:
        service.push("ann", codec.pack_token(0) + body)
    assert error.value.reason is Reason.UNAVAILABLE
    store.commit = commit  # type: ignore[method-assign]
    with pytest.raises(Refused, match="must be mended and restarted"):
        service.push("ann", codec.pack_token(0) + body)
    assert service.parameters()[0] == 0
    store.close()
    again = Service(Store(tmp_path))
    assert again.push("ann", codec.pack_token(0) + body) == APPLIED
    again.close()


def test_a_second_connection_of_a_process_leaves_the_log_to_the_first(tmp_path: Path) -> None:
    """Else another program that looks at the state and goes takes the log away, and what is committed is lost."""
    service = Service(begin(tmp_path, agreement()))
    script = "import sys, pathlib; from tacit.collaboration.network import Store; "
    script += "store = Store(pathlib.Path(sys.argv[1]), sole=False); store.admit(sys.argv[2]); store.close()"
    subprocess.run([sys.executable, "-c", script, str(tmp_path), "dora"], check=True)
    assert (tmp_path / "server.sqlite-wal").exists()
    service.agree("dora")
    service.close()


def test_a_state_that_is_locked_for_a_while_does_not_stop_the_server(tmp_path: Path) -> None:
    """By a backup, say: nothing was written, so nothing is in doubt."""
    store = begin(tmp_path, agreement())
    service = Service(store)
    store._db.execute("PRAGMA busy_timeout = 10")
    body = bodies(np.random.default_rng(0), 0)
    with closing(sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Refused) as error:
            service.push("ann", codec.pack_token(0) + body)
        assert error.value.reason is Reason.WAIT
    assert service.push("ann", codec.pack_token(0) + body) == APPLIED
    service.close()


# -- processes and SIGKILL -------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes() -> ForkServerContext:
    """Processes that need not import anything first, so that they can be killed and started often."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tacit.collaboration.network"])
    return context


class Cast:
    """Servers, each with a slice, and participants: processes that can be killed and started again."""

    def __init__(self, folder: Path, people: Sequence[str], protocol: str, cuts: Sequence[tuple[int, int]]) -> None:
        self.folder, self.people = folder, list(people)
        self.servers = {f"server{number}": free_port() for number in range(len(cuts))}
        make_keys(folder / "keys", servers=["127.0.0.1"], participants=people)
        for (start, stop), letter, name in zip(cuts, "cdefgh", self.servers, strict=False):
            agreed = agreement(protocol=protocol, start=start, stop=stop, collaboration=letter * 32)
            begin(folder / name, agreed, people=people).close()
        self.running: dict[str, ForkServerProcess] = {}
        self._context = processes()

    def start(self, who: str) -> None:
        keys, log = self.folder / "keys", self.folder / f"{who}.log"
        if who in self.servers:
            process = self._context.Process(target=serve, args=(self.folder / who, keys, self.servers[who], log))
        else:
            addresses = [f"127.0.0.1:{port}" for port in self.servers.values()]
            process = self._context.Process(target=take_part, args=(addresses, keys, who, self.folder / who, log))
        process.start()
        self.running[who] = process

    def kill(self, who: str) -> None:
        self.running[who].kill()
        self.running[who].join()

    def committed(self, server: str) -> int:
        with closing(sqlite3.connect(f"file:{self.folder / server / 'server.sqlite'}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM uploads").fetchone()[0])

    def wait_for(self, more: int, timeout: float = 120.0) -> None:
        """Until so many more uploads were committed, on each server."""
        targets = {server: self.committed(server) + more for server in self.servers}
        deadline = time.monotonic() + timeout
        while any(self.committed(server) < target for server, target in targets.items()):
            fallen = [who for who in self.people if not self.running[who].is_alive()]
            if fallen or time.monotonic() > deadline:
                logs = {path.name: path.read_text()[-800:] for path in self.folder.glob("*.log")}
                raise TimeoutError(f"too little was committed in {timeout} s, {fallen} fell: {logs}")
            time.sleep(0.02)


@contextmanager
def playing(cast: Cast) -> Iterator[Cast]:
    try:
        for who in (*cast.servers, *cast.people):
            cast.start(who)
        yield cast
    finally:
        for who, process in cast.running.items():
            if process.is_alive():
                cast.kill(who)


WHOLE = ((0, SIZE),)


def play(
    folder: Path,
    *,
    people: int,
    server_kills: int,
    participant_kills: int,
    protocol: str,
    seed: int,
    cuts: Sequence[tuple[int, int]] = WHOLE,
) -> None:
    dice = random.Random(seed)
    names = [f"p{number}" for number in range(people)]
    with playing(Cast(folder, names, protocol, cuts)) as cast:
        cast.wait_for(2 * people)
        plan = ["server"] * server_kills + ["participant"] * participant_kills
        dice.shuffle(plan)
        deliberate = 0
        for number, whom in enumerate(plan):
            if whom == "participant":
                name = dice.choice(names)
                cast.kill(name)
                cast.start(name)
                cast.wait_for(1)
                continue
            server = dice.choice(list(cast.servers))
            if number % 2 == 0:
                (folder / server / "die").touch()  # between commit and acknowledgement
                cast.running[server].join(timeout=60)
                assert cast.running[server].exitcode == -signal.SIGKILL
                deliberate += 1
            else:
                time.sleep(dice.random() * 0.3)
                cast.kill(server)
            cast.start(server)
            cast.wait_for(dice.randrange(1, people + 3))
        (folder / "stop").touch()
        for name in names:
            cast.running[name].join(timeout=120)
            assert cast.running[name].exitcode == 0, (folder / f"{name}.log").read_text()[-2000:]
        for server in cast.servers:
            cast.kill(server)
        assert len(list(folder.glob("server*/died-*"))) == deliberate > 0

    check(folder, names, list(cast.servers))


def check(folder: Path, names: Sequence[str], servers: Sequence[str]) -> None:
    """Nothing lost, nothing twice, nothing that was not paid for, on any server."""
    stores = [Store(folder / server) for server in servers]
    expected, accepted = np.zeros(SIZE), 0
    group = identity([Shard(link=None, agreement=store.agreement, due=0) for store in stores])  # type: ignore[arg-type]
    for name in names:
        drawn = [path.read_bytes() for path in (folder / name / "attempts").iterdir()]
        parts = {tuple(hashlib.sha256(slice_of(body, s.agreement)).digest() for s in stores): body for body in drawn}
        outbox = Outbox(folder / name, participant=name, collaboration=group)
        assert outbox.unsent() == []
        digests = outbox.digests()
        count = len(digests) // len(stores)
        assert sorted(digests) == [(sequence, part) for sequence in range(count) for part in range(len(stores))]
        for sequence in range(count):
            found = tuple(digests[sequence, part] for part in range(len(stores)))
            assert tuple(store.digest(name, sequence) for store in stores) == found
            expected += total([parts[found]])  # all its parts are of one draw
        accepted += count
        assert [store.digest(name, count) for store in stores] == [None] * len(stores)
        assert len(Ledger.load(folder / name / "ledger.jsonl")) >= len(drawn) >= count > 0
        outbox.close()
    states = [store.server() for store in stores]
    assert [sum(state.participants.values()) for state in states] == [accepted] * len(stores)
    assert np.array_equal(np.concatenate([state.parameters for state in states]).astype(np.float64), expected)
    for store in stores:
        store.close()


def slice_of(body: bytes, owned: Agreement) -> bytes:
    """What a server that owns a slice gets of an upload."""
    sequence, places, values = codec.unpack_upload(body, size=SIZE)
    mine = (places >= owned.start) & (places < owned.stop)
    return codec.pack_upload(sequence, places[mine] - owned.start, values[mine], size=owned.size)


def test_processes_that_are_killed(tmp_path: Path) -> None:
    play(tmp_path, people=2, server_kills=3, participant_kills=2, protocol="asynchronous", seed=1)


def test_servers_of_slices_that_are_killed(tmp_path: Path) -> None:
    """While one is down an upload may be on the other already: it is sent to the one that lacks it, and only there."""
    cuts = ((0, 13), (13, SIZE))
    play(tmp_path, people=2, server_kills=4, participant_kills=2, protocol="asynchronous", seed=2, cuts=cuts)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["asynchronous", "random-order", "round-robin"])
def test_eight_participants_and_a_server_killed_twenty_times(protocol: str, tmp_path: Path) -> None:
    play(tmp_path, people=8, server_kills=20, participant_kills=10, protocol=protocol, seed=len(protocol))


@pytest.mark.slow
def test_eight_participants_and_three_servers_killed_twenty_times(tmp_path: Path) -> None:
    cuts = ((0, 13), (13, 14), (14, SIZE))
    play(tmp_path, people=8, server_kills=20, participant_kills=10, protocol="asynchronous", seed=3, cuts=cuts)
