"""What a participant's folder holds it to, whoever asks for something else: the server, a backup, or its owner."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collaboration.network.helpers import Killed, Place, agreement
from tacit.collaboration import GaussianPrivacy, LocalDpSgd, Settings, SparseVectorPrivacy
from tacit.collaboration.network import Link, Membership, Shard, find_shards
from tacit.collaboration.network.database import Busy, transaction
from tacit.collaboration.network.hosting import Terms, open_state
from tacit.collaboration.network.joining import agreed_settings, join
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.network.outbox import Outbox, Position
from tacit.collaboration.network.protection import Account, check_protection
from tacit.collaboration.network.records import public_records, training_records
from tacit.collaboration.privacy import whole_data_set
from tacit.ledger import Ledger

GAUSSIAN = GaussianPrivacy(epsilon=40.0, delta=1e-5, clip_norm=0.1)
DP_SGD = LocalDpSgd(epsilon=4.0, delta=1e-5)
SPARSE = SparseVectorPrivacy(epsilon_per_epoch=100.0)
TakePart = Callable[..., Any]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path / "ann", participant="ann", collaboration="c" * 32)
    yield made
    made.close()


def put(outbox: Outbox, sequence: int = 1, charged: int = 0, round_id: bytes | None = None) -> None:
    position = Position(sequence=sequence, steps=0, parameters=np.zeros(4, dtype=np.float32), charged=charged)
    outbox.put([[b"bo", memoryview(b"dy")]], position, round_id=round_id)


def own(privacy: Any, **changes: Any) -> Settings:
    return Settings(**({"participants": 1, "epochs": 3, "bound": 0.5, "privacy": privacy} | changes))


def test_uploads_with_and_without_noise_do_not_mix(take_part: TakePart, tmp_path: Path) -> None:
    """An ε of the ledger alone would leave the plain ones out."""
    take_part(None, epochs=1)
    with pytest.raises(ValueError, match=r"are to be gaussian, but .* begun with plain ones"):
        take_part(GAUSSIAN)
    assert not (tmp_path / "ann" / "ledger.jsonl").exists()
    stand, place = take_part(None, epochs=2)  # plain ones have no plan
    assert stand.uploads == place.service.parameters()[0] == 2


@pytest.mark.parametrize("first", [GAUSSIAN, DP_SGD, SPARSE, None])
@pytest.mark.parametrize("second", [GAUSSIAN, DP_SGD, SPARSE, None])
def test_one_mechanism(first: Any, second: Any, outbox: Outbox) -> None:
    check_protection(outbox, own(first), records=400, ledger=None)
    put(outbox)
    check_protection(outbox, own(first), records=400, ledger=None)
    if first is not second:
        with pytest.raises(ValueError, match="one ε cannot cover both"):
            check_protection(outbox, own(second), records=400, ledger=None)


def test_one_plan_from_the_first_upload_on(outbox: Outbox) -> None:
    for epochs in (5, 3):  # nothing was released: one may think again
        check_protection(outbox, own(GAUSSIAN, epochs=epochs), records=400, ledger=None)
    put(outbox)
    check_protection(outbox, own(GAUSSIAN), records=400, ledger=None)
    for settings in (
        own(GAUSSIAN, epochs=4),
        own(GAUSSIAN, upload=0.2),
        own(replace(GAUSSIAN, epsilon=80.0)),
        own(replace(GAUSSIAN, delta=1e-6)),
        own(replace(GAUSSIAN, clip_norm=0.2)),
    ):
        with pytest.raises(ValueError, match="fixed before the first upload"):
            check_protection(outbox, settings, records=400, ledger=None)
    with pytest.raises(ValueError, match="records was 400, now 401"):
        check_protection(outbox, own(GAUSSIAN), records=401, ledger=None)


def test_a_folder_that_does_not_know_how_uploads_were_made(outbox: Outbox) -> None:
    put(outbox)
    with pytest.raises(ValueError, match="does not say how"):
        check_protection(outbox, own(GAUSSIAN), records=400, ledger=None)


@pytest.mark.parametrize("privacy", [GAUSSIAN, DP_SGD], ids=["gaussian", "dp-sgd"])
def test_a_ledger_that_was_removed_or_put_back(privacy: Any, take_part: TakePart, tmp_path: Path) -> None:
    ledger, older, right = (tmp_path / "ann" / "ledger.jsonl", tmp_path / "older", tmp_path / "right")
    for until, copy in ((1, older), (2, right)):
        with pytest.raises(Killed):
            take_part(privacy, until=until)
        shutil.copy(ledger, copy)
    ledger.unlink()
    with pytest.raises(ValueError, match=r"has 0 steps, but \d+ were charged"):
        take_part(privacy)
    assert not ledger.exists()
    shutil.copy(older, ledger)
    with pytest.raises(ValueError, match="removed or is an old copy"):
        take_part(privacy)
    shutil.copy(right, ledger)
    stand, place = take_part(privacy)
    assert stand.uploads == place.service.parameters()[0] == 3
    assert len(Ledger.load(ledger)) == 3 * (1 if privacy is GAUSSIAN else DP_SGD.lots_per_epoch)


def test_a_ledger_that_was_removed_after_the_normalisation(
    take_part: TakePart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No upload was made yet, but what was released before is used by all of them."""

    def killed(self: Membership) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Membership, "deliver", killed)
        with pytest.raises(Killed):
            take_part(replace(DP_SGD, normalisation=8.0))
    (tmp_path / "ann" / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="removed or is an old copy"):
        take_part(replace(DP_SGD, normalisation=8.0))


def test_a_ledger_may_have_more_than_is_known(outbox: Outbox, tmp_path: Path) -> None:
    """A crash between a charge and the outbox wastes the charge."""
    path, header = tmp_path / "ann" / "ledger.jsonl", whole_data_set(secure=True)
    for known in (0, 0):
        account = Account(path, None, outbox)
        assert len(account.open(header)) == account.steps == known
        account.close()
    outbox.note_charged(2)
    outbox.note_charged(1)  # it does not forget
    assert outbox.charged == 2
    with pytest.raises(ValueError, match="has 0 steps, but 2"):
        Account(path, None, outbox).open(header)


def test_one_ledger_for_two_collaborations(
    take_part: TakePart, serve: Callable[..., Place], link: Callable[..., Link], records: Path, tmp_path: Path
) -> None:
    first, _ = take_part(GAUSSIAN, epochs=1)
    ledger = tmp_path / "ann" / "ledger.jsonl"
    other = serve(open_state(tmp_path / "other", Terms(model="mlp", bound=1.0), ["ann"], public_records(str(records))))
    mine = training_records(str(records))

    def again(privacy: Any, folder: str, book: Path | None) -> Any:
        shards = find_shards([link(other.address, "ann")])
        settings = agreed_settings(shards[0].agreement, own(privacy, epochs=1))
        return join(shards, "ann", None, mine, tmp_path / folder, settings, ledger=book)

    with pytest.raises(ValueError, match="what the two cost the same records adds up"):
        again(GAUSSIAN, "ann", None)
    for _ in range(2):  # the second time there is nothing to do, and the same plan
        stand = again(replace(GAUSSIAN, epsilon=60.0), "second", ledger)
        assert stand.uploads == 1 and len(Ledger.load(ledger)) == 2
        assert first.claim.whole.epsilon < 40.0 < 59.0 < stand.claim.whole.epsilon <= 60.0
    with pytest.raises(ValueError, match="a ledger of their own"):
        again(SPARSE, "sparse", ledger)
    with pytest.raises(ValueError, match=r"the ledger of .* is .*ledger\.jsonl; go on with that"):
        again(replace(GAUSSIAN, epsilon=60.0), "second", None)


# -- the server ------------------------------------------------------------------------------------------------------


def test_the_agreement_is_the_first_one(tmp_path: Path) -> None:
    """Above all: a server that asked for masked uploads does not get plain ones later."""

    def opened(**changes: Any) -> Outbox:
        return open_outbox(tmp_path, "ann", [Shard(link=None, agreement=agreement(**changes), due=0)])  # type: ignore[arg-type]

    opened(pool=3).close()
    opened(pool=3).close()
    for name, value in (("pool", 0), ("pool", 2), ("bound", 0.25), ("upload", 1.0), ("mean", (0.5,))):
        with pytest.raises(ValueError, match=rf"another {name}.* than when"):
            opened(**({"pool": 3} | {name: value}))


def test_a_participant_that_wants_masks_sends_nothing_without(take_part: TakePart, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="masked among at least 2, but the server wants them as they are"):
        take_part(None, pool=2)
    assert not (tmp_path / "ann").exists()


def test_a_pool_may_not_be_smaller_than_a_participant_wants(
    serve: Callable[..., Place], link: Callable[..., Link], records: Path, tmp_path: Path
) -> None:
    terms = Terms(model="mlp", pool=2)
    place = serve(open_state(tmp_path / "server", terms, ["ann"], public_records(str(records))))
    shards = find_shards([link(place.address, "ann")])
    settings = agreed_settings(shards[0].agreement, own(None))
    with pytest.raises(ValueError, match=r"at least 3, but the server forms rounds of 2\. Nothing was sent"):
        join(shards, "ann", None, training_records(str(records)), tmp_path / "ann", settings, pool=3)


# -- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("privacy", [GAUSSIAN, None], ids=["gaussian", "plain"])
def test_only_the_owner_can_read_the_participants_folder(privacy: Any, take_part: TakePart, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(Killed):
            take_part(privacy, until=1)
    finally:
        os.umask(before)
    folder = tmp_path / "ann"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_damaged_upload_is_not_sent(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox)
    assert [outbox.body(letter) for letter in outbox.unsent()] == [b"body"]
    with closing(sqlite3.connect(tmp_path / "ann" / "participant.sqlite")) as db:
        db.execute("UPDATE uploads SET body = ?", (b"bodY",))
        db.commit()
    with pytest.raises(ValueError, match=r"upload 0 in .* is damaged and was not sent"):
        outbox.body(outbox.unsent()[0])


def test_the_lock_of_an_unreadable_folder_is_released(tmp_path: Path) -> None:
    (tmp_path / "participant.sqlite").write_bytes(b"nonsense" * 1000)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"participant\.sqlite cannot be used"):
            Outbox(tmp_path, participant="ann", collaboration="c" * 32)


def test_a_round_is_answered_once(outbox: Outbox) -> None:
    put(outbox, round_id=b"r" * 16)
    assert outbox.answered(b"r" * 16) and not outbox.answered(b"s" * 16)
    with pytest.raises(sqlite3.IntegrityError):
        put(outbox, 2, round_id=b"r" * 16)
    assert outbox.position() is not None and [letter.sequence for letter in outbox.unsent()] == [0]
    outbox.answer(b"s" * 16)
    outbox.answer(b"s" * 16)
    assert outbox.answered(b"s" * 16)


def test_a_lock_of_another_program_is_no_failure_of_the_disk(outbox: Outbox, tmp_path: Path) -> None:
    outbox._db.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(tmp_path / "ann" / "participant.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Busy), transaction(outbox._db):
            pass
