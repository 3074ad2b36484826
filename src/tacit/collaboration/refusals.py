"""Why a message is refused, with a reason that a transport has a status code for."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a message was refused; for a transport that has a status code for each."""

    UNKNOWN = "unknown participant"
    REVOKED = "revoked participant"
    REPLAYED = "replayed sequence number"
    REORDERED = "sequence number out of order"
    SHAPE = "wrong shape"
    TYPE = "wrong type"
    TOO_MANY = "too many entries"
    RANGE = "index out of range"
    DUPLICATE = "duplicated index"
    NOT_FINITE = "value not finite"
    BOUND = "value beyond the bound"
    OVERFLOW = "sum not finite"
    MALFORMED = "malformed message"
    LEASE = "lease expired"
    WAIT = "another participant's turn"
    ROUND = "round is over"
    ALONE = "too few are left"
    UNAVAILABLE = "storage failed"


class Refused(ValueError):
    """A message that was not acted upon. The server is as it was before."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
