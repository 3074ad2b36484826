"""Clients that send anything at all: a precise refusal, and a state that stays as it was."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from collaboration.network.helpers import PEOPLE, SIZE, Place, agreement, begin
from tacit.collaboration import Reason, Refused
from tacit.collaboration.network import Agreement, Credentials, Link, Service, Store, Unreachable, codec
from tacit.collaboration.network.intake import APPLIED
from tacit.collaboration.network.link import _refusal

Serve = Callable[..., Place]
Connect = Callable[..., Link]
HALF = SIZE // 2


def body(sequence: int, places: Any, values: Any) -> bytes:
    return codec.pack_upload(sequence, np.asarray(places), np.asarray(values, dtype=np.float32), size=SIZE)


def push(token: int, data: bytes) -> bytes:
    return codec.pack_token(token) + data


def state(folder: Path, service: Service) -> tuple[Any, ...]:
    """Everything that is to stay as it is: in memory and on the disk."""
    arrays, facts = service._state.server.snapshot()
    with closing(sqlite3.connect(f"file:{folder / 'server.sqlite'}?mode=ro", uri=True)) as db:
        rows = [
            hashlib.sha256(repr(db.execute(f"SELECT * FROM {table}").fetchall()).encode()).hexdigest()
            for table in ("facts", "participants", "uploads", "snapshot")
        ]
    return arrays["parameters"].tobytes(), arrays["stat"].tobytes(), json.dumps(facts, sort_keys=True), rows


GOOD = body(1, [0, 5], [0.5, -0.5])
CASES: list[tuple[str, str, bytes, grpc.StatusCode, Reason | None]] = [
    ("ann", "Push", b"", grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, b""), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, b"x" * 100), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, GOOD[:-1]), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, GOOD + b"\0"), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, GOOD[:4] + b"\2" + GOOD[5:]), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, GOOD[:5] + b"\1" + GOOD[6:]), grpc.StatusCode.INVALID_ARGUMENT, Reason.SHAPE),
    ("ann", "Push", push(0, GOOD[:6] + b"\1" + GOOD[7:]), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Push", push(0, body(0, [1], [0.5])), grpc.StatusCode.ALREADY_EXISTS, Reason.REPLAYED),
    ("ann", "Push", push(0, body(2, [1], [0.5])), grpc.StatusCode.FAILED_PRECONDITION, Reason.REORDERED),
    ("ann", "Push", push(0, body(2**64 - 1, [1], [0.5])), grpc.StatusCode.FAILED_PRECONDITION, Reason.REORDERED),
    ("ann", "Push", push(0, body(1, [SIZE], [0.5])), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "Push", push(0, body(1, [2**32 - 1], [0.5])), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "Push", push(0, body(1, [3, 3], [0.5, 0.5])), grpc.StatusCode.INVALID_ARGUMENT, Reason.DUPLICATE),
    ("ann", "Push", push(0, body(1, [3, 1, 3], [0, 0, 0])), grpc.StatusCode.INVALID_ARGUMENT, Reason.DUPLICATE),
    ("ann", "Push", push(0, body(1, [3], [np.nan])), grpc.StatusCode.INVALID_ARGUMENT, Reason.NOT_FINITE),
    ("ann", "Push", push(0, body(1, [3], [-np.inf])), grpc.StatusCode.INVALID_ARGUMENT, Reason.NOT_FINITE),
    ("ann", "Push", push(0, body(1, [3], [0.5001])), grpc.StatusCode.INVALID_ARGUMENT, Reason.BOUND),
    ("ann", "Push", push(0, body(1, range(21), [0.0] * 21)), grpc.StatusCode.INVALID_ARGUMENT, Reason.TOO_MANY),
    ("ann", "Push", push(0, body(1, range(SIZE), [0.0] * SIZE)), grpc.StatusCode.INVALID_ARGUMENT, Reason.TOO_MANY),
    ("ann", "Pull", b"", grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Pull", codec.pack_fraction(0.0), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "Pull", codec.pack_fraction(float("nan")), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "PullPart", codec.pack_fraction(1.0), grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "PullPart", codec.pack_range(0, 0), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "PullPart", codec.pack_range(1, SIZE), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "PullPart", codec.pack_range(2**64 - 1, 1), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "PullPart", codec.pack_range(0, codec.PART + 1), grpc.StatusCode.OUT_OF_RANGE, Reason.RANGE),
    ("ann", "Report", b"\xff\xfe", grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED),
    ("ann", "Report", b"a" * 3000, grpc.StatusCode.INVALID_ARGUMENT, Reason.TOO_MANY),
    ("ann", "Push", bytes(1 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED, None),
    ("ann", "Delete", b"", grpc.StatusCode.UNIMPLEMENTED, None),
    ("eve", "Push", push(0, GOOD), grpc.StatusCode.PERMISSION_DENIED, Reason.UNKNOWN),
    ("eve", "Agree", b"", grpc.StatusCode.PERMISSION_DENIED, Reason.UNKNOWN),
    ("eve", "Turn", b"", grpc.StatusCode.PERMISSION_DENIED, Reason.UNKNOWN),
    ("eve", "Pull", codec.pack_fraction(1.0), grpc.StatusCode.PERMISSION_DENIED, Reason.UNKNOWN),
    ("eve", "PullPart", codec.pack_range(0, SIZE), grpc.StatusCode.PERMISSION_DENIED, Reason.UNKNOWN),
    ("eve", "Report", b"hello", grpc.StatusCode.PERMISSION_DENIED, Reason.UNKNOWN),
    ("carl", "Push", push(0, body(0, [1], [0.1])), grpc.StatusCode.PERMISSION_DENIED, Reason.REVOKED),
    ("carl", "Pull", codec.pack_fraction(1.0), grpc.StatusCode.PERMISSION_DENIED, Reason.REVOKED),
    ("carl", "PullPart", codec.pack_range(0, SIZE), grpc.StatusCode.PERMISSION_DENIED, Reason.REVOKED),
]  # fmt: skip


def channel(place: Place, keys: Path, name: str) -> grpc.Channel:
    own = Credentials.read(keys, name)
    credentials = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
    return grpc.secure_channel(place.address, credentials, options=[("grpc.max_send_message_length", -1)])


def test_each_offence_has_its_status_and_changes_nothing(
    serve: Serve, link: Connect, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "server"
    place = serve(begin(folder, agreement()))
    link(place.address, "ann").push(0, body(0, [0, 1], [0.25, 0.25]))
    outside = Store(folder, sole=False)  # another process, while the server runs
    outside.revoke("carl")
    outside.close()
    with pytest.raises(Refused, match="was revoked"):
        place.service.turn("carl")
    before = state(folder, place.service)
    channels = {name: channel(place, keys, name) for name in ("ann", "eve", "carl")}
    for name, method, request, status, reason in CASES:
        caplog.clear()
        with pytest.raises(grpc.RpcError) as error:
            channels[name].unary_unary(f"/tacit.Collaboration/{method}")(request, timeout=10)
        what = (name, method, request[:40], error.value.details())
        assert error.value.code() is status, what
        if reason is not None:
            assert ("tacit-reason", reason.name) in [tuple(pair) for pair in error.value.trailing_metadata()], what
            assert any(name in record.getMessage() for record in caplog.records), what
    assert state(folder, place.service) == before
    link(place.address, "ann").push(0, GOOD)  # and those who behave can go on
    link(place.address, "bob").push(0, body(0, [0], [0.5]))
    for made in channels.values():
        made.close()


def mutated(dice: random.Random, sequence: int) -> bytes:
    """A request that is wrong in one of many ways, or complete nonsense."""
    kind = dice.randrange(8)
    if kind == 0:
        return dice.randbytes(dice.randrange(200))
    count = dice.randrange(1, HALF)
    good = push(
        0, body(sequence, sorted(dice.sample(range(SIZE), count)), [dice.uniform(-0.5, 0.5) for _ in range(count)])
    )
    if kind == 1:
        return good[: dice.randrange(len(good))]
    if kind == 2:
        return good + dice.randbytes(dice.randrange(1, 50))
    if kind == 3:  # any byte of the header that says something
        place = 8 + dice.choice([0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19])
        return good[:place] + bytes([good[place] ^ dice.randrange(1, 256)]) + good[place + 1 :]
    if kind == 4:
        return push(0, body(sequence + dice.choice([1, 2, 1000, 2**40]), [1], [0.1]))
    if kind == 5:
        return push(0, body(sequence, [1, 2], [0.1, dice.choice([np.nan, np.inf, -np.inf, 0.51, -1e30])]))
    if kind == 6:
        return push(0, body(sequence, [dice.choice([SIZE, SIZE + 1, 2**31, 2**32 - 1])], [0.1]))
    return push(0, body(sequence, [7, dice.choice([7, 7, 3]), 7], [0.1, 0.1, 0.1]))


def test_fuzzed_uploads_change_nothing(tmp_path: Path) -> None:
    """Thousands, without a network in between; the slow one below has it."""
    service = Service(begin(tmp_path, agreement()))
    assert service.push("ann", push(0, body(0, [0], [0.25]))) == APPLIED
    before, dice, seen = state(tmp_path, service), random.Random(5), set()
    for _ in range(5000):
        with pytest.raises(Refused) as error:
            service.push(dice.choice(PEOPLE[:1]), mutated(dice, 1))
        seen.add(error.value.reason)
    assert state(tmp_path, service) == before
    assert seen >= {Reason.MALFORMED, Reason.REORDERED, Reason.NOT_FINITE, Reason.BOUND, Reason.RANGE, Reason.DUPLICATE}
    service.close()


@pytest.mark.slow
def test_fuzzed_requests_over_the_network_change_nothing(
    serve: Serve, keys: Path, link: Connect, tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    place = serve(begin(folder, agreement()))
    link(place.address, "ann").push(0, body(0, [0], [0.25]))
    before, dice = state(folder, place.service), random.Random(6)
    codes: dict[grpc.StatusCode, int] = {}
    with channel(place, keys, "ann") as made:
        for _ in range(10_000):
            method = dice.choice(["Push"] * 8 + ["Pull", "Report"])
            request = mutated(dice, 1) if method == "Push" else b"\xff" + dice.randbytes(dice.randrange(9, 3000))
            with pytest.raises(grpc.RpcError) as error:
                made.unary_unary(f"/tacit.Collaboration/{method}")(request, timeout=20)
            codes[error.value.code()] = codes.get(error.value.code(), 0) + 1
    assert state(folder, place.service) == before
    refusals = {"INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION"}
    assert {code.name for code in codes} == refusals, codes  # never UNKNOWN or INTERNAL
    link(place.address, "ann").push(0, GOOD)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"TCTd" + bytes(5),
        b"".join(codec._pieces(b"TCTd", 0, np.array([5, 4]), np.zeros(2, dtype=np.float32))),
        b"".join(codec._pieces(b"TCTd", 0, np.array([5, SIZE]), np.zeros(2, dtype=np.float32))),
        b"".join(codec._pieces(b"TCTd", 0, np.array([5]), np.full(1, np.nan, dtype=np.float32))),
        b"".join(codec._pieces(b"TCTd", 0, None, np.zeros(SIZE - 1, dtype=np.float32))),
        b"".join(codec._pieces(b"TCTu", 0, None, np.zeros(SIZE, dtype=np.float32))),
    ],
)
def test_a_hostile_server_is_refused_too(data: bytes) -> None:
    with pytest.raises(Refused):
        codec.unpack_download(data, size=SIZE)


@pytest.mark.parametrize(
    "change",
    [
        {"bound": float("inf")},
        {"stop": SIZE + 1},
        {"start": SIZE},
        {"pool": 1},
        {"std": [0.0]},
        {"mean": []},
        {"protocol": "chaos"},
        {"parameters": "many"},
        {"extra": 1},
    ],
)
def test_an_agreement_is_read_with_care(change: dict[str, Any]) -> None:
    facts = json.loads(agreement().to_json()) | change
    with pytest.raises(ValueError):
        Agreement.from_json(json.dumps(facts))
    assert Agreement.from_json(agreement().to_json()) == agreement()
    for text in ("", "[]", "7", "[" * 100_000):
        with pytest.raises(ValueError):
            Agreement.from_json(text)


def test_leases_over_the_network_expire_and_belong_to_one_participant(
    serve: Serve, link: Connect, tmp_path: Path
) -> None:
    """ann takes the lease and dies; bob waits no longer than it lasts, and what ann sends late is taken in her turn."""
    place = serve(begin(tmp_path / "server", agreement(protocol="random-order")), lease=1.0)
    ann, bob = link(place.address, "ann"), link(place.address, "bob")
    token = ann.turn()
    with pytest.raises(Refused) as error:
        bob.call("Push", push(token, body(0, [1], [0.1])))
    assert error.value.reason is Reason.LEASE
    with pytest.raises(Refused) as error:
        place.service.turn("bob")
    assert error.value.reason is Reason.WAIT
    bob.push(bob.turn(), body(0, [0], [0.25]))
    with pytest.raises(Refused) as error:
        ann.call("Push", push(token, body(0, [1], [0.5])))
    assert error.value.reason is Reason.LEASE
    ann.push(token, body(0, [1], [0.5]))  # the link asks for another turn and sends the same
    assert place.service.parameters()[1][:2].tolist() == [0.25, 0.5]


# -- servers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parameters", "Infinity"),
        ("pool", "1e999"),
        ("start", "NaN"),
        ("mean", "[NaN]"),
        ("std", "[Infinity]"),
        ("model", '"\\u001b[2J"'),
    ],
)
def test_an_agreement_with_numbers_or_names_that_are_none(name: str, value: str) -> None:
    facts = json.loads(agreement().to_json()) | {name: "@"}
    with pytest.raises(ValueError, match=r"agreement|finite|NaN"):
        Agreement.from_json(json.dumps(facts).replace('"@"', value))


def test_a_server_error_is_shown_as_one_short_printable_line() -> None:
    class Error(grpc.RpcError):
        def details(self) -> str:
            return "no\x1b]0;owned\x07\x1b[2J\nprivacy  whole model: (ε = 0.01)" + "x" * 10_000

        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.INVALID_ARGUMENT

    text = str(_refusal(Error(), None))
    assert text.isprintable() and len(text) < 600 and "owned" in text


def test_without_tls_nothing_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as nobody:
        proxy.settimeout(3.0)

        def listen() -> None:
            with suppress(TimeoutError):
                connection, _ = proxy.accept()
                heard.append(connection.recv(100))
                connection.close()

        for name in ("http_proxy", "grpc_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        listener = threading.Thread(target=listen)
        listener.start()
        port = nobody.getsockname()[1]
        nobody.close()
        link = Link(f"127.0.0.1:{port}", None, name="ann", patience=0.5)
        with pytest.raises(Unreachable):
            link.call("Push", b"plain")
        link.close()
        listener.join()
    assert heard == []
