"""Participants and server over Flower's messages: the same bits as in process, and nothing lost or paid for twice."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch.utils.data import TensorDataset

from flower.helpers import NODES, RECORDS, Killed, MemoryGrid, network, records
from tacit.collaboration import (
    FlatParameters,
    GaussianPrivacy,
    LocalDpSgd,
    ParameterServer,
    Rules,
    Settings,
    SparseVectorPrivacy,
)
from tacit.collaboration.network import Service, Store, codec
from tacit.collaboration.network.outbox import Outbox
from tacit.collaboration.workshop import Workshop
from tacit.flower import Host, Member, answer, participant_app, serve, update_app
from tacit.flower import records as wire
from tacit.ledger import Ledger
from tacit.randomness import SeededSource

PRIVACY = {
    "none": None,
    "sparse": SparseVectorPrivacy(epsilon_per_epoch=100.0),
    "gaussian": GaussianPrivacy(epsilon=50.0, delta=1e-5, clip_norm=0.1),
    "dp-sgd": LocalDpSgd(epsilon=5.0, delta=1e-5),
}
SETTINGS = Settings(participants=3, epochs=3, upload=0.2, bound=0.05, privacy=PRIVACY["gaussian"], seed=9)


def host(folder: Path, **changes: Any) -> Host:
    facts = {"participants": 3, "bound": 0.05, "upload": 0.2, "pause": 0.001, "patience": 20.0}
    return Host(network=network, folder=folder / "server", **(facts | changes))


def member(folder: Path, settings: Settings = SETTINGS) -> Callable[[Context], Member]:
    def prepare(context: Context) -> Member:
        number = NODES.index(context.node_id)
        inputs, labels = records(number)
        seed = None if settings.seed is None else settings.seed + number
        return Member(
            network=network,
            inputs=inputs,
            labels=labels,
            settings=replace(settings, seed=seed),
            folder=folder / str(context.node_id),
            without_noise=settings.privacy is None,
        )

    return prepare


def state(folder: Path) -> ParameterServer:
    store = Store(folder / "server")
    try:
        return store.server()
    finally:
        store.close()


def taken(folder: Path) -> dict[tuple[str, int], bytes]:
    """What the server committed: (participant, sequence) and SHA-256, in order."""
    db = sqlite3.connect(folder / "server" / "server.sqlite")
    rows = db.execute("SELECT participant, sequence, digest FROM uploads ORDER BY number").fetchall()
    db.close()
    return {(name, sequence): digest for name, sequence, digest in rows}


def kept(folder: Path, node: int) -> dict[int, bytes]:
    """What a participant ever put into its outbox: sequence and SHA-256."""
    db = sqlite3.connect(folder / str(node) / "participant.sqlite")
    rows = db.execute("SELECT sequence, digest FROM uploads ORDER BY 1").fetchall()
    db.close()
    return dict(rows)


def reference(
    settings: Settings, order: Sequence[int], *, download: float, nodes: Sequence[int] = NODES
) -> tuple[np.ndarray, dict[int, Ledger]]:
    """The parameters and ledgers that an exchange in this process leads to, if uploads are taken in that order."""
    initial = FlatParameters(network()).vector
    workshop = Workshop(settings, records=RECORDS, parameters=initial.size)
    local = ParameterServer(initial, Rules(bound=0.05, upload=0.2, decay_every=3), [str(node) for node in nodes])
    downloads = {node: local.pull(1.0) for node in nodes}
    books: dict[int, Ledger] = {}
    stand = {node: (0, 0, initial) for node in nodes}
    for node in order:
        number, (sequence, steps, parameters) = nodes.index(node), stand[node]
        source = SeededSource(9 + number)
        source.branch(f"upload {sequence}")
        person = workshop.participant(
            str(node),
            network(),
            TensorDataset(*records(number)),
            source=source,
            ledger=lambda header, node=node: books.setdefault(node, Ledger(header)),
        )
        person.resume(sequence=sequence, steps=steps, parameters=parameters)
        person.begin(downloads[node])
        person.train()
        upload = person.finish()
        local.push(str(node), upload.sequence, upload.indices, upload.values)
        stand[node] = person.sequence, person.steps, person.parameters.vector.copy()
        downloads[node] = local.pull(download)
    return local.parameters, books


@pytest.fixture
def unkempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that dies writes no snapshot and says no goodbye: the disk stays as it was."""
    monkeypatch.setattr(Service, "close", lambda self: self._state.store.close())


# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("privacy", "download"), [("none", 0.3), ("sparse", 1.0), ("gaussian", 0.3), ("dp-sgd", 1.0)])
def test_the_same_seed_and_order_give_the_same_bits_as_in_process(
    privacy: str, download: float, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, privacy=PRIVACY[privacy], download=download)
    order = [11, 33, 22, 11, 11, 22, 33, 33, 22]

    expected, books = reference(settings, order, download=download)
    grid = MemoryGrid(participant_app(member(tmp_path, settings)), order=order)
    found = serve(grid, host(tmp_path, download=download))
    assert found.tobytes() == expected.tobytes()
    assert not np.array_equal(found, FlatParameters(network()).vector)
    assert state(tmp_path).participants == {"11": 3, "22": 3, "33": 3}
    for node, book in books.items():
        assert Ledger.load(tmp_path / str(node) / "ledger.jsonl").entries == book.entries


def test_a_node_that_answers_is_asked_again_without_waiting_for_others(tmp_path: Path) -> None:
    """One node makes all its uploads before another makes its first."""
    grid = MemoryGrid(participant_app(member(tmp_path)), order=[22, 22, 22])
    serve(grid, host(tmp_path))
    assert [name for name, _ in taken(tmp_path)][:3] == ["22", "22", "22"]
    assert len(taken(tmp_path)) == 9


def test_uploads_are_sparse_arrays_of_indices_and_values(tmp_path: Path) -> None:
    seen: list[RecordDict] = []

    def watch(node: int, reply: Message) -> Message:
        seen.append(reply.content)
        return reply

    serve(MemoryGrid(participant_app(member(tmp_path)), tamper=watch), host(tmp_path))
    arrays = seen[0][wire.UPLOAD]
    size = FlatParameters(network()).vector.size
    assert isinstance(arrays, ArrayRecord)
    assert arrays["indices"].numpy().dtype == np.uint32  # any Flower code can read them
    assert arrays["values"].numpy().shape == arrays["indices"].numpy().shape == (int(0.2 * size),)
    assert "ε" in str(seen[0][wire.ANSWER]["statement"])


# -- nothing lost, nothing paid for twice ----------------------------------------------------------------------------


@pytest.mark.usefixtures("unkempt")
@pytest.mark.parametrize("secure", [False, True])
def test_a_server_that_dies_anywhere_loses_no_upload_and_charges_none_twice(secure: bool, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=2, privacy=PRIVACY["sparse"], seed=None if secure else 9)
    size = FlatParameters(network()).vector.size
    killed = 0
    for kill_at in range(1, 24 if not secure else 10):
        place = tmp_path / str(kill_at)
        app = participant_app(member(place, settings))
        try:
            serve(MemoryGrid(app, kill_at=kill_at), host(place))
        except Killed:
            killed += 1
            found = serve(MemoryGrid(app), host(place))  # another run: the contexts are new, too
        else:
            continue
        committed = taken(place)
        assert sorted(committed) == [(str(node), sequence) for node in NODES for sequence in range(2)]
        for node in NODES:
            assert kept(place, node) == {sequence: committed[str(node), sequence] for sequence in range(2)}
            assert len(Ledger.load(place / str(node) / "ledger.jsonl")) == 2  # one charge for each upload
        replay = FlatParameters(network()).vector.copy()
        db = sqlite3.connect(place / "server" / "server.sqlite")
        for (body,) in db.execute("SELECT body FROM bodies ORDER BY number"):
            _, indices, values = codec.unpack_upload(body, size=size)
            replay[indices] += values
        db.close()
        assert found.tobytes() == replay.tobytes()
    assert killed >= 9


def test_an_upload_that_was_lost_is_sent_again_as_it_was(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    def lossy(node: int, reply: Message) -> Message | None:
        if node == 22 and reply.has_content() and wire.UPLOAD in reply.content:
            arrays = reply.content[wire.UPLOAD]
            bodies.append(arrays["indices"].data + arrays["values"].data)
            return None if len(bodies) == 2 else reply
        return reply

    settings = replace(SETTINGS, seed=None)  # fresh noise would not be the same
    serve(MemoryGrid(participant_app(member(tmp_path, settings)), tamper=lossy), host(tmp_path))
    assert len(bodies) == 4
    assert bodies[1] == bodies[2]  # lost, and once more
    assert len(set(bodies)) == 3
    assert len(Ledger.load(tmp_path / "22" / "ledger.jsonl")) == 3


def test_a_reply_that_arrives_twice_is_applied_once(tmp_path: Path) -> None:
    app = participant_app(member(tmp_path))
    first: list[RecordDict] = []

    def replay(node: int, reply: Message) -> Message:
        if node == 11 and reply.has_content() and wire.UPLOAD in reply.content:
            first.append(reply.content)
            if len(first) == 2:
                reply.content = first[0]  # of the upload before; the server knows it
        return reply

    serve(MemoryGrid(app, tamper=replay), host(tmp_path))
    assert state(tmp_path).participants == {"11": 3, "22": 3, "33": 3}
    assert {(node, sequence) for node, sequence in taken(tmp_path) if node == "11"} == {
        ("11", 0),
        ("11", 1),
        ("11", 2),
    }
    assert len(Ledger.load(tmp_path / "11" / "ledger.jsonl")) == 3


def test_a_participant_that_dies_before_the_outbox_pays_again_and_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = Outbox.put, []

    def dies(self: Outbox, bodies: Any, position: Any) -> None:
        calls.append(position.sequence)
        if len(calls) == 2:
            raise OSError("killed")
        put(self, bodies, position)

    monkeypatch.setattr(Outbox, "put", dies)
    reasons: list[str] = []

    def listen(node: int, reply: Message) -> Message:
        if reply.has_content() and (reason := wire.read_finished(reply.content)) is not None:
            reasons.append(reason)
        return reply

    settings = replace(SETTINGS, seed=None)
    grid = MemoryGrid(participant_app(member(tmp_path, settings)), NODES[:1], tamper=listen)
    serve(grid, host(tmp_path, participants=1))
    assert len(Ledger.load(tmp_path / "11" / "ledger.jsonl")) == 3  # three charges, one of them for nothing
    assert state(tmp_path).participants == {"11": 2}
    assert "budget" in reasons[0].lower()


def test_a_folder_that_is_an_old_copy_is_refused(tmp_path: Path) -> None:
    app = participant_app(member(tmp_path))
    grid = MemoryGrid(app, NODES[:1], kill_at=6)  # after two uploads
    with pytest.raises(Killed):
        serve(grid, host(tmp_path, participants=1))
    shutil.copytree(tmp_path / "11", tmp_path / "old")
    store = Store(tmp_path / "server")
    agreement, server = store.agreement, store.server()
    store.close()

    def ask(due: int, context: Context) -> Message:
        message = Message(wire.invitation(agreement, due, server.pull()), 11, "train")
        message.metadata.__dict__["_message_id"] = "m"
        return answer(message, context, member(tmp_path)(context))

    assert server.next_sequence("11") == 2
    with pytest.raises(ValueError, match="lost its state"):
        ask(0, grid.contexts[11])
    ask(2, grid.contexts[11])
    shutil.rmtree(tmp_path / "11")
    shutil.copytree(tmp_path / "old", tmp_path / "11")
    with pytest.raises(ValueError, match="3 uploads were made from this node, the folder knows of 2"):
        ask(2, grid.contexts[11])  # the context remembers, though the server does not
    with pytest.raises(ValueError, match="the server has 3 uploads of ours"):
        ask(3, MemoryGrid.context(11))  # the server remembers, though the context does not
    assert len(Ledger.load(tmp_path / "11" / "ledger.jsonl")) == 2


# -- nobody is believed ----------------------------------------------------------------------------------------------


def test_nothing_is_made_without_the_ledger_of_what_was_made_before(tmp_path: Path) -> None:
    def remove(node: int, reply: Message) -> Message:
        if node == 11:
            (tmp_path / "11" / "ledger.jsonl").unlink(missing_ok=True)
        return reply

    serve(MemoryGrid(participant_app(member(tmp_path)), tamper=remove), host(tmp_path))
    assert Counter(name for name, _ in taken(tmp_path)) == {"11": 1, "22": 3, "33": 3}


def _spoil(change: Callable[[dict[str, np.ndarray], dict[str, Any]], None]) -> Callable[[int, Message], Message]:
    def tamper(node: int, reply: Message) -> Message:
        if node != 11 or not reply.has_content() or wire.UPLOAD not in reply.content:
            return reply
        arrays = {name: array.numpy() for name, array in reply.content[wire.UPLOAD].items()}
        facts = dict(reply.content[wire.ANSWER])
        change(arrays, facts)
        packed = {name: value if isinstance(value, Array) else Array(value) for name, value in arrays.items()}
        reply.content = RecordDict({wire.UPLOAD: ArrayRecord(packed), wire.ANSWER: ConfigRecord(facts)})
        return reply

    return tamper


def _huge(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
    data = Array(np.zeros(4, dtype="<f4")).data.replace(b"(4,), }        ", b"(4000000000,), ")
    arrays["values"] = Array(dtype="float32", shape=(4,), stype="numpy.ndarray", data=data)


def _set(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, facts: facts.__setitem__(name, value)


HOSTILE = {
    "not finite": lambda arrays, facts: arrays["values"].__setitem__(0, np.nan),
    "beyond the bound": lambda arrays, facts: arrays["values"].__setitem__(0, 0.06),
    "out of range": lambda arrays, facts: arrays["indices"].__setitem__(-1, 4_000_000_000),
    "negative": lambda arrays, facts: arrays.update(indices=-arrays["indices"].astype(np.int64)),
    "another type": lambda arrays, facts: arrays.update(values=arrays["values"].astype(np.float64)),
    "wrapped": lambda arrays, facts: arrays.update(indices=arrays["indices"].astype(np.uint64) + 2**32),
    "twice": lambda arrays, facts: arrays["indices"].__setitem__(1, arrays["indices"][0]),
    "too many": lambda arrays, facts: arrays.update({n: np.zeros(30, a.dtype) for n, a in arrays.items()}),
    "two dimensions": lambda arrays, facts: arrays.update(values=arrays["values"][None]),
    "lengths differ": lambda arrays, facts: arrays.update(values=arrays["values"][1:]),
    "no values": lambda arrays, facts: arrays.pop("values"),
    "no indices": lambda arrays, facts: arrays.pop("indices"),
    "more arrays": lambda arrays, facts: arrays.update(more=arrays["values"]),
    "huge": _huge,
    "a later number": _set("sequence", 1),
    "a negative number": _set("sequence", -1),
    "a huge number": _set("sequence", 2**63 - 1),
    "no number": _set("sequence", "0"),
    "a long statement": _set("statement", "x" * 3000),
    "no statement": _set("statement", 3),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_bad_upload_is_not_taken_and_only_its_sender_is_left_out(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(SETTINGS, epochs=1, privacy=None)
    grid = MemoryGrid(participant_app(member(tmp_path, settings)), tamper=_spoil(HOSTILE[how]))
    with caplog.at_level(logging.WARNING, logger="tacit"):
        serve(grid, host(tmp_path))
    assert {name for name, _ in taken(tmp_path)} == {"22", "33"}
    assert "node 11 is left out" in caplog.text


@pytest.mark.parametrize("how", ["nan", "short", "slice", "network", "no agreement"])
def test_a_participant_believes_no_server_either(how: str, tmp_path: Path) -> None:
    grid = MemoryGrid(participant_app(member(tmp_path)), NODES[:1], kill_at=2)
    with pytest.raises(Killed):
        serve(grid, host(tmp_path, participants=1))
    message = grid.waiting["1"]
    facts, arrays = message.content[wire.INVITATION], message.content[wire.DOWNLOAD]
    values = arrays["values"].numpy().copy()
    if how == "nan":
        values[3] = np.nan
    elif how == "short":
        values = values[1:]
    agreement = str(facts["agreement"])
    if how == "slice":
        agreement = agreement.replace('"start": 0', '"start": 1')
    elif how == "network":
        agreement = agreement.replace('"layout": "', '"layout": "0')
    facts["agreement"] = agreement if how != "no agreement" else "{}"
    arrays["values"] = Array(values)
    with pytest.raises(ValueError):
        answer(message, grid.contexts[11], member(tmp_path)(grid.contexts[11]))
    assert not (tmp_path / "11" / "ledger.jsonl").exists()  # nothing was charged, so nothing was looked at


def test_a_revoked_node_is_left_out(tmp_path: Path) -> None:
    app = participant_app(member(tmp_path))
    with pytest.raises(Killed):
        serve(MemoryGrid(app, kill_at=9), host(tmp_path))
    store = Store(tmp_path / "server")
    store.revoke("22")
    store.close()
    had = sum(name == "22" for name, _ in taken(tmp_path))
    serve(MemoryGrid(app), host(tmp_path))
    assert sum(name == "22" for name, _ in taken(tmp_path)) == had


def test_another_model_or_bound_cannot_take_over_a_folder(tmp_path: Path) -> None:
    app = participant_app(member(tmp_path))
    serve(MemoryGrid(app), host(tmp_path))
    with pytest.raises(ValueError, match=r"bound is 0\.06"):
        serve(MemoryGrid(app), host(tmp_path, bound=0.06))


@pytest.mark.parametrize("averaging", [False, True])
def test_an_error_of_a_participant_tells_the_server_nothing(
    averaging: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower sends the text of an exception to the server, and texts quote records."""

    def fails(*given: Any) -> Any:
        raise KeyError("Jane Doe, born 1970")

    grid = MemoryGrid(participant_app(member(tmp_path)), NODES[:1], kill_at=2)
    with pytest.raises(Killed):
        serve(grid, host(tmp_path, participants=1))
    app = update_app(fails, fails) if averaging else participant_app(fails)
    with caplog.at_level(logging.ERROR, logger="tacit"), pytest.raises(RuntimeError) as error:
        app(grid.waiting["1"], grid.contexts[11])
    assert str(error.value) == "the participant could not answer; its own log says why."
    assert error.value.__cause__ is None and error.value.__context__ is None
    assert "Jane Doe" in caplog.text  # here


def test_no_privacy_must_be_meant(tmp_path: Path) -> None:
    inputs, labels = records(0)
    for settings, without in ((replace(SETTINGS, privacy=None), False), (SETTINGS, True)):
        with pytest.raises(ValueError, match="choose how records are protected"):
            Member(
                network=network,
                inputs=inputs,
                labels=labels,
                settings=settings,
                folder=tmp_path,
                without_noise=without,
            )


def test_without_answers_the_server_ends_by_itself(tmp_path: Path) -> None:
    grid = MemoryGrid(participant_app(member(tmp_path)), tamper=lambda node, reply: None)
    found = serve(grid, host(tmp_path, patience=0.2))
    assert found.tobytes() == FlatParameters(network()).vector.tobytes()
