"""How messages travel: a fixed header and little-endian arrays. Every length is checked before anything is read.

No message says who sent it: that is for the transport to know, from the sender's certificate.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.collaboration.messages import Download, Positions, Vector
from tacit.collaboration.refusals import Reason, Refused

FORMAT = 1
OVERHEAD = 8192
"""Bytes that any message may have beyond its arrays; a certificate or a statement fits."""
LONGEST_STATEMENT = 2000
ROUND_BYTES = 16

_ARRAYS = struct.Struct("<4sBBHQI")  # magic, format, whole, nothing, number, count
_UPLOAD, _DOWNLOAD = b"TCTu", b"TCTd"


# -- arrays ----------------------------------------------------------------------------------------------------------


def pack_upload(sequence: int, indices: npt.NDArray[np.integer[Any]], values: Vector, *, size: int) -> bytes:
    """An upload to a server that owns ``size`` parameters; indices in rising order."""
    return _pack(_UPLOAD, sequence, None if indices.size == size else indices, values)


def unpack_upload(data: bytes | memoryview, *, size: int) -> tuple[int, npt.NDArray[np.integer[Any]], Vector]:
    """The sequence number, positions and values, as they are in ``data``; the server checks what they are worth."""
    sequence, indices, values = _unpack(_UPLOAD, data, size)
    return sequence, everything(size) if indices is None else indices, values


def pack_download(download: Download) -> bytes:
    return _pack(_DOWNLOAD, 0, download.indices, download.values)


def unpack_download(data: bytes, *, size: int) -> Download:
    """Return what a server sent, which is not trusted either: positions in range and rising, all values finite."""
    _, indices, values = _unpack(_DOWNLOAD, data, size)
    if indices is not None and indices.size and (indices[-1] >= size or bool((indices[1:] <= indices[:-1]).any())):
        raise _malformed("positions are not in rising order below the number of parameters.")
    if not np.isfinite(values).all():
        raise _malformed("a value is not finite.")
    return Download(indices=None if indices is None else indices.astype(np.int64), values=values)


def _pack(magic: bytes, number: int, indices: npt.NDArray[np.integer[Any]] | None, values: Vector) -> bytes:
    head = _ARRAYS.pack(magic, FORMAT, indices is None, 0, number, values.size)
    places = b"" if indices is None else indices.astype("<u4").data
    return b"".join([head, places, np.ascontiguousarray(values, dtype="<f4").data])  # large models: one copy


def _unpack(magic: bytes, data: bytes | memoryview, size: int) -> tuple[int, npt.NDArray[np.uint32] | None, Vector]:
    if len(data) < _ARRAYS.size:
        raise _malformed(f"it has {len(data)} bytes; its header alone has {_ARRAYS.size}.")
    found, version, whole, nothing, number, count = _ARRAYS.unpack_from(data)
    if found != magic:
        raise _malformed(f"it begins with {found!r}, not {magic!r}.")
    if version != FORMAT:
        raise _malformed(f"its format is {version}; this version of tacit reads format {FORMAT}.")
    if whole > 1 or nothing:
        raise _malformed("a reserved field is not zero.")
    if whole and count != size:
        raise Refused(Reason.SHAPE, f"there are {count} values for the whole; it has {size} parameters.")
    expected = _ARRAYS.size + (4 if whole else 8) * count
    if len(data) != expected:
        raise _malformed(f"it has {len(data)} bytes; {count} entries take {expected}.")
    values = np.frombuffer(data, dtype="<f4", count=count, offset=expected - 4 * count).astype(np.float32, copy=False)
    if whole:
        return number, None, values
    return number, np.frombuffer(data, dtype="<u4", count=count, offset=_ARRAYS.size), values


def _malformed(what: str) -> Refused:
    return Refused(Reason.MALFORMED, f"the message cannot be read: {what}")


@lru_cache(maxsize=4)
def everything(size: int) -> Positions:
    places = np.arange(size)
    places.setflags(write=False)
    return places


# -- small messages --------------------------------------------------------------------------------------------------

_TOKEN = struct.Struct("<Q")
_FRACTION = struct.Struct("<d")


def pack_token(token: int) -> bytes:
    return _TOKEN.pack(token)


def split_token(data: bytes) -> tuple[int, memoryview]:
    """The lease that a message was sent under, and the rest of it, which is not copied."""
    if len(data) < _TOKEN.size:
        raise _malformed(f"it has {len(data)} bytes; a lease alone has {_TOKEN.size}.")
    return _TOKEN.unpack_from(data)[0], memoryview(data)[_TOKEN.size :]


def split_round(data: bytes) -> tuple[bytes, bytes]:
    """The round that a message is about, and the rest of it."""
    if len(data) < ROUND_BYTES:
        raise _malformed(f"it has {len(data)} bytes; the name of a round alone has {ROUND_BYTES}.")
    return data[:ROUND_BYTES], data[ROUND_BYTES:]


def pack_fraction(fraction: float) -> bytes:
    return _FRACTION.pack(fraction)


def unpack_fraction(data: bytes) -> float:
    if len(data) != _FRACTION.size:
        raise _malformed(f"it has {len(data)} bytes; a fraction has {_FRACTION.size}.")
    fraction = float(_FRACTION.unpack(data)[0])
    if not 0 < fraction <= 1:
        raise Refused(Reason.RANGE, f"the fraction is {fraction!r}; it must be in (0, 1].")
    return fraction


def unpack_statement(data: bytes) -> str:
    """Return what a participant says about its budget: for people to read, never to be relied on."""
    if len(data) > LONGEST_STATEMENT:
        raise Refused(Reason.TOO_MANY, f"the statement has {len(data)} bytes; at most {LONGEST_STATEMENT} are kept.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _malformed("a statement is text in UTF-8.") from None
    return "".join(character if character.isprintable() else " " for character in text)
