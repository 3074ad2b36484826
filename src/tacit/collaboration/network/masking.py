"""Sums that hide their terms: each participant adds masks that cancel in the sum over all of them (§7.4, pooled).

In a round, participants i = 1..n each make an X25519 key pair and agree on a secret s_ij with each other one. Values in
[-γ, γ] become whole numbers (units of γ/2^40) modulo 2^64, and participant i sends

    y_i = x_i + Σ_{j>i} PRG(k_ij) − Σ_{j<i} PRG(k_ij)   (mod 2^64),

with k_ij derived from s_ij, the collaboration, the round, everybody in it *and who i and j are*. The last is needed:
somebody who shows another one's public key as its own has the same secret with i as that one, without knowing it, and
masks that depended on the secret alone would cancel within the one message y_i.

All masks cancel in Σ y_i = Σ x_i, exactly. **What this hides**: whoever sees the y_i, but holds none of the secrets
between two honest participants, learns nothing beyond the sum over the honest ones: every other combination has a mask
left in it, which (X25519, HKDF-SHA256, AES-256-CTR) cannot be told from uniform. **What it does not hide**: the sum
itself, who takes part and when; and all others together, with the server, can subtract. Nor does it hide much from
somebody who is shown several sums with nearly the same values in them: a server that lets some train on the same
parameters again, in another round without the one it is curious about, can subtract as well, if their values have no
noise of their own. It adds no noise: the ε of a participant is that of its own noise, as if each upload were seen. The
server cannot check single terms either, only the sum: one dishonest participant can spoil a round.

The round's keys are signed with the key of the participant's certificate and checked against the authority, so that a
server cannot invent participants or sit in between. **If somebody drops out** without a word, the round is abandoned:
no secret is ever handed out to repair it, so an unfinished sum stays masked for good.

**If somebody leaves** before it has sent anything, it signs a goodbye, which says that it has not sent and never will,
and the others mask *the same* values again, among those who remain (at least k, or the round is abandoned). Nobody does
that without a goodbye that it has checked: two sums that differ in one participant would show its term. With it, let H
be the honest participants who remain. Masks depend on who takes part, so what was sent among a set S can be unmasked
only if all honest members of S have sent among S, and only to their sum. A set with an honest participant that has left
is never complete, because that one sends nothing; in every other set the honest ones are exactly H. So the server, with
whomever it colludes, learns the sum over H once, and no other sum.
"""

from __future__ import annotations

import datetime
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID

from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network.certificates import common_name
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.selection import at_random
from tacit.randomness import SeededSource, keystream

Words = npt.NDArray[np.uint64]

MOST = 1024
"""Participants in a round."""
_UNITS = 2**40  # of γ: at most 2^50 in a sum of 1024, far from 2^63
_LENGTHS = struct.Struct("<HH")
_KEY_BYTES = 32
_FIELD = 2**255 - 19
_LARGEST_CARD = 8192
_FAREWELL = b"goodbye\0"


@dataclass(frozen=True, kw_only=True)
class Card:
    """A participant's key for one round, with what shows that it is hers."""

    public: bytes
    signature: bytes
    certificate: bytes

    def pack(self) -> bytes:
        head = _LENGTHS.pack(len(self.signature), len(self.certificate))
        return self.public + head + self.signature + self.certificate

    @classmethod
    def unpack(cls, data: bytes) -> Card:
        start = _KEY_BYTES + _LENGTHS.size
        if not start <= len(data) <= _LARGEST_CARD:
            raise Refused(
                Reason.MALFORMED, f"a round's key has {len(data)} bytes; it must have {start} to {_LARGEST_CARD}."
            )
        first, second = _LENGTHS.unpack_from(data, _KEY_BYTES)
        if len(data) != start + first + second:
            raise Refused(Reason.MALFORMED, f"a round's key has {len(data)} bytes, not {start + first + second}.")
        return cls(public=data[:_KEY_BYTES], signature=data[start : start + first], certificate=data[start + first :])


@dataclass(frozen=True, kw_only=True)
class Goodbye:
    """The goodbye of the participant whose card is at ``place`` of the roster."""

    place: int
    signature: bytes


def pack_roster(cards: Sequence[Card], gone: Sequence[Goodbye] = ()) -> bytes:
    packed = [card.pack() for card in cards]
    said = [struct.pack("<H", goodbye.place) + goodbye.signature for goodbye in gone]
    counts = struct.pack("<HH", len(packed), len(said))
    return counts + b"".join(struct.pack("<H", len(item)) + item for item in [*packed, *said])


def unpack_roster(data: bytes) -> tuple[list[Card], list[Goodbye]]:
    """Return the participants of the round when it closed, and those who have left since, in order."""
    try:
        (cards, gone), place, items = struct.unpack_from("<HH", data), 4, []
        for _ in range(cards + gone):
            (length,) = struct.unpack_from("<H", data, place)
            items.append(data[place + 2 : place + 2 + length])
            place += 2 + length
        said = [Goodbye(place=struct.unpack_from("<H", item)[0], signature=item[2:]) for item in items[cards:]]
    except struct.error:
        raise Refused(Reason.MALFORMED, "the roster is too short.") from None
    if place != len(data):
        raise Refused(Reason.MALFORMED, "the roster is too long.")
    return [Card.unpack(item) for item in items[:cards]], said


class Mask:
    """One participant's part in one round."""

    def __init__(self, credentials: Credentials, *, collaboration: str, round_id: bytes) -> None:
        self._credentials, self._context = credentials, context_of(collaboration, round_id)
        self._key = X25519PrivateKey.generate()
        self._public = self._key.public_key().public_bytes_raw()

    def card(self) -> Card:
        """To be shown to the others."""
        certificate = x509.load_pem_x509_certificate(self._credentials.certificate)
        return Card(
            public=self._public,
            signature=self._signed(self._context + self._public),
            certificate=certificate.public_bytes(serialization.Encoding.DER),
        )

    def goodbye(self) -> bytes:
        """One leaves the round. To be made only by whoever has sent nothing in it, and never will."""
        return self._signed(_FAREWELL + self._context + self._public)

    def _signed(self, text: bytes) -> bytes:
        own = serialization.load_pem_private_key(self._credentials.key, password=None)
        if not isinstance(own, ec.EllipticCurvePrivateKey):
            raise ValueError("the certificate's key is not one of an elliptic curve; pooled uploads need one.")
        return own.sign(text, ec.ECDSA(hashes.SHA256()))

    def hide(
        self, values: Vector, *, bound: float, roster: Sequence[Card], least: int, gone: Sequence[Goodbye] = ()
    ) -> Words:
        """The masked values. Refuses a roster that is too small, or has a key that nobody vouches for.

        The values of a round are the same however often somebody has ``gone``, and so is its ``roster``.
        """
        keys = self.check(roster, least=least, gone=gone)
        names = sorted(keys)
        own = self._credentials.name
        who = {name: hashlib.sha256(keys[name] + name.encode()).digest() for name in names}
        # All must mean the same round among the same people, or else the masks do not cancel.
        context = self._context + hashlib.sha256(b"".join(who.values())).digest()
        total = encode(values, bound)
        for name in names:
            if name != own:
                secret = self._key.exchange(X25519PublicKey.from_public_bytes(keys[name]))
                first, second = sorted((own, name))
                mask = _stream(secret, context + who[first] + who[second], values.size)
                total = total + mask if own < name else total - mask
        return total

    def check(self, roster: Sequence[Card], *, least: int, gone: Sequence[Goodbye] = ()) -> dict[str, bytes]:
        """The key of each participant of the round who has not gone, by name."""
        authority = x509.load_pem_x509_certificate(self._credentials.authority)
        names = [check_card(card, authority, self._context) for card in roster]
        if len(set(names)) != len(roster):
            raise ValueError("somebody is in the round twice; nothing was sent.")
        if len({canonical(card.public) for card in roster}) != len(roster):
            raise ValueError("two in the round have the same key; nothing was sent.")
        keys = {name: card.public for name, card in zip(names, roster, strict=True)}
        for goodbye in gone:
            if goodbye.place >= len(roster):
                raise ValueError("somebody has left the round who was not in it; nothing was sent.")
            check_goodbye(roster[goodbye.place], goodbye.signature, self._context)
            keys.pop(names[goodbye.place], None)
        if not max(least, 2) <= len(keys) <= MOST:
            raise ValueError(f"the round has {len(keys)} participants, not {least} to {MOST}; nothing was sent.")
        if keys.get(self._credentials.name) != self._public:
            raise ValueError("one's own key is missing from the round; nothing was sent.")
        return keys


def check_card(card: Card, authority: x509.Certificate, context: bytes) -> str:
    """Return the name on the card; refuse one that is not a participant's of this authority, signed for this round."""
    try:
        certificate = x509.load_der_x509_certificate(card.certificate)
        certificate.verify_directly_issued_by(authority)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("the key is of another kind")
        key.verify(card.signature, context + card.public, ec.ECDSA(hashes.SHA256()))
        name = common_name(certificate)
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(card.public))  # not with low order
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise Refused(Reason.UNKNOWN, f"nobody vouches for a key of the round ({type(error).__name__}).") from None
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise Refused(Reason.UNKNOWN, f"the certificate of {name!r} has expired.")
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise Refused(Reason.UNKNOWN, f"the certificate of {name!r} is not a participant's.")
    return name


def canonical(public: bytes) -> int:
    """The point that a public key means: X25519 ignores the top bit and reduces the rest."""
    return (int.from_bytes(public, "little") & (2**255 - 1)) % _FIELD


def check_goodbye(card: Card, signature: bytes, context: bytes) -> None:
    """Refuse a goodbye that whoever has the card did not sign for this round."""
    try:
        key = x509.load_der_x509_certificate(card.certificate).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("the key is of another kind")
        key.verify(signature, _FAREWELL + context + card.public, ec.ECDSA(hashes.SHA256()))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise Refused(Reason.UNKNOWN, f"a goodbye is not signed by who leaves ({type(error).__name__}).") from None


def among(round_id: bytes, gone: Sequence[Goodbye]) -> bytes:
    """Return what the round is called among those who remain: another name after each goodbye."""
    for goodbye in gone:
        round_id = hashlib.sha256(b"without" + round_id + struct.pack("<H", goodbye.place)).digest()[: len(round_id)]
    return round_id


def places(round_id: bytes, *, size: int, count: int) -> Positions:
    """The common places of a round: random, and the same for all; no record has a say in them."""
    return at_random(size, count, SeededSource(int.from_bytes(hashlib.sha256(b"places" + round_id).digest())))


def encode(values: Vector, bound: float) -> Words:
    """Whole numbers modulo 2^64. Values beyond the bound, which nobody could check later, are cut to it here."""
    units = np.rint(np.clip(values.astype(np.float64) / bound, -1.0, 1.0) * _UNITS)
    return units.astype(np.int64).view(np.uint64)


def decode(total: Words, bound: float, *, terms: int) -> Vector:
    """The sum of so many values; refuses one that no honest terms can have."""
    units = total.view(np.int64)
    if units.size and int(np.abs(units.astype(np.float64)).max()) > terms * _UNITS:
        raise Refused(Reason.BOUND, "the sum of the round is beyond what its participants could have sent.")
    return (units * (bound / _UNITS)).astype(np.float32)


def context_of(collaboration: str, round_id: bytes) -> bytes:
    return b"tacit masked sum\0" + hashlib.sha256(collaboration.encode()).digest() + round_id


def _stream(secret: bytes, context: bytes, count: int) -> Words:
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=context).derive(secret)
    return np.frombuffer(keystream(key, bytes(16)).update(bytes(8 * count)), dtype="<u8").astype(np.uint64)
