"""A participant for the fault test: uploads random multiples of 1/1024, charged first, and logs every draw.

It goes on until the file ``stop`` appears beside its folder. Each of ``addresses`` is a server that owns a slice.
Sums of such numbers are exact in float32, so that they do not depend on the order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from collaboration.network.faulty_server import speak_to
from tacit.collaboration import FlatParameters, Participant
from tacit.collaboration.network import Credentials, Link, Membership, codec, find_shards
from tacit.collaboration.network.membership import open_outbox
from tacit.collaboration.privacy import whole_data_set
from tacit.ledger import Everyone, LaplaceSum, Ledger, Step

STEP = Step(Everyone(unit="participant"), (LaplaceSum(group="upload", clip_norm=1.0, scale=1.0, dimension=40),))
"""What each draw is charged with; the numbers in it do not matter here."""


def run(addresses: Sequence[str], keys: Path, name: str, folder: Path, log: Path) -> None:
    speak_to(log)
    attempts = folder / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.open(folder / "ledger.jsonl", whole_data_set(secure=True))
    model = nn.Linear(7, 5)  # 40 parameters
    flat = FlatParameters(model)

    def uploads(change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ledger.record(STEP)
        rng = np.random.default_rng(secrets.randbits(64))
        places = np.sort(rng.choice(40, size=12, replace=False))
        values = (rng.integers(-500, 501, size=12) / 1024).astype(np.float32)
        body = codec.pack_upload(person.sequence, places, values, size=40)
        whole = folder / "attempt"  # killed in the middle, it leaves nothing half-written among the attempts
        whole.write_bytes(body)
        whole.replace(attempts / f"{person.sequence}-{secrets.token_hex(8)}")
        time.sleep(0.01)  # between the draw and the outbox
        return places, values

    person = Participant(name, flat, lambda: time.sleep(0.01), uploads)
    own = Credentials.read(keys, name)
    shards = find_shards([Link(address, own, patience=120.0) for address in addresses])
    membership = Membership(person, shards, open_outbox(folder, name, shards))
    while not (folder.parent / "stop").exists():
        membership.exchange()
    membership.deliver()
    membership.close()
