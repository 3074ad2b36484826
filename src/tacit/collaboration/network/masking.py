"""Sums that hide their terms and survive silence: Bonawitz et al. 2017, Figure 4, with its consistency check.

In a round, n participants enrol, each with two X25519 keys that its certificate signs: one for masks, one for sealing
shares. Values are whole numbers modulo 2^64. The rest goes in four phases, and a participant that is silent in one is
left out of it.

1. *Deal.* Participant i draws a seed b_i and shares it, and the private key of its masks, with all: any t of n
   can put one together (`shamir`). Shares travel through the server, sealed (`sharing`). Those who dealt are *dealers*.
2. *Send.*  y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(k_ij) − Σ_{j<i} PRG(k_ij)   (mod 2^64), over the dealers j, with k_ij
   from the secret of i and j, the round, its participants, the dealers *and who i and j are*. (The last is needed: a
   participant that shows a twin of another's key has the same secret with i as that one, without knowing it, and masks
   that depended on the secret alone would cancel within the one message.) Those whose y arrived in time are the
   *survivors*, at least t.
3. *Vouch.* Each survivor signs who the dealers and the survivors are, once in a round, and only if it is one of at
   least t survivors.
4. *Reveal.* With t valid signatures for what it signed itself, each survivor reveals one share of every dealer: of the
   seed for a survivor, of the key for a dealer that fell silent. From t of each the server computes every mask that is
   left in Σ y_i over the survivors, and has their exact sum.

**Formal guarantee.** Let c participants collude with the server, and t be the threshold of the roster, `threshold_of`:
more than n/2, and at least the K of ``--pool K``, which every participant computes for itself.

*A server that keeps to the protocol*, all readers of its messages, and c < t colluding participants learn the sum over
the honest survivors, at least t − c, and nothing else. At most c < t shares are known of the key of an honest survivor,
and of the seed of an honest participant that fell silent; fewer than t shares say nothing of a secret. So the masks
between honest survivors are unknown, and cannot be told from uniform ones (X25519, HKDF-SHA256, AES-256-CTR). Uniform
masks on all pairs of some people, added at one end and subtracted at the other, map linearly onto all vectors of sum
zero, so what they add is uniform among those: the terms are uniform but for their sum. The upload of one that fell
silent, if the server has it, keeps PRG(b), which is uniform.

*A server that does not* can drop, delay and repeat messages, show different people different things and declare
any participant gone. It still learns that one sum at most, as long as **2t > n + c**:

* Never both kinds of shares of one participant: an honest one reveals, for each dealer, one of the two, so both kinds
  come to at most n + c shares, and 2t would be needed. So a participant declared gone whose upload arrives late, or was
  held back, stays masked by PRG(b): its seed is not revealed.
* One pair of dealers D and survivors U: t signatures are needed for it, an honest participant gives one, a dishonest
  one any number. Two pairs would need 2t of n + c.
* No part of that sum: an honest survivor i that was shown other dealers D' did not sign (D, U). Its masks are removable
  only if all honest ones of D' are among D but not U, so that D' and U have in common i and the c at most; but D' has
  at least t, and U has i and the t who signed: 2t + 1 − n <= 1 + c, against 2t > n + c.

With t > n/2 that is so for c = 0. Against c who collude with an *active* server choose K > (n + c) / 2; t = 2n/3 + 1,
as in the paper, withstands c < n/3. n − t participants may vanish, at any time.

**What it does not hide**: the sum itself, who takes part and when; all others together, with the server, can subtract.
A server that lets some train on the same parameters again, in another round without the one it is curious about, can
subtract two sums. It adds no noise. The server cannot check single terms, only the sum: one dishonest participant can
spoil a round, by an upload of nonsense or by dealing shares that do not fit; the latter is noticed and named.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.collaboration.messages import Positions, Vector
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.roster import (
    MOST,
    Card,
    Roster,
    check_card,
    context_of,
    pack_places,
    same_keys,
    signed_keys,
)
from tacit.collaboration.network.sharing import KEY, SEED, Deal, deal, open_entry
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.selection import at_random
from tacit.randomness import SeededSource, keystream

Words = npt.NDArray[np.uint64]

_UNITS = 2**40  # of γ: at most 2^50 in a sum of 1024, far from 2^63
_SEED_BYTES = 32


class Mask:
    """One participant's part in a round: `card`, `enter`, `deal`, `receive`, `hide`, `vouch`, `reveal`, in this order.

    Nothing of it is written to a disk. Each answer is given once: asked again with something else, it refuses.
    """

    def __init__(self, credentials: Credentials, *, collaboration: str, round_id: bytes) -> None:
        self._credentials, self._context = credentials, context_of(collaboration, round_id)
        self._key, self._sealing = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(_SEED_BYTES)
        self._roster: Roster | None = None
        self._deal: Deal | None = None
        self._shares: dict[int, tuple[bytes, bytes]] = {}  # by dealer
        self._survivors: tuple[int, ...] = ()

    def card(self) -> Card:
        """Return the keys to show to the others."""
        certificate = x509.load_pem_x509_certificate(self._credentials.certificate)
        public, sealing = (key.public_key().public_bytes_raw() for key in (self._key, self._sealing))
        return Card(
            public=public,
            sealing=sealing,
            signature=self._signed(signed_keys(self._context, public, sealing)),
            certificate=certificate.public_bytes(serialization.Encoding.DER),
        )

    def enter(self, cards: Sequence[Card], *, least: int) -> Roster:
        """Return the roster of the round; refuse too few, and a key without a certificate of the authority."""
        authority = x509.load_pem_x509_certificate(self._credentials.authority)
        names = [check_card(card, authority, self._context) for card in cards]
        if len(set(names)) != len(cards):
            raise ValueError("a participant is in the round twice; nothing was sent.")
        if same_keys(cards):
            raise ValueError("two in the round have the same key; nothing was sent.")
        if not max(least, 2) <= len(cards) <= MOST:
            raise ValueError(f"the round has {len(cards)} participants, not {least} to {MOST}; nothing was sent.")
        roster = Roster.of(dict(zip(names, cards, strict=True)), context=self._context, least=max(least, 2))
        if self._roster is not None and roster != self._roster:
            raise ValueError("the server shows others in the round than before; nothing more was sent.")
        own = self.card()
        if self._credentials.name not in names or _keys(roster.cards[_place(roster, self._credentials)]) != _keys(own):
            raise ValueError("one's own key is missing from the round; nothing was sent.")
        self._roster = roster
        return roster

    @property
    def roster(self) -> Roster:
        if self._roster is None:
            raise ValueError("it is not known who is in the round; enter it first.")
        return self._roster

    @property
    def place(self) -> int:
        """One's own place in the roster."""
        return _place(self.roster, self._credentials)

    def deal(self) -> bytes:
        """Return the shares of one's secrets, sealed for the others; the same ones however often it is asked for."""
        if self._deal is None:
            self._deal = deal(
                self.roster, self.place, self._sealing, key=self._key.private_bytes_raw(), seed=self._seed
            )
        return self._deal.pack()

    def receive(self, entries: Mapping[int, bytes]) -> None:
        """Take what each dealer has sealed for oneself; masks will be among these dealers."""
        roster = self.roster
        if self._shares and set(entries) != set(self._shares):
            raise ValueError("the server shows other dealers than before; nothing more was sent.")
        if len(entries) < roster.threshold or self.place not in entries:
            raise ValueError(
                f"{len(entries)} of the round have dealt shares, and {roster.threshold} must have, oneself among them; "
                "nothing was sent."
            )
        self._shares = {
            dealer: open_entry(roster, dealer, self.place, self._sealing, entry) for dealer, entry in entries.items()
        }

    @property
    def dealers(self) -> tuple[int, ...]:
        if not self._shares:
            raise ValueError("no shares were received; values are masked after that.")
        return tuple(sorted(self._shares))

    def hide(self, values: Words) -> Words:
        """Return the values with one's own mask, and one for each other dealer."""
        total = values + own_mask(self._seed, self.roster, self.place, self.dealers, values.size)
        for other in self.dealers:
            if other != self.place:
                total += pair_mask(self._key, self.roster, self.place, other, self.dealers, values.size)
        return total

    def vouch(self, survivors: Sequence[int]) -> bytes:
        """Sign who dealt and whose uploads arrived. For others than these nothing is signed or revealed any more."""
        named = tuple(survivors)
        if self._survivors and named != self._survivors:
            raise ValueError("the server shows other survivors than before; nothing was revealed.")
        few = len(named) < self.roster.threshold
        if few or self.place not in named or not set(named) <= set(self.dealers):
            raise ValueError(
                f"the server says that {len(named)} uploads arrived; {self.roster.threshold} must have, all of dealers "
                "and our own among them. Nothing was revealed."
            )
        self._survivors = named
        return self._signed(vouched_text(self.roster, self.dealers, named))

    def reveal(self, vouchers: Mapping[int, bytes]) -> bytes:
        """Return one share of each dealer: the seed's for a survivor, the key's for others; against t signatures."""
        if not self._survivors:
            raise ValueError("nothing is revealed before one has signed who the survivors are.")
        good = [place for place, signature in vouchers.items() if place in self._survivors
                and is_vouched(self.roster, self.dealers, self._survivors, place, signature)]  # fmt: skip
        if len(good) < self.roster.threshold:
            raise ValueError(
                f"{len(good)} of the round have signed the same survivors, and {self.roster.threshold} must have; "
                "nothing was revealed."
            )
        return b"".join(self._shares[dealer][SEED if dealer in self._survivors else KEY] for dealer in self.dealers)

    def _signed(self, text: bytes) -> bytes:
        own = serialization.load_pem_private_key(self._credentials.key, password=None)
        if not isinstance(own, ec.EllipticCurvePrivateKey):
            raise ValueError("the certificate's key is not one of an elliptic curve; pooled uploads need one.")
        return own.sign(text, ec.ECDSA(hashes.SHA256()))


def _place(roster: Roster, credentials: Credentials) -> int:
    return roster.names.index(credentials.name)


def _keys(card: Card) -> tuple[bytes, bytes]:
    return card.public, card.sealing


def vouched_text(roster: Roster, dealers: Collection[int], survivors: Collection[int]) -> bytes:
    """Return the text that survivors sign."""
    return b"survivors\0" + roster.digest + _digest(dealers) + _digest(survivors)


def is_vouched(
    roster: Roster, dealers: Collection[int], survivors: Collection[int], place: int, signature: bytes
) -> bool:
    """Return True if the participant at this place has signed these dealers and survivors."""
    try:
        roster.cards[place].verify(vouched_text(roster, dealers, survivors), signature)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def own_mask(seed: bytes, roster: Roster, place: int, dealers: Collection[int], count: int) -> Words:
    """Return the mask that a participant makes from its seed alone."""
    return _stream(seed, b"own\0" + roster.digest + _digest(dealers) + roster.identities[place], count)


def pair_mask(
    key: X25519PrivateKey, roster: Roster, place: int, other: int, dealers: Collection[int], count: int
) -> Words:
    """Return what the participant at ``place``, whose key this is, adds for another one, which adds the negative."""
    secret = key.exchange(X25519PublicKey.from_public_bytes(roster.cards[other].public))
    first, second = sorted((place, other))
    pair = roster.identities[first] + roster.identities[second]
    mask = _stream(secret, b"pair\0" + roster.digest + _digest(dealers) + pair, count)
    return mask if place < other else np.negative(mask)


def places(round_id: bytes, *, size: int, count: int) -> Positions:
    """Return the common places of a round: random, and the same for all; no record has a say in them."""
    return at_random(size, count, SeededSource(int.from_bytes(hashlib.sha256(b"places" + round_id).digest())))


def encode(values: Vector, bound: float) -> Words:
    """Return whole numbers modulo 2^64; values beyond the bound are cut: under masks a server cannot check them."""
    units = np.rint(np.clip(values.astype(np.float64) / bound, -1.0, 1.0) * _UNITS)
    return units.astype(np.int64).view(np.uint64)


def decode(total: Words, bound: float, *, terms: int) -> Vector:
    """Return the sum of so many values; refuses one that no honest terms can have."""
    units = total.view(np.int64)
    if units.size and int(np.abs(units.astype(np.float64)).max()) > terms * _UNITS:
        raise Refused(Reason.BOUND, "the sum of the round is beyond what its participants could have sent.")
    return (units * (bound / _UNITS)).astype(np.float32)


def _digest(places_: Collection[int]) -> bytes:
    return hashlib.sha256(pack_places(places_)).digest()


def _stream(secret: bytes, context: bytes, count: int) -> Words:
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=context).derive(secret)
    return np.frombuffer(keystream(key, bytes(16)).update(bytes(8 * count)), dtype="<u8").astype(np.uint64)
