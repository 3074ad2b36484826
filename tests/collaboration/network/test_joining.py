"""From the first start to the last epoch: several servers, pools, budgets that hold, the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from collaboration.network.helpers import PEOPLE, SIZE, Killed, Place, agreement, begin
from tacit.cli import main
from tacit.collaboration import (
    FlatParameters,
    GaussianPrivacy,
    Largest,
    LocalDpSgd,
    Participant,
    Refused,
    SelectedUploads,
    Settings,
    SparseVectorPrivacy,
)
from tacit.collaboration.network import Credentials, Link, Membership, Service, codec, find_shards
from tacit.collaboration.network.hosting import Terms, open_state
from tacit.collaboration.network.intake import ALREADY, APPLIED
from tacit.collaboration.network.joining import agreed_settings, join
from tacit.collaboration.network.judge import judge_of
from tacit.collaboration.network.membership import identity, open_outbox
from tacit.collaboration.network.records import public_records, training_records
from tacit.ledger import Ledger
from tacit.randomness import SecureSource

Serve = Callable[..., Place]
Connect = Callable[..., Link]


def test_records_of_a_file(records: Path, tmp_path: Path) -> None:
    images, labels = training_records(str(records))
    assert images.shape == (400, 1, 12, 12) and labels.shape == (400,)
    for name, arrays in {
        "floats": {"images": np.zeros((2, 8, 8)), "labels": np.zeros(2, dtype=int)},
        "labels": {"images": np.zeros((2, 8, 8), dtype=np.uint8), "labels": np.full(2, 10)},
        "short": {"images": np.zeros((2, 8, 8), dtype=np.uint8), "labels": np.zeros(3, dtype=int)},
        "objects": {"images": np.array([{}, {}]), "labels": np.zeros(2, dtype=int)},
        "missing": {"images": np.zeros((2, 8, 8), dtype=np.uint8)},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(ValueError, match=rf"{name}\.npz"):
            training_records(str(tmp_path / f"{name}.npz"))
    for where in ("nowhere.npz", "../x", "digits:9-3", "digits:0-99999"):
        with pytest.raises(ValueError, match=r"data is|there is no"):
            training_records(where)


def member(links: list[Link], folder: Path, name: str, moves: np.random.Generator, download: float) -> Membership:
    flat = FlatParameters(nn.Linear(7, 5))
    flat.vector[:] = 0

    def train() -> None:
        flat.vector[:] += moves.normal(size=SIZE).astype(np.float32) / 10

    uploads = SelectedUploads(Largest(fraction=0.5), bound=0.5, source=SecureSource())
    shards = find_shards(links)
    outbox = open_outbox(folder, name, shards)
    return Membership(Participant(name, flat, train, uploads), shards, outbox, download=download)


def test_several_servers_hold_together_what_one_would(serve: Serve, link: Connect, tmp_path: Path) -> None:
    one = serve(begin(tmp_path / "whole", agreement()))
    cuts = [(0, 13), (13, 14), (14, SIZE)]
    parts = [serve(begin(tmp_path / f"{a}", agreement(start=a, stop=b, collaboration=f"{a}" * 32))) for a, b in cuts]
    for places, folder in ((parts[::-1], "parts"), ([one], "one")):
        people = [
            member([link(p.address, n) for p in places], tmp_path / folder / n, n, np.random.default_rng(k), 1.0)
            for k, n in enumerate(PEOPLE)
        ]
        for _ in range(3):
            for person in people:
                person.exchange()
        for person in people:
            person.close()
    together = np.concatenate([place.service.parameters()[1] for place in parts])
    assert together.tobytes() == one.service.parameters()[1].tobytes()
    assert all(place.service.parameters()[0] == 9 for place in parts)  # also those that got nothing
    links = [link(place.address, "ann") for place in parts]
    person = member(links, tmp_path / "parts" / "ann", "ann", np.random.default_rng(1), 0.5)
    assert person._pull(0.5).indices is not None
    person.exchange()
    person.close()


def test_servers_that_do_not_fit_together(serve: Serve, link: Connect, tmp_path: Path) -> None:
    def place(name: str, **terms: Any) -> Link:
        return link(serve(begin(tmp_path / name, agreement(**terms))).address, "ann")

    left, right = place("left", stop=20), place("right", start=20)
    assert [shard.agreement.start for shard in find_shards([right, left])] == [0, 20]
    assert identity(find_shards([right, left])) == identity(find_shards([left, right])) != "c" * 32
    with pytest.raises(ValueError, match="no server owns parameter 20"):
        find_shards([left])
    with pytest.raises(ValueError, match="no server, or more than one, owns parameter 0"):
        find_shards([right])
    with pytest.raises(ValueError, match="more than one"):
        find_shards([left, left, right])
    with pytest.raises(ValueError, match="bound is"):
        find_shards([left, place("other", start=20, bound=0.25)])
    with pytest.raises(ValueError, match="asynchronous"):
        find_shards([place("l", stop=20, protocol="round-robin"), place("r", start=20, protocol="round-robin")])


PRIVACY = {
    "dp-sgd": LocalDpSgd(epsilon=4.0, delta=1e-5),
    "gaussian": GaussianPrivacy(epsilon=40.0, delta=1e-5, clip_norm=0.1),
    "sparse-vector": SparseVectorPrivacy.whole(400.0, epochs=3),
}
ALLOWED = {"dp-sgd": 4.0, "gaussian": 40.0, "sparse-vector": 400.0}


def test_taking_part_without_noise(take_part: Callable[..., Any], records: Path) -> None:
    with pytest.raises(Killed):
        take_part(None, until=2)
    stand, place = take_part(None)
    assert (stand.uploads, stand.lost, stand.claim, stand.stopped) == (3, 0, None, None)
    assert place.service.parameters()[0] == 3
    assert place.service.overview()[0]["statement"] == "none: uploads carry no noise"
    judge = judge_of(place.service, public_records(str(records)))
    assert judge.look() > 0.5
    assert FlatParameters(stand.model).vector.tobytes() == place.service.parameters()[1].tobytes()


@pytest.mark.parametrize("privacy", PRIVACY)
def test_the_budget_holds_even_if_a_crash_wastes_some_of_it(
    privacy: str, take_part: Callable[..., Any], tmp_path: Path
) -> None:
    """After two of three uploads the third is drawn, and charged, but lost: there is no money for another."""
    with pytest.raises(Killed):
        take_part(PRIVACY[privacy], until=2)
    with Ledger.open(tmp_path / "ann" / "ledger.jsonl") as ledger:
        for _ in range(len(ledger) // 2):
            ledger.record(ledger.entries[-1][0])
    stand, place = take_part(PRIVACY[privacy])
    assert stand.uploads == 2 and "over the budget" in stand.stopped
    assert 0.9 * ALLOWED[privacy] < stand.claim.whole.epsilon <= ALLOWED[privacy]
    assert place.service.overview()[0]["statement"] == str(stand.claim)  # also what was wasted
    assert place.service.parameters()[0] == 2
    place.service.turn("ann")  # her turn was given back, or is still hers: others need not wait for the lease


@pytest.mark.parametrize("privacy", ["gaussian", "sparse-vector"])  # DP-SGD: see the commands below
def test_the_budget_is_enough_for_the_plan(privacy: str, take_part: Callable[..., Any]) -> None:
    stand, place = take_part(PRIVACY[privacy])
    assert (stand.uploads, stand.stopped) == (3, None)
    assert 0.9 * ALLOWED[privacy] < stand.claim.whole.epsilon <= ALLOWED[privacy]
    assert place.service.overview()[0]["statement"] == str(stand.claim)


def test_private_normalisation_is_released_once_and_paid_for(take_part: Callable[..., Any], tmp_path: Path) -> None:
    privacy = LocalDpSgd(epsilon=8.0, delta=1e-5, normalisation=5.0)
    with pytest.raises(Killed):
        take_part(privacy, until=2)
    kept = (tmp_path / "ann" / "normalisation.json").read_bytes()
    stand, _ = take_part(privacy)
    assert (stand.uploads, stand.stopped) == (3, None)
    assert (tmp_path / "ann" / "normalisation.json").read_bytes() == kept
    with Ledger.open(tmp_path / "ann" / "ledger.jsonl") as ledger:
        names = [step.queries[0].group for step, times in ledger.entries for _ in range(times)]
    assert names.count("statistics/mean") == 1 and names[0] == "statistics/mean" and len(names) == 1 + 3 * 4
    assert 7.5 < stand.claim.whole.epsilon <= 8.0
    (tmp_path / "ann" / "normalisation.json").write_text('{"mean": [0, 0, 0], "std": [1, 1, 1]}')
    with pytest.raises(ValueError, match="is not about images of 1 channels"):
        take_part(privacy)
    (tmp_path / "ann" / "normalisation.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        take_part(privacy)


def test_a_turn_is_given_back(tmp_path: Path) -> None:
    service = Service(begin(tmp_path, agreement(protocol="random-order")))
    token = service.turn("ann")
    assert service.give_back("bob", token) is not None
    with pytest.raises(Refused, match="'ann' has the lease"):
        service.turn("bob")
    service.give_back("ann", token)
    bob = service.turn("bob")
    body = codec.pack_upload(0, np.arange(2), np.zeros(2, dtype=np.float32), size=SIZE)
    assert service.push("bob", bob + body) == APPLIED  # which ends his turn
    bob = service.turn("bob")
    assert service.push("bob", bob + body) == ALREADY  # and so does sending it again
    service.turn("ann")
    service.close()


def test_terms_hold_from_the_beginning_on(tmp_path: Path) -> None:
    store = open_state(tmp_path, Terms(model="mlp", bound=0.5), ["ann"], None)
    assert (store.agreement.parameters, store.agreement.mean, str(store.agreement.protocol)) == (
        140_106,
        (0.0,),
        "round-robin",
    )
    store.close()
    again = open_state(tmp_path, Terms(), ["bob"], None)
    assert list(again.people()) == ["ann", "bob"]
    again.close()
    for terms in (Terms(model="cnn"), Terms(bound=0.25), Terms(protocol="asynchronous"), Terms(part=(0, 5))):
        with pytest.raises(ValueError, match="the collaboration began with"):
            open_state(tmp_path, terms, [], None)
    for terms in (
        Terms(),
        Terms(model="tree"),
        Terms(model="mlp", pool=1),
        Terms(model="mlp", part=(5, 5)),
        Terms(model="mlp", part=(0, 200_000)),
        Terms(model="mlp", pool=2, protocol="round-robin"),
        Terms(model="mlp", pool=2, part=(0, 10)),
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            open_state(tmp_path / "other", terms, [], None)
    with pytest.raises(ValueError, match="is not a name"):
        open_state(tmp_path, Terms(), ["(pool)"], None)


# -- the commands ----------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    with pytest.raises(SystemExit) as ended:
        main(["collaborate", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(printed.out) if printed.out.startswith("{") else {}, printed.err


def test_the_commands(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, state = str(tmp_path / "keys"), str(tmp_path / "state")
    code, facts, _ = command(
        capsys, "keys", "--out", folder, "--server", "localhost", "--participant", "north", "--json"
    )
    assert code == 0 and len(facts["written"]) == 6
    assert (tmp_path / "keys" / "north.key").stat().st_mode & 0o777 == 0o600
    _, facts, _ = command(capsys, "keys", "--out", folder, "--participant", "north", "--participant", "south", "--json")
    assert [Path(path).name for path in facts["written"]] == ["south.pem", "south.key"]
    code, _, error = command(capsys, "keys", "--out", folder, "--server", "example.org")
    assert code == 2 and "is for 'localhost', not 'example.org'" in error
    for name in ("(pool)", "a/b", "ca", "server2", ""):
        assert command(capsys, "keys", "--out", folder, "--participant", name)[0] == 2
    arguments = ["--state", state, "--model", "mlp", "--keys", folder, "--listen", "127.0.0.1:0", "--admit", "north"]
    arguments += ["--validate", str(records), "--bound", "1", "--status-port", "0", "--patience", "0.5", "--json"]
    server = subprocess.Popen(
        [sys.executable, "-m", "tacit.cli", "collaborate", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stdout is not None
        started = json.loads(server.stdout.readline())
        assert started["parameters"] == 140_106 and started["status"].startswith("http://127.0.0.1:")
        own = ["--server", started["listening"], "--data", str(records), "--keys", folder, "--json", "--epochs", "2"]
        north = [*own, "--name", "north", "--out", str(tmp_path / "north")]
        code, facts, _ = command(capsys, "join", *north, "--epsilon", "3")
        assert code == 0 and facts["uploads"] == 2 and facts["unit"] == "example" and 2.7 < facts["epsilon"] <= 3.0
        assert (tmp_path / "north" / "model.safetensors").exists()
        code, _, error = command(capsys, "join", *own, "--name", "south", "--without-noise")
        assert code == 2 and "'south' is not known" in error
        assert command(capsys, "admit", "south", "--state", state)[0] == 0
        south = [*own, "--name", "south", "--out", str(tmp_path / "south"), "--without-noise"]
        code, facts, _ = command(capsys, "join", *south)
        assert (code, facts["uploads"], facts["epsilon"]) == (0, 2, None)
        assert command(capsys, "revoke", "north", "--state", state)[0] == 0
        code, _, error = command(capsys, "admit", "north", "--state", state)
        assert code == 2 and "'north' was revoked, for good" in error
        code, _, error = command(capsys, "join", *north[:-4], "--epochs", "3", *north[-4:], "--epsilon", "3")
        assert code == 2 and "'north' was revoked" in error
        for wrong, text in (
            (["join", *own, "--name", "south"], "one of them"),
            (["join", *own, "--name", "south", "--without-noise", "--epsilon", "1"], "one of them"),
            (["join", *own, "--name", "west", "--without-noise"], "west.pem"),
            (["join", *south, "--pool", "2"], "masked among at least 2"),
            (["join", *south[:-1], "--epsilon", "3"], "begun with plain ones"),
            (["join", *own, "--name", "south", "--without-noise", "--insecure-loopback"], "give --keys"),
            (["serve", "--state", state, "--keys", folder], "another process works on"),
            (["serve", "--state", state + "2", "--model", "mlp"], "give --keys"),
            (["revoke", "nobody", "--state", state], "does not take part"),
        ):
            code, _, error = command(capsys, *wrong)
            assert code == 2 and text in error, (wrong, error)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


@pytest.mark.parametrize("epochs", [(2, 2, 2), (1, 2, 2)])
def test_masked_uploads_of_a_whole_run(
    records: Path, serve: Serve, link: Connect, keys: Path, tmp_path: Path, epochs: tuple[int, ...]
) -> None:
    """A participant with rounds left, when too few others have any, ends with a sentence instead of waiting."""
    public = public_records(str(records))
    place = serve(open_state(tmp_path / "server", Terms(model="mlp", bound=1.0, upload=0.5, pool=3), PEOPLE, public))
    stands: dict[str, Any] = {}

    def run(name: str) -> None:
        shards = find_shards([link(place.address, name)])
        planned = dict(zip(PEOPLE, epochs, strict=True))[name]
        own = Settings(participants=1, epochs=planned, privacy=LocalDpSgd(epsilon=8.0, delta=1e-5))
        settings = agreed_settings(shards[0].agreement, own)
        mine = training_records(str(records))
        stands[name] = join(shards, name, Credentials.read(keys, name), mine, tmp_path / name, settings)

    threads = [threading.Thread(target=run, args=(name,)) for name in PEOPLE]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    if min(epochs) == 1:
        assert {name: (stand.uploads, stand.lost) for name, stand in stands.items()} == dict.fromkeys(PEOPLE, (1, 0))
        assert [bool(stands[name].stopped) for name in PEOPLE] == [planned == 2 for planned in epochs]
        assert "a round needs 3: others are done" in stands["carl"].stopped
        return
    assert {name: (stand.uploads, stand.lost) for name, stand in stands.items()} == dict.fromkeys(PEOPLE, (2, 0))
    assert all(stand.claim.whole.epsilon <= 8.0 for stand in stands.values())
    assert {stand.company for stand in stands.values()} == {tuple(sorted(PEOPLE))}
    assert place.service.parameters()[0] == 2  # sums
    assert [person["uploads"] for person in place.service.overview()] == [2, 2, 2]
    shards = find_shards([link(place.address, "ann")])
    sparse = agreed_settings(shards[0].agreement, Settings(participants=1, privacy=PRIVACY["sparse-vector"]))
    with pytest.raises(ValueError, match="finds its own places"):
        join(shards, "ann", Credentials.read(keys, "ann"), training_records(str(records)), tmp_path / "x", sparse)
