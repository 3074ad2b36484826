"""How messages travel: a fixed header and little-endian arrays. Every length is checked before anything is read.

No message says who sent it: that is for the transport to know, from the sender's certificate.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from tacit.collaboration.exchange import Protocol
from tacit.collaboration.messages import Download, Positions, Vector, portion
from tacit.collaboration.server import Reason, Refused

FORMAT = 1
OVERHEAD = 8192
"""Bytes that any message may have beyond its arrays; a certificate or a statement fits."""
LONGEST_STATEMENT = 2000
ROUND_BYTES = 16

_ARRAYS = struct.Struct("<4sBBHQI")  # magic, format, whole, nothing, number, count
_UPLOAD, _DOWNLOAD = b"TCTu", b"TCTd"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What everybody who takes part must know. All of it is public; none of it may come from private records.

    The server owns the parameters from ``start`` to ``stop`` of ``parameters``. ``bound`` is γ of one participant's
    values, ``most`` how many an upload has at most, ``pool`` how many participants a masked sum has at least (0: there
    are none), ``mean`` and ``std`` what inputs are normalised by, channel by channel, ``image`` the channels, height
    and width of everybody's images (empty: whatever the network takes).
    """

    collaboration: str
    model: str
    layout: str
    parameters: int
    start: int
    stop: int
    bound: float
    upload: float
    protocol: Protocol
    pool: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("bound", "upload"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a finite number above 0.")
        if not 0 <= self.start < self.stop <= self.parameters < 2**32:
            raise ValueError(f"the slice {self.start}:{self.stop} is not one of {self.parameters} parameters.")
        if not f"{self.collaboration}{self.model}{self.layout}".isprintable():
            raise ValueError("the names in an agreement must be printable text.")
        if self.pool < 0 or self.pool == 1:
            raise ValueError(f"pool is {self.pool}; a sum hides somebody only among at least 2 participants.")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != len(self.std) or not self.mean or not finite or min(self.std) <= 0:
            raise ValueError("mean and std must have a finite number for each channel, and std above 0.")
        if self.image and (len(self.image) != 3 or min(self.image) < 1 or self.image[0] != len(self.mean)):
            raise ValueError(f"image is {self.image}; it must be channels, height and width, or empty.")
        object.__setattr__(self, "protocol", Protocol(self.protocol))

    @property
    def size(self) -> int:
        """Parameters that this server owns."""
        return self.stop - self.start

    @property
    def most(self) -> int:
        """Entries of an upload. Among all parameters, so that a slice may get them all."""
        return min(portion(self.upload, self.parameters), self.size)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Agreement:
        facts = _object(text)
        wanted = {field.name for field in fields(cls)}
        if set(facts) != wanted:
            raise ValueError(f"an agreement has {', '.join(sorted(wanted))}; this has {', '.join(sorted(facts))}.")
        kinds: dict[str, Any] = {"parameters": int, "start": int, "stop": int, "pool": int, "bound": float}
        kinds |= {"upload": float, "mean": _numbers, "std": _numbers, "image": _sizes}
        try:
            return cls(**{name: kinds.get(name, str)(value) for name, value in facts.items()})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"the agreement is malformed: {error}.") from error


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("the message is not JSON.") from error
    if not isinstance(facts, dict):
        raise ValueError("the message is not a JSON object.")
    return facts


# -- arrays ----------------------------------------------------------------------------------------------------------


def pack_upload(sequence: int, indices: Positions, values: Vector, *, size: int) -> bytes:
    """An upload to a server that owns ``size`` parameters; indices in rising order."""
    return _pack(_UPLOAD, sequence, None if indices.size == size else indices, values)


def unpack_upload(data: bytes, *, size: int) -> tuple[int, Positions, Vector]:
    """The sequence number, positions and values; what they are worth is for the server to check."""
    sequence, indices, values = _unpack(_UPLOAD, data, size)
    return sequence, everything(size) if indices is None else indices, values


def pack_download(download: Download) -> bytes:
    return _pack(_DOWNLOAD, 0, download.indices, download.values)


def unpack_download(data: bytes, *, size: int) -> Download:
    """What a server sent, which is not trusted either: positions in range and rising, all values finite."""
    _, indices, values = _unpack(_DOWNLOAD, data, size)
    if indices is not None and indices.size and (indices[-1] >= size or bool((indices[1:] <= indices[:-1]).any())):
        raise _malformed("positions are not in rising order below the number of parameters.")
    if not np.isfinite(values).all():
        raise _malformed("a value is not finite.")
    return Download(indices=indices, values=values)


def _pack(magic: bytes, number: int, indices: Positions | None, values: Vector) -> bytes:
    head = _ARRAYS.pack(magic, FORMAT, indices is None, 0, number, values.size)
    places = b"" if indices is None else indices.astype("<u4").tobytes()
    return head + places + values.astype("<f4", copy=False).tobytes()


def _unpack(magic: bytes, data: bytes, size: int) -> tuple[int, Positions | None, Vector]:
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
    return number, np.frombuffer(data, dtype="<u4", count=count, offset=_ARRAYS.size).astype(np.int64), values


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


def split_token(data: bytes) -> tuple[int, bytes]:
    """The lease that a message was sent under, and the rest of it."""
    if len(data) < _TOKEN.size:
        raise _malformed(f"it has {len(data)} bytes; a lease alone has {_TOKEN.size}.")
    return _TOKEN.unpack_from(data)[0], data[_TOKEN.size :]


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
    """What a participant says about its budget: for people to read, never to be relied on."""
    if len(data) > LONGEST_STATEMENT:
        raise Refused(Reason.TOO_MANY, f"the statement has {len(data)} bytes; at most {LONGEST_STATEMENT} are kept.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _malformed("a statement is text in UTF-8.") from None
    return "".join(character if character.isprintable() else " " for character in text)
