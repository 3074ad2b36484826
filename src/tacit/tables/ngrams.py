"""Hashed n-grams of free text: a public hash, so nothing about the records' words is stored or released.

The hash is CRC-32 of the n-gram's UTF-8 bytes: the same in every version, on every machine, and in any language that
an exported model is used from.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.tables.columns import MOST_NGRAMS

_WORD = re.compile(r"\w+")


def buckets_of(text: str, buckets: int, ngrams: int) -> list[int]:
    """Return the buckets of a text's n-grams, each once, the first `MOST_NGRAMS` of them.

    >>> buckets_of("Not bad, not bad at all", 1000, 1) == buckets_of("not BAD at all", 1000, 1)
    True
    """
    words = _WORD.findall(text.lower())
    found: dict[int, None] = {}
    for length in range(1, ngrams + 1):
        for start in range(len(words) - length + 1):
            gram = " ".join(words[start : start + length])
            found[zlib.crc32(gram.encode()) % buckets] = None
            if len(found) == MOST_NGRAMS:
                return list(found)
    return list(found)


def hashed(values: NDArray[Any], buckets: int, ngrams: int) -> NDArray[np.float32]:
    """Return a row of `MOST_NGRAMS` buckets for every text, -1 where there are fewer."""
    rows = np.full((len(values), MOST_NGRAMS), -1, dtype=np.float32)
    for place, entry in enumerate(values.tolist()):
        found = buckets_of(str(entry), buckets, ngrams)
        rows[place, : len(found)] = found
    return rows
