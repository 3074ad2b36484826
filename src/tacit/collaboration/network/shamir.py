"""Secrets shared among n people, of whom any t can put one together (Shamir 1979).

A secret below the prime p = 2^256 + 297 is the value at 0 of a polynomial of degree t - 1 whose other coefficients are
uniform modulo p; the share of person x = 1, ..., n is its value at x. Any t values determine the polynomial. Of t - 1
values every secret is equally likely: for each there is exactly one polynomial. So fewer than t shares say nothing at
all, whatever can be computed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, *, threshold: int, people: int) -> list[bytes]:
    """Return a share for each of ``people``, the first for x = 1; any ``threshold`` of them give the secret back."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes; it must have {SECRET_BYTES}.")
    if not 2 <= threshold <= people:
        raise ValueError(f"the threshold is {threshold} of {people} people; it must be from 2 to {people}.")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    constant = int.from_bytes(secret)
    shares = []
    for x in range(1, people + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % PRIME
        shares.append(((value * x + constant) % PRIME).to_bytes(SHARE_BYTES))
    return shares


def weights(people: Sequence[int]) -> list[int]:
    """Return the factors by which the shares of these ``people`` (x >= 1) add up to the secret: Lagrange, at 0."""
    if len(set(people)) != len(people) or min(people) < 1:
        raise ValueError(f"the people are {list(people)[:10]}; each must be there once, counted from 1.")
    found = []
    for x in people:
        above, below = 1, 1
        for other in people:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def combine(shares: Mapping[int, bytes], factors: Sequence[int] | None = None) -> bytes | None:
    """Return the secret that exactly ``threshold`` shares, by person, determine; None if it is not one of 32 bytes.

    ``factors`` are the `weights` of the same people, where many secrets are put together from the same ones.
    """
    factors = weights(list(shares)) if factors is None else factors
    total = sum(factor * int.from_bytes(share) for factor, share in zip(factors, shares.values(), strict=True)) % PRIME
    return total.to_bytes(SECRET_BYTES) if total >> 8 * SECRET_BYTES == 0 else None
