"""Our messages as Flower's records: vectors in an ArrayRecord, all else in a ConfigRecord. Neither side is believed.

Vectors are NumPy's own format, which other Flower code can read. They are not read by ``numpy.load``: the header of a
message could ask it for more memory than there is. Only the one header that the length allows is accepted.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from tacit.collaboration.messages import Download, Vector
from tacit.collaboration.network import codec
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.refusals import Reason, Refused

INVITATION, DOWNLOAD, UPLOAD, ANSWER = "tacit.invitation", "tacit.download", "tacit.upload", "tacit.answer"
_INDICES, _VALUES = "indices", "values"
_LARGEST_SEQUENCE = 2**62


def invitation(agreement: Agreement, due: int, download: Download) -> RecordDict:
    """Return the message of a server: the agreement, the number of the upload that it expects next, and parameters."""
    facts = ConfigRecord({"agreement": agreement.to_json(), "due": due})
    return RecordDict({INVITATION: facts, DOWNLOAD: _arrays(download.indices, download.values)})


def read_invitation(content: RecordDict) -> tuple[Agreement, int, Download]:
    """Read a server's message without trust: a download has finite values at rising positions within the model."""
    facts = _config(content, INVITATION)
    agreement = Agreement.from_json(_text(facts, "agreement"))
    if (agreement.start, agreement.stop) != (0, agreement.parameters) or agreement.pool:
        raise _malformed("the agreement is about a slice or a pool; over Flower there is one server and neither.")
    indices, values = _sparse(content, DOWNLOAD, agreement.parameters)
    message = codec.pack_download(Download(indices=indices, values=values))
    return agreement, _sequence(facts, "due"), codec.unpack_download(message, size=agreement.parameters)


def upload(body: bytes, *, size: int, statement: str) -> RecordDict:
    """Return a participant's answer: exactly what is in ``body``, as indices and values."""
    sequence, indices, values = codec.unpack_upload(body, size=size)
    facts = ConfigRecord({"sequence": sequence, "statement": statement})
    return RecordDict({ANSWER: facts, UPLOAD: _arrays(indices, values)})


def finished(reason: str, *, statement: str) -> RecordDict:
    """Return a participant's answer when it takes part no longer."""
    return RecordDict({ANSWER: ConfigRecord({"finished": reason, "statement": statement})})


def read_finished(content: RecordDict) -> str | None:
    """Why a participant takes part no longer; None if it does."""
    facts = _config(content, ANSWER)
    return _text(facts, "finished") if "finished" in facts else None


def read_statement(content: RecordDict) -> bytes:
    """Read a participant's statement about its budget."""
    return _text(_config(content, ANSWER), "statement").encode()


def read_upload(content: RecordDict, agreement: Agreement) -> bytes:
    """Return the bytes that the participant has in its outbox, put together again; the server checks them."""
    sequence = _sequence(_config(content, ANSWER), "sequence")
    indices, values = _sparse(content, UPLOAD, agreement.most)
    if indices is None and values.size != agreement.size:
        raise Refused(Reason.SHAPE, f"there are {values.size} values for the whole; it has {agreement.size}.")
    return codec.pack_upload(sequence, indices, values, size=agreement.size)


def dense(name: str, values: Vector) -> RecordDict:
    """Return one vector."""
    return RecordDict({name: _arrays(None, values)})


def read_dense(content: RecordDict, name: str, *, size: int) -> Vector:
    """Return one vector of ``size`` values, which may be anything."""
    indices, values = _sparse(content, name, size)
    if indices is not None or values.size != size:
        raise Refused(Reason.SHAPE, f"there are {values.size} values; the model has {size} parameters.")
    return values


def send(grid: Grid, message: Message) -> str | None:
    """Return the number by which the reply will be known; None if Flower did not take the message."""
    taken = list(grid.push_messages([message]))
    return taken[0] or None if taken else None


def pull(grid: Grid, waiting: Iterable[str]) -> Iterator[tuple[str, Message | None]]:
    """Yield the replies that are there, one at a time, by the message they answer; None where what came is no message.

    A node can put together a reply that Flower cannot take apart; that must not cost other nodes their replies. A
    reply belongs to the message that it was asked for under, not to the one that it names.
    """
    for sent in waiting:
        try:
            replies = list(grid.pull_messages([sent]))
        except (LookupError, AttributeError, TypeError, ValueError, AssertionError, struct.error, DecodeError):
            yield sent, None
            continue
        if replies:
            yield sent, replies[0]


# -- the pieces ------------------------------------------------------------------------------------------------------


def _arrays(indices: npt.NDArray[np.integer[Any]] | None, values: Vector) -> ArrayRecord:
    arrays = {} if indices is None else {_INDICES: Array(np.ascontiguousarray(indices, dtype="<u4"))}
    return ArrayRecord({**arrays, _VALUES: Array(np.ascontiguousarray(values, dtype="<f4"))})


def _sparse(content: RecordDict, name: str, most: int) -> tuple[Any, Vector]:
    record = content.get(name)
    if not isinstance(record, ArrayRecord) or _VALUES not in record or not set(record) <= {_INDICES, _VALUES}:
        raise _malformed(f"it has no {name} with {_VALUES}, and {_INDICES} or nothing else.")
    indices = _vector(record[_INDICES], "<u4", most) if _INDICES in record else None
    values = _vector(record[_VALUES], "<f4", most).astype(np.float32)
    if indices is not None and indices.size != values.size:
        raise Refused(Reason.SHAPE, f"there are {indices.size} indices and {values.size} values; one for each.")
    return indices, values


def _vector(array: Array, dtype: str, most: int) -> npt.NDArray[Any]:
    start = len(_header(dtype, 0))
    count, rest = divmod(len(array.data) - start, 4)
    if count > most:
        raise Refused(Reason.TOO_MANY, f"there are {count} entries; at most {most} are taken.")
    if count < 0 or rest or array.data[:start] != _header(dtype, count):
        raise _malformed(f"an array is not a vector of {dtype} in NumPy's format.")
    return np.frombuffer(array.data, dtype=dtype, count=count, offset=start)


def _header(dtype: str, count: int) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": (count,)})
    return stream.getvalue()


def _config(content: RecordDict, name: str) -> ConfigRecord:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise _malformed(f"it has no {name}.")
    return record


def _text(record: ConfigRecord, name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise _malformed(f"{name} is not text.")
    return value


def _sequence(record: ConfigRecord, name: str) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST_SEQUENCE:
        raise _malformed(f"{name} is not the number of an upload.")
    return value


def _malformed(what: str) -> Refused:
    return Refused(Reason.MALFORMED, f"the message cannot be read: {what}")
