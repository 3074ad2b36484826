"""The server's part at the end of a round: check revealed shares, put secrets together, take the masks off the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.collaboration.network import shamir
from tacit.collaboration.network.masking import Words, own_mask, pair_mask
from tacit.collaboration.network.roster import Roster
from tacit.collaboration.network.sharing import KEY, SEED, Deal, seed_digest
from tacit.collaboration.refusals import Reason, Refused


def check_revealed(
    roster: Roster, deals: Mapping[int, Deal], survivors: Sequence[int], place: int, data: bytes
) -> dict[int, bytes]:
    """Return the shares that ``place`` reveals, by dealer; refuse a share that was not dealt to it for this purpose."""
    dealers = sorted(deals)
    if len(data) != shamir.SHARE_BYTES * len(dealers):
        raise Refused(
            Reason.MALFORMED,
            f"the shares have {len(data)} bytes; those of {len(dealers)} have {shamir.SHARE_BYTES * len(dealers)}.",
        )
    found = {}
    for number, dealer in enumerate(dealers):
        share = data[number * shamir.SHARE_BYTES : (number + 1) * shamir.SHARE_BYTES]
        kind = SEED if dealer in survivors else KEY
        if not deals[dealer].fits(roster, dealer, place, kind, share):
            raise Refused(Reason.UNKNOWN, f"the share of {roster.names[dealer]!r} is not the one that it has dealt.")
        found[dealer] = share
    return found


def unmask(
    total: Words,
    roster: Roster,
    deals: Mapping[int, Deal],
    survivors: Sequence[int],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """Return the exact sum of the survivors' values, from the sum of their uploads and t people's revealed shares.

    Left in the sum are the own masks of the survivors, and the masks between a survivor and a dealer that fell silent.
    """
    dealers, people = sorted(deals), sorted(revealed)[: roster.threshold]
    factors = shamir.weights([place + 1 for place in people])
    found = total.copy()
    for dealer in dealers:
        secret = shamir.combine({place + 1: revealed[place][dealer] for place in people}, factors)
        if dealer in survivors:
            if secret is None or seed_digest(roster, dealer, secret) != deals[dealer].seed_digest:
                raise _misdealt(roster, dealer)
            found -= own_mask(secret, roster, dealer, dealers, total.size)
            continue
        key = None if secret is None else X25519PrivateKey.from_private_bytes(secret)
        if key is None or key.public_key().public_bytes_raw() != roster.cards[dealer].public:
            raise _misdealt(roster, dealer)
        for other in survivors:  # what the silent one would have added for the survivor cancels what that one added
            found += pair_mask(key, roster, dealer, other, dealers, total.size)
    return found


def _misdealt(roster: Roster, dealer: int) -> Refused:
    return Refused(
        Reason.ROUND,
        f"the shares that {roster.names[dealer]!r} dealt do not fit together; revoke it",
    )
