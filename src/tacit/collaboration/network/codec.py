"""How messages travel: a fixed header and little-endian arrays. Every length is checked before anything is read.

No message says who sent it: that is for the transport to know, from the sender's certificate.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.collaboration.messages import Download, Vector
from tacit.collaboration.refusals import Reason, Refused

FORMAT = 1
OVERHEAD = 8192
"""Bytes that any message may have beyond its arrays; a certificate or a statement fits."""
LONGEST_STATEMENT = 2000
ROUND_BYTES = 16
PART = 1 << 19
"""Parameters that one answer has at most, 2 MiB: neither side then needs memory for the whole model once more."""

Piece = bytes | memoryview

_ARRAYS = struct.Struct("<4sBBHQI")  # magic, format, whole, nothing, number, count
_UPLOAD, _DOWNLOAD = b"TCTu", b"TCTd"


# -- arrays ----------------------------------------------------------------------------------------------------------


def pack_upload(sequence: int, indices: npt.NDArray[Any] | None, values: Vector, *, size: int) -> bytes:
    """Return an upload to a server that owns ``size`` parameters; indices in rising order, or None for all."""
    return b"".join(upload_pieces(sequence, indices, values, size=size))


def upload_pieces(sequence: int, indices: npt.NDArray[Any] | None, values: Vector, *, size: int) -> list[Piece]:
    """Return the bytes of `pack_upload` in pieces, of which the long ones are views."""
    return _pieces(_UPLOAD, sequence, None if indices is None or indices.size == size else indices, values)


def unpack_upload(data: bytes | memoryview, *, size: int) -> tuple[int, npt.NDArray[np.uint32] | None, Vector]:
    """Return the sequence number, positions (None for all) and values in ``data``; the server checks their worth."""
    return _unpack(_UPLOAD, data, size)


def pack_download(download: Download) -> bytes:
    return b"".join(_pieces(_DOWNLOAD, 0, download.indices, download.values))


def unpack_download(data: bytes, *, size: int) -> Download:
    """Return what a server sent, which is not trusted either: positions in range and rising, all values finite."""
    _, indices, values = _unpack(_DOWNLOAD, data, size)
    if indices is not None and indices.size and (indices[-1] >= size or bool((indices[1:] <= indices[:-1]).any())):
        raise _malformed("positions are not in rising order below the number of parameters.")
    if not np.isfinite(values).all():
        raise _malformed("a value is not finite.")
    return Download(indices=None if indices is None else indices.astype(np.int64), values=values)


def _pieces(magic: bytes, number: int, indices: npt.NDArray[np.integer[Any]] | None, values: Vector) -> list[Piece]:
    head = _ARRAYS.pack(magic, FORMAT, indices is None, 0, number, values.size)
    arrays = [] if indices is None else [indices.astype("<u4", copy=False)]
    arrays.append(np.ascontiguousarray(values, dtype="<f4"))
    return [head, *(array.data.cast("B") for array in arrays if array.size)]


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


# -- small messages --------------------------------------------------------------------------------------------------

_TOKEN = struct.Struct("<Q")
_FRACTION = struct.Struct("<d")
_RANGE = struct.Struct("<QQ")


def pack_token(token: int) -> bytes:
    return _TOKEN.pack(token)


def split_token(data: bytes) -> tuple[int, memoryview]:
    """Return the lease that a message was sent under, and the rest of it, which is not copied."""
    if len(data) < _TOKEN.size:
        raise _malformed(f"it has {len(data)} bytes; a lease alone has {_TOKEN.size}.")
    return _TOKEN.unpack_from(data)[0], memoryview(data)[_TOKEN.size :]


def split_round(data: bytes) -> tuple[bytes, bytes]:
    """Return the round that a message is about, and the rest of it."""
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


def pack_range(first: int, count: int) -> bytes:
    return _RANGE.pack(first, count)


def unpack_range(data: bytes, *, size: int) -> tuple[int, int]:
    """Return the first of the parameters that are asked for, and how many they are, at most `PART`."""
    if len(data) != _RANGE.size:
        raise _malformed(f"it has {len(data)} bytes; a range has {_RANGE.size}.")
    first, count = _RANGE.unpack(data)
    if not (0 < count <= PART and first + count <= size):
        raise Refused(
            Reason.RANGE, f"the range is {count} parameters from {first} on; it must be 1 to {PART} of {size}."
        )
    return first, count


def unpack_statement(data: bytes) -> str:
    """Return what a participant says about its budget: for people to read, never to be relied on."""
    if len(data) > LONGEST_STATEMENT:
        raise Refused(Reason.TOO_MANY, f"the statement has {len(data)} bytes; at most {LONGEST_STATEMENT} are kept.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _malformed("a statement is text in UTF-8.") from None
    return "".join(character if character.isprintable() else " " for character in text)
