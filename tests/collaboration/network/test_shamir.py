"""Shared secrets: any t shares give them back, and t - 1 say nothing."""

from __future__ import annotations

import itertools
import secrets

import pytest

from tacit.collaboration.network.shamir import PRIME, SECRET_BYTES, SHARE_BYTES, combine, split, weights


def test_the_modulus_is_prime() -> None:
    """Miller and Rabin, with forty random bases: a composite passes with probability 2^-80."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        x = pow(secrets.randbelow(PRIME - 3) + 2, odd, PRIME)
        assert x == 1 or any(pow(x, 2**k, PRIME) == PRIME - 1 for k in range(twos))


@pytest.mark.parametrize(("threshold", "people"), [(2, 2), (2, 3), (3, 5), (5, 6)])
def test_every_subset_of_t_shares_gives_the_secret_back(threshold: int, people: int) -> None:
    for secret in (bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES, secrets.token_bytes(SECRET_BYTES)):
        shares = split(secret, threshold=threshold, people=people)
        assert all(len(share) == SHARE_BYTES for share in shares)
        for chosen in itertools.combinations(range(1, people + 1), threshold):
            assert combine({x: shares[x - 1] for x in chosen}) == secret


def test_fewer_than_t_shares_fit_every_secret() -> None:
    """For any t - 1 shares and any other secret some last share makes it the secret: nothing is ruled out."""
    shares = split(secrets.token_bytes(SECRET_BYTES), threshold=3, people=5)
    factors = weights([1, 2, 3])
    for other in (bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES, secrets.token_bytes(SECRET_BYTES)):
        rest = int.from_bytes(other) - sum(
            factor * int.from_bytes(share) for factor, share in zip(factors[:2], shares[:2], strict=True)
        )
        third = (rest * pow(factors[2], -1, PRIME) % PRIME).to_bytes(SHARE_BYTES)
        assert combine({1: shares[0], 2: shares[1], 3: third}) == other


def test_shares_are_spread_over_the_whole_field() -> None:
    """The same secret twice has other shares; their leading bits are as often one as zero."""
    found = [split(bytes(SECRET_BYTES), threshold=2, people=1 + 1)[0] for _ in range(2000)]
    assert len(set(found)) == 2000
    high = sum(int.from_bytes(share) >> 255 for share in found)
    assert 800 < high < 1200


def test_a_wrong_share_gives_another_secret_and_nonsense_is_refused() -> None:
    secret = secrets.token_bytes(SECRET_BYTES)
    shares = split(secret, threshold=2, people=3)
    wrong = bytes([*shares[1][:-1], shares[1][-1] ^ 1])
    assert combine({1: shares[0], 2: wrong}) != secret
    for threshold, people in ((1, 3), (4, 3)):
        with pytest.raises(ValueError, match="the threshold is"):
            split(secret, threshold=threshold, people=people)
    with pytest.raises(ValueError, match="the secret has 31 bytes"):
        split(secret[1:], threshold=2, people=3)
    for people_ in ([1, 1], [0, 1]):
        with pytest.raises(ValueError, match="each must be there once"):
            weights(people_)
