"""The participants of a round of masked uploads, each with two public keys that its certificate vouches for."""

from __future__ import annotations

import datetime
import hashlib
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from tacit.collaboration.network.certificates import common_name
from tacit.collaboration.refusals import Reason, Refused

MOST = 1024
"""Participants in a round."""
KEY_BYTES = 32
LARGEST_CARD = 8192

_LENGTHS = struct.Struct("<HH")
_FIELD = 2**255 - 19


@dataclass(frozen=True, kw_only=True)
class Card:
    """A participant's keys for one round: ``public`` for masks, ``sealing`` for shares; signed by its certificate."""

    public: bytes
    sealing: bytes
    signature: bytes
    certificate: bytes

    def pack(self) -> bytes:
        head = _LENGTHS.pack(len(self.signature), len(self.certificate))
        return self.public + self.sealing + head + self.signature + self.certificate

    @classmethod
    def unpack(cls, data: bytes) -> Card:
        start = 2 * KEY_BYTES + _LENGTHS.size
        if not start <= len(data) <= LARGEST_CARD:
            raise Refused(
                Reason.MALFORMED, f"a round's card has {len(data)} bytes; it must have {start} to {LARGEST_CARD}."
            )
        first, second = _LENGTHS.unpack_from(data, 2 * KEY_BYTES)
        if len(data) != start + first + second:
            raise Refused(Reason.MALFORMED, f"a round's card has {len(data)} bytes, not {start + first + second}.")
        return cls(
            public=data[:KEY_BYTES],
            sealing=data[KEY_BYTES : 2 * KEY_BYTES],
            signature=data[start : start + first],
            certificate=data[start + first :],
        )

    def verify(self, text: bytes, signature: bytes) -> None:
        """Raise `InvalidSignature`, or ValueError, if the owner of the certificate did not sign this text."""
        key = x509.load_der_x509_certificate(self.certificate).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("the key is of another kind")
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))


@dataclass(frozen=True, kw_only=True)
class Roster:
    """Everybody in a round, in the order of their names; a participant's place is its number in that order.

    ``context`` names the collaboration and the round; ``threshold`` is t: how many must remain, and how many must
    reveal their shares, for the sum to be known.
    """

    names: tuple[str, ...]
    cards: tuple[Card, ...]
    threshold: int
    context: bytes

    @classmethod
    def of(cls, cards: Mapping[str, Card], *, context: bytes, least: int) -> Roster:
        """Return the roster of these people; ``least`` is the fewest that a sum may be over, as all have agreed."""
        names = tuple(sorted(cards))
        return cls(
            names=names,
            cards=tuple(cards[name] for name in names),
            threshold=threshold_of(len(names), least),
            context=context,
        )

    @cached_property
    def identities(self) -> tuple[bytes, ...]:
        """Return the digest of each participant's name and keys."""
        pairs = zip(self.names, self.cards, strict=True)
        return tuple(hashlib.sha256(card.public + card.sealing + name.encode()).digest() for name, card in pairs)

    @cached_property
    def digest(self) -> bytes:
        """Return the round, everybody in it and the threshold: what all must mean, or else no mask cancels."""
        return hashlib.sha256(self.context + struct.pack("<H", self.threshold) + b"".join(self.identities)).digest()


def threshold_of(people: int, least: int) -> int:
    """Return t for a round of so many people: more than half of them, and at least ``least``.

    >>> threshold_of(3, 2), threshold_of(10, 2), threshold_of(10, 8)
    (2, 6, 8)
    """
    return max(least, people // 2 + 1)


def context_of(collaboration: str, round_id: bytes) -> bytes:
    return b"tacit masked sum 2\0" + hashlib.sha256(collaboration.encode()).digest() + round_id


def signed_keys(context: bytes, public: bytes, sealing: bytes) -> bytes:
    """Return the text that a participant signs to show that keys are its own."""
    return b"keys\0" + context + public + sealing


def check_card(card: Card, authority: x509.Certificate, context: bytes) -> str:
    """Return the name on the card; refuse one that is not a participant's of this authority, signed for this round."""
    try:
        certificate = x509.load_der_x509_certificate(card.certificate)
        certificate.verify_directly_issued_by(authority)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        card.verify(signed_keys(context, card.public, card.sealing), card.signature)
        name = common_name(certificate)
        for key in (card.public, card.sealing):  # not with low order
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise Refused(
            Reason.UNKNOWN, f"no certificate of the authority vouches for a key of the round ({type(error).__name__})."
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise Refused(Reason.UNKNOWN, f"the certificate of {name!r} has expired.")
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise Refused(Reason.UNKNOWN, f"the certificate of {name!r} is not a participant's.")
    return name


def same_keys(cards: Collection[Card]) -> bool:
    """Return whether a key is there twice, also as another spelling of the same point."""
    keys = {_point(key) for card in cards for key in (card.public, card.sealing)}
    return len(keys) != 2 * len(cards)


def _point(public: bytes) -> int:
    """Return the point that a public key means: X25519 ignores the top bit and reduces the rest."""
    return (int.from_bytes(public, "little") & (2**255 - 1)) % _FIELD


# -- on the wire -----------------------------------------------------------------------------------------------------


def pack_items(items: Sequence[bytes]) -> bytes:
    """Return a list of short byte strings as one."""
    return struct.pack("<H", len(items)) + b"".join(struct.pack("<H", len(item)) + item for item in items)


def unpack_items(data: bytes) -> list[bytes]:
    """Return the list that `pack_items` packed; refuse what is too short or too long."""
    try:
        (count,), place, items = struct.unpack_from("<H", data), 2, []
        for _ in range(count):
            (length,) = struct.unpack_from("<H", data, place)
            items.append(data[place + 2 : place + 2 + length])
            place += 2 + length
    except struct.error:
        raise Refused(Reason.MALFORMED, "a list is too short.") from None
    if place != len(data):
        raise Refused(Reason.MALFORMED, "a list does not have the length that it says.")
    return items


def pack_roster(cards: Sequence[Card]) -> bytes:
    return pack_items([card.pack() for card in cards])


def unpack_roster(data: bytes) -> list[Card]:
    return [Card.unpack(item) for item in unpack_items(data)]


def pack_places(places: Collection[int]) -> bytes:
    """Return a set of places, in rising order, two bytes each."""
    return struct.pack(f"<{len(places)}H", *sorted(places))


def unpack_places(data: bytes, *, people: int) -> tuple[int, ...]:
    """Return the places that `pack_places` packed; refuse places that are not rising or beyond the roster."""
    if len(data) % 2:
        raise Refused(Reason.MALFORMED, f"a list of places has {len(data)} bytes, two for each.")
    found: tuple[int, ...] = struct.unpack(f"<{len(data) // 2}H", data)
    if any(place >= people for place in found) or list(found) != sorted(set(found)):
        raise Refused(Reason.MALFORMED, "a list of places is not in rising order, or names a place beyond the roster.")
    return found
