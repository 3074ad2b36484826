"""Keys that were lost or expire: the certificate goes, the participant stays, with its ledger and its budget."""

from __future__ import annotations

import datetime
import json
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509

from collaboration.network.helpers import SIZE, Killed, Place, agreement, begin
from tacit.accounting import guarantee
from tacit.cli import main
from tacit.collaboration import FlatParameters, LocalDpSgd, Participant, Reason, Refused, Settings
from tacit.collaboration.network import (
    Credentials,
    GrpcServer,
    Link,
    Membership,
    Service,
    Store,
    codec,
    find_shards,
    make_keys,
)
from tacit.collaboration.network.certificates import SOON, Peer, expiry, serial_number, serial_text
from tacit.collaboration.network.hosting import Terms, open_state
from tacit.collaboration.network.joining import Stand, agreed_settings, join
from tacit.collaboration.network.keys import renew
from tacit.collaboration.network.masking import Mask
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.network.records import public_records, training_records
from tacit.ledger import Ledger

Serve = Callable[..., Place]


def body(number: int, value: float, place: int = 0) -> bytes:
    return codec.pack_upload(number, np.array([place]), np.array([value], dtype=np.float32), size=SIZE)


@pytest.fixture
def folder(keys: Path, tmp_path: Path) -> Path:
    """Keys of the same authority that a test may renew."""
    return Path(shutil.copytree(keys, tmp_path / "keys"))


def connect(address: str, credentials: Credentials, **options: Any) -> Link:
    return Link(address, credentials, patience=20.0, **options)


def serial(credentials: Credentials) -> int:
    return x509.load_pem_x509_certificate(credentials.certificate).serial_number


def revoke(state: Path, number: int) -> None:
    """As another process does while the server runs."""
    outside = Store(state, sole=False)
    outside.revoke_certificate(number)
    outside.close()


def test_a_revoked_certificate_is_refused_at_once_and_a_new_one_of_the_name_goes_on(
    serve: Serve, folder: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    stolen, bob = Credentials.read(folder, "ann"), connect(place.address, Credentials.read(folder, "bob"))
    old = connect(place.address, stolen)
    old.push(0, body(0, 0.25))
    renewed = renew(folder, "ann")
    assert serial_number(renewed.before) == serial(stolen)
    new = connect(place.address, Credentials.read(folder, "ann"))
    assert new.agree()[0] == 1  # both are good until one is revoked
    revoke(tmp_path / "server", serial(stolen))
    for call in (old.agree, old.turn, lambda: old.push(0, body(1, 0.5)), lambda: old.report("x")):
        with pytest.raises(Refused, match="go on with a new one, in the same folder and with the same ledger") as error:
            call()
        assert error.value.reason is Reason.REVOKED
    new.push(0, body(1, 0.125))
    bob.push(0, body(0, 0.0))
    assert place.service.parameters()[1][0] == 0.375
    (ann, *_) = place.service.overview()
    assert (ann["name"], ann["serial"], ann["uploads"]) == ("ann", renewed.serial, 2)
    for link in (old, new, bob):
        link.close()


def test_a_revoked_certificate_cannot_vouch_for_a_key_of_a_round(folder: Path, tmp_path: Path) -> None:
    service = Service(begin(tmp_path / "server", agreement(pool=2)))
    service.trust((folder / "ca.pem").read_bytes())
    stolen = Credentials.read(folder, "ann")
    renew(folder, "ann")
    revoke(tmp_path / "server", serial(stolen))
    for credentials, refused in ((stolen, True), (Credentials.read(folder, "ann"), False)):
        round_id = service.methods()["Round"]("ann", b"")
        card = Mask(credentials, collaboration=agreement().collaboration, round_id=round_id).card().pack()
        if refused:
            with pytest.raises(Refused, match="was revoked"):
                service.methods()["Enrol"]("ann", round_id + card)
        else:
            service.methods()["Enrol"]("ann", round_id + card)
    service.close()


def test_after_a_lost_key_the_same_ledger_and_budget_go_on(
    serve: Serve, folder: Path, records: Path, tmp_path: Path
) -> None:
    terms = Terms(model="mlp", bound=1.0, upload=0.1)
    place = serve(open_state(tmp_path / "server", terms, ["ann"], public_records(str(records))), patience=0.2)
    budget = LocalDpSgd(epsilon=4.0, delta=1e-5)
    own = Settings(participants=1, epochs=3, privacy=budget, learning_rate=0.1)
    mine = training_records(str(records))

    def take_part(until: int | None = None, **options: Any) -> Stand:
        def progress(stand: Stand) -> None:
            if stand.uploads == until:
                raise Killed

        credentials = Credentials.read(folder, "ann")
        link = connect(place.address, credentials)
        try:
            shards = find_shards([link])
            settings = agreed_settings(shards[0].agreement, own)
            return join(shards, "ann", credentials, mine, tmp_path / "ann", settings, progress=progress, **options)
        finally:
            link.close()

    with pytest.raises(Killed):
        take_part(until=1)
    before = Ledger.load(tmp_path / "ann" / "ledger.jsonl")
    thief = connect(place.address, stolen := Credentials.read(folder, "ann"))
    size = place.service.agreement.size
    for number in (1, 2):
        upload = codec.pack_upload(number, np.array([5]), np.array([0.5], dtype=np.float32), size=size)
        thief.push(thief.turn(), upload)
    renew(folder, "ann")
    revoke(tmp_path / "server", serial(stolen))
    with pytest.raises(Refused, match="was revoked"):
        thief.agree()
    thief.close()
    with pytest.raises(ValueError, match=r"has 3 uploads of 'ann'.* 1; .*--after-lost-key"):
        take_part()
    stand = take_part(until=None, lost_key=True)
    assert (stand.uploads, stand.planned, stand.stopped) == (3, 3, None)  # her own; the thief's do not count
    ledger = Ledger.load(tmp_path / "ann" / "ledger.jsonl")
    assert ledger.steps_at(before.digest) == len(before) < len(ledger)
    assert guarantee(list(ledger.entries), ledger.header, delta=1e-5).epsilon <= 4.0
    assert place.service.parameters()[0] == 5
    assert take_part().uploads == 3  # it is remembered


class Steady:
    """A participant that always uploads the same value, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.draws = 0

    def person(self, name: str) -> Participant:
        import torch

        def uploads(change: Any) -> Any:
            self.draws += 1
            return np.array([7]), np.array([0.125 * self.draws], dtype=np.float32)

        flat = FlatParameters(torch.nn.Linear(SIZE - 1, 1))
        return Participant(name, flat, lambda: None, uploads)


def test_an_upload_whose_number_was_taken_is_sent_with_the_same_values(
    serve: Serve, folder: Path, tmp_path: Path
) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    link = connect(place.address, Credentials.read(folder, "ann"))
    steady = Steady()

    def member(**options: Any) -> Membership:
        shards = find_shards([link])
        return Membership(steady.person("ann"), shards, open_outbox(tmp_path / "ann", "ann", shards), **options)

    first = member()
    first.exchange()
    first.participant.begin(first._pull(1.0))
    upload = first.participant.finish()
    first.keep(first._bodies(upload))  # on the disk, and then the process dies
    first.close()
    link.push(0, body(1, 0.5))  # the thief takes its number
    plain = member()
    with pytest.raises(Refused) as error:
        plain.deliver()
    assert error.value.reason is Reason.REPLAYED
    plain.close()
    again = member(lost_key=True)
    assert again.done == 2
    again.deliver()
    assert place.service.parameters()[1][7] == 0.125 + 0.25
    assert steady.draws == 2
    again.exchange()
    assert (again.done, place.service.parameters()[0]) == (3, 4)
    again.close()
    # An upload that arrived, but whose acknowledgement was lost, is not another's.
    more = member()
    more.participant.begin(more._pull(1.0))
    upload = more.participant.finish()
    more.keep(more._bodies(upload))
    link.push(0, more.outbox.body(more.outbox.unsent()[0]))
    more.close()
    once = member(lost_key=True)
    assert (once.done, once.outbox.foreign, once.outbox.unsent()) == (4, 1, [])
    once.close()
    link.close()


def test_a_thief_may_have_been_first(serve: Serve, folder: Path, tmp_path: Path) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    link = connect(place.address, Credentials.read(folder, "ann"))
    link.push(0, body(0, 0.5))
    for options in ({"lost_key": True}, {}):
        shards = find_shards([link])
        person = Membership(Steady().person("ann"), shards, open_outbox(tmp_path / "ann", "ann", shards), **options)
        assert (person.done, person.participant.sequence) == (0, 1)
        person.close()
    link.close()


def test_after_a_lost_key_several_servers_are_a_sentence(serve: Serve, folder: Path, tmp_path: Path) -> None:
    parts = [
        serve(begin(tmp_path / f"{a}", agreement(start=a, stop=b, collaboration=f"{a}" * 32)))
        for a, b in ((0, 20), (20, SIZE))
    ]
    links = [connect(place.address, Credentials.read(folder, "ann")) for place in parts]
    shards = find_shards(links)
    with pytest.raises(ValueError, match=r"continue this ledger in it \(--ledger\)"):
        Membership(Steady().person("ann"), shards, open_outbox(tmp_path / "ann", "ann", shards), lost_key=True)
    for link in links:
        link.close()


# -- expiry ----------------------------------------------------------------------------------------------------------


def test_expiry_is_warned_about_in_time_and_refused_afterwards(folder: Path) -> None:
    ann = (folder / "ann.pem").read_bytes()
    last = x509.load_pem_x509_certificate(ann).not_valid_after_utc

    def ask(before: datetime.timedelta) -> list[str]:
        return expiry("the certificate", ann, remedy="do so", now=last - before)

    assert ask(SOON + datetime.timedelta(hours=1)) == []
    for days in (29, 1, 0):
        (text,) = ask(datetime.timedelta(days=days, hours=2))
        plural = "day" if days == 1 else "days"
        assert text == f"the certificate expires in {days} {plural}, on {last:%Y-%m-%d}; do so."
    with pytest.raises(ValueError, match=r"expired on .*; do so"):
        ask(datetime.timedelta(0))
    with pytest.raises(ValueError, match="is this machine's clock right"):
        ask(datetime.timedelta(days=5000))
    assert Credentials.read(folder, "ann").warnings() == []


def short_lived(monkeypatch: pytest.MonkeyPatch, folder: Path, days: int) -> None:
    from tacit.collaboration.network import keys as module

    real = module._builder
    monkeypatch.setattr(module, "_builder", lambda *args, **options: real(*args, **(options | {"days": days})))
    renew(folder, "ann")


def test_both_sides_are_warned_that_a_certificate_expires(
    serve: Serve, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    short_lived(monkeypatch, folder, 10)
    credentials = Credentials.read(folder, "ann")
    (warning,) = credentials.warnings()
    assert "the certificate of CN=ann expires in 9 days" in warning and "keys --renew" in warning
    place = serve(begin(tmp_path / "server", agreement()))
    with caplog.at_level(logging.WARNING):
        link = connect(place.address, credentials)
        for _ in range(3):
            link.agree()
        link.close()
    said = [record.getMessage() for record in caplog.records if "expires on" in record.getMessage()]
    assert len(said) == 1 and f"of ann (serial {serial_text(serial(credentials))})" in said[0]


def test_a_connection_does_not_outlive_its_certificate(tmp_path: Path) -> None:
    service = Service(begin(tmp_path, agreement()))
    now = datetime.datetime.now(datetime.UTC)
    service.check_certificate(Peer(name="ann", serial=1, expires=now + datetime.timedelta(minutes=1)))
    with pytest.raises(Refused, match="the certificate of 'ann' expired on") as error:
        service.check_certificate(Peer(name="ann", serial=1, expires=now))
    assert error.value.reason is Reason.REVOKED
    service.close()


def test_an_expired_certificate_is_a_sentence_and_not_a_silent_wait(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], records: Path
) -> None:
    short_lived(monkeypatch, folder, 0)
    with pytest.raises(SystemExit) as stop:
        main(["collaborate", "join", "--server", "127.0.0.1:9", "--keys", str(folder), "--name", "ann", "--data",
              str(records), "--without-noise", "--out", str(tmp_path / "ann")])  # fmt: skip
    assert stop.value.code == 2
    assert "the certificate of CN=ann expired on" in capsys.readouterr().err


# -- commands --------------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    with pytest.raises(SystemExit) as stop:
        main(["collaborate", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), json.loads(out) if out.startswith("{") else out, err


def test_the_commands_that_renew_and_revoke(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin(tmp_path / "state", agreement()).close()
    before = serial(Credentials.read(folder, "ann"))
    code, facts, _ = command(capsys, "keys", "--out", str(folder), "--renew", "ann", "--renew", "server", "--json")
    assert (code, facts["written"], [each["name"] for each in facts["renewed"]]) == (0, [], ["ann", "server"])
    assert serial_number(facts["renewed"][0]["before"]) == before
    after = Credentials.read(folder, "ann")
    assert after.name == "ann" and serial_text(serial(after)) == facts["renewed"][0]["serial"]
    assert (folder / "ann.key").stat().st_mode & 0o777 == 0o600
    old, new = (
        x509.load_pem_x509_certificate(path.read_bytes())
        for path in (folder / f"server.{facts['renewed'][1]['before']}.pem", folder / "server.pem")
    )
    assert [each.value for each in old.extensions] == [each.value for each in new.extensions]
    code, text, _ = command(capsys, "keys", "--out", str(folder), "--renew", "ann")
    assert f"revoke --serial {facts['renewed'][0]['serial']}" in text
    openssl = f"serial={serial_text(before)}"
    code, facts, _ = command(capsys, "revoke", "--serial", openssl, "--state", str(tmp_path / "state"), "--json")
    assert (code, facts) == (0, {"revoked_serial": serial_text(before)})
    store = Store(tmp_path / "state")
    looked = store.revocations()
    assert before in looked and serial(after) not in looked
    looked.close()
    store.close()
    for wrong, sentence in (
        (["revoke", "--state", str(tmp_path / "state")], "one of them"),
        (["revoke", "ann", "--serial", "1", "--state", str(tmp_path / "state")], "one of them"),
        (["revoke", "--serial", "xyz", "--state", str(tmp_path / "state")], "openssl x509"),
        (["revoke", "--serial", "0", "--state", str(tmp_path / "state")], "openssl x509"),
        (["keys", "--out", str(folder), "--renew", "nobody"], "no participant or server 'nobody'"),
        (["keys", "--out", str(folder), "--renew", "ca"], "no participant or server 'ca'"),
    ):
        code, _, err = command(capsys, *wrong)
        assert code == 2 and sentence in err, (wrong, err)


# -- a foreign authority ---------------------------------------------------------------------------------------------


def documented() -> str:
    """The commands of docs/collaboration.md for an authority that one has already."""
    text = (Path(__file__).parents[3] / "docs" / "collaboration.md").read_text()
    section = text[text.index("### An authority that you have already") :]
    return section.split("```sh\n")[1].split("```")[0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_certificates_of_a_foreign_authority_as_documented(tmp_path: Path) -> None:
    """RSA keys, an intermediate authority, an organisation in the subject: made with the documented commands."""
    made = subprocess.run(["sh", "-e", "-c", documented()], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    service = Service(begin(tmp_path / "server", agreement(), people=["north"]))
    server = GrpcServer(service, "127.0.0.1:0", Credentials.read(tmp_path / "keys", "server"))
    server.start()
    try:
        north = Credentials.read(tmp_path / "keys", "north")
        assert north.name == "north" and north.warnings() == []
        link = connect(f"localhost:{server.port}", north)
        link.push(0, body(0, 0.25))
        assert service.parameters()[0] == 1
        link.close()
        make_keys(tmp_path / "other", servers=["127.0.0.1"], participants=["north"])
        stranger = Credentials.read(tmp_path / "other", "north")
        mixed = Credentials(authority=north.authority, certificate=stranger.certificate, key=stranger.key)
        link = Link(f"localhost:{server.port}", mixed, patience=1.0)
        with pytest.raises(OSError, match="has not answered"):
            link.agree()
        link.close()
    finally:
        server.stop(0.1)
