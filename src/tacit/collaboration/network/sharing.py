"""Shares of a participant's two secrets, sealed for each other participant, in one message to the server.

The message of a dealer has, for everybody in the round (itself too), the digests of two shares and the two shares,
sealed with AES-256-GCM under a key that only the dealer and the receiver have (X25519 of their sealing keys, HKDF with
the round, everybody in it, and who deals to whom). A key seals one message, so its nonce is zero. A sealed message that
was changed, or comes from another round, dealer or receiver, does not open.

The digests let the server refuse a share that is not the one that was dealt. They say nothing else: a share is one of
about 2^256 equally likely values, and SHA-256 of it cannot be told from random bytes by trying them.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.collaboration.network import shamir
from tacit.collaboration.network.roster import Roster
from tacit.collaboration.refusals import Reason, Refused

KEY, SEED = 0, 1
"""The two kinds of shares: of the key that masks are made with, and of the seed of a participant's own mask."""
_DIGEST, _TAG = 32, 16
ENTRY_BYTES = 2 * _DIGEST + 2 * shamir.SHARE_BYTES + _TAG


@dataclass(frozen=True, kw_only=True)
class Deal:
    """One dealer's message: the digest of its seed, and an entry for every place."""

    seed_digest: bytes
    entries: tuple[bytes, ...]

    def pack(self) -> bytes:
        return self.seed_digest + b"".join(self.entries)

    @classmethod
    def unpack(cls, data: bytes, *, people: int) -> Deal:
        expected = _DIGEST + people * ENTRY_BYTES
        if len(data) != expected:
            raise Refused(Reason.MALFORMED, f"the shares have {len(data)} bytes; for {people} people it is {expected}.")
        starts = range(_DIGEST, expected, ENTRY_BYTES)
        return cls(seed_digest=data[:_DIGEST], entries=tuple(data[start : start + ENTRY_BYTES] for start in starts))

    def fits(self, roster: Roster, dealer: int, receiver: int, kind: int, share: bytes) -> bool:
        """Return whether this is the share that was dealt."""
        entry = self.entries[receiver]
        return share_digest(roster, dealer, receiver, kind, share) == entry[kind * _DIGEST : (kind + 1) * _DIGEST]


def deal(roster: Roster, dealer: int, sealing: X25519PrivateKey, *, key: bytes, seed: bytes) -> Deal:
    """Share both secrets of ``dealer`` among everybody in the round, ``roster.threshold`` of whom can open one."""
    people = len(roster.names)
    pairs = zip(*(shamir.split(secret, threshold=roster.threshold, people=people) for secret in (key, seed)),
                strict=True)  # fmt: skip
    entries = []
    for receiver, shares in enumerate(pairs):
        digests = [share_digest(roster, dealer, receiver, kind, share) for kind, share in enumerate(shares)]
        box = _box(roster, sealing, dealer=dealer, receiver=receiver, other=receiver)
        entries.append(b"".join([*digests, box.encrypt(bytes(12), b"".join(shares), None)]))
    return Deal(seed_digest=seed_digest(roster, dealer, seed), entries=tuple(entries))


def open_entry(
    roster: Roster, dealer: int, receiver: int, sealing: X25519PrivateKey, entry: bytes
) -> tuple[bytes, bytes]:
    """Return the two shares that ``dealer`` has sealed for ``receiver``, whose key is given; refuse any others."""
    name = roster.names[dealer]
    if len(entry) != ENTRY_BYTES:
        raise Refused(Reason.MALFORMED, f"the shares of {name!r} have {len(entry)} bytes, not {ENTRY_BYTES}.")
    box = _box(roster, sealing, dealer=dealer, receiver=receiver, other=dealer)
    try:
        content = box.decrypt(bytes(12), entry[2 * _DIGEST :], None)
    except InvalidTag:
        raise Refused(Reason.UNKNOWN, f"the shares of {name!r} were not sealed by it for us in this round.") from None
    shares = content[: shamir.SHARE_BYTES], content[shamir.SHARE_BYTES :]
    for kind, share in enumerate(shares):
        if share_digest(roster, dealer, receiver, kind, share) != entry[kind * _DIGEST : (kind + 1) * _DIGEST]:
            raise Refused(Reason.UNKNOWN, f"the shares of {name!r} are not those whose digests it shows.")
    return shares


def share_digest(roster: Roster, dealer: int, receiver: int, kind: int, share: bytes) -> bytes:
    head = b"share\0" + roster.digest + struct.pack("<HHB", dealer, receiver, kind)
    return hashlib.sha256(head + share).digest()


def seed_digest(roster: Roster, dealer: int, seed: bytes) -> bytes:
    return hashlib.sha256(b"seed\0" + roster.digest + struct.pack("<H", dealer) + seed).digest()


def _box(roster: Roster, own: X25519PrivateKey, *, dealer: int, receiver: int, other: int) -> AESGCM:
    secret = own.exchange(X25519PublicKey.from_public_bytes(roster.cards[other].sealing))
    about = b"sealed\0" + roster.digest + roster.identities[dealer] + roster.identities[receiver]
    return AESGCM(HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=about).derive(secret))
