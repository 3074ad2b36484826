"""The agreement of a collaboration: what every participant must have in common before the first upload."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from tacit.collaboration.architecture import NONE, Architecture, Constant, from_json
from tacit.collaboration.exchange import Protocol
from tacit.collaboration.messages import portion

_MECHANISMS = ("", "plain", "dp-sgd", "gaussian", "sparse-vector")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The agreement of all participants. All of it is public; none of it may come from private records.

    The server owns the parameters from ``start`` to ``stop`` of ``parameters``. ``layout`` is the digest of their names
    and shapes, ``architecture`` what the whole network looks like (empty: the paper's networks, which their name says).
    ``bound`` is γ of one participant's values, ``most`` how many an upload has at most, ``pool`` how many participants
    a masked sum has at least (0: there are none), ``mean`` and ``std`` what images are normalised by, channel by
    channel, ``shape`` that of one record's input (empty: whatever the network takes), ``schema`` the declared columns
    of everybody's table in JSON (empty: no tables).

    ``mechanism``, ``epsilon`` and ``delta`` are what participants have promised each other: every one's uploads are
    protected by this mechanism ("": by any), and cost at most this ε at this δ (0: each decides alone).
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
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    schema: str = ""
    mechanism: str = ""
    epsilon: float = 0.0
    delta: float = 0.0
    architecture: Architecture = NONE

    def __post_init__(self) -> None:
        for name in ("bound", "upload"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a finite number above 0.")
        if not 0 <= self.start < self.stop <= self.parameters < 2**32:
            raise ValueError(f"the slice {self.start}:{self.stop} is not one of {self.parameters} parameters.")
        if not f"{self.collaboration}{self.model}{self.layout}{self.schema}".isprintable():
            raise ValueError("the names in an agreement must be printable text.")
        if self.pool < 0 or self.pool == 1:
            raise ValueError(f"pool is {self.pool}; a sum hides a participant only among at least 2.")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != len(self.std) or not finite or min(self.std, default=1.0) <= 0:
            raise ValueError("mean and std must have a finite number for each channel, and std above 0.")
        if self.shape and min(self.shape) < 1:
            raise ValueError(f"shape is {self.shape}; its numbers must be at least 1.")
        if self.mean and self.shape and (len(self.shape) != 3 or self.shape[0] != len(self.mean)):
            raise ValueError(f"shape is {self.shape}; images have channels, height and width.")
        if self.mechanism not in _MECHANISMS:
            raise ValueError(f"mechanism is {self.mechanism[:40]!r}; choose {', '.join(_MECHANISMS[1:])}.")
        if not 0 <= self.epsilon < math.inf or not 0 <= self.delta < 1:
            raise ValueError(f"epsilon is {self.epsilon} and delta {self.delta}; they must be at least 0 and finite.")
        object.__setattr__(self, "protocol", Protocol(self.protocol))

    @property
    def own_network(self) -> bool:
        """Return True if the network is the participants' own, not one of the paper's."""
        return bool(self.architecture.lines)

    @property
    def size(self) -> int:
        """Return how many parameters this server owns."""
        return self.stop - self.start

    @property
    def most(self) -> int:
        """Return how many entries an upload may have: of all parameters, so that a slice may get them all."""
        return min(portion(self.upload, self.parameters), self.size)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Agreement:
        facts = _object(text)
        wanted = {field.name for field in fields(cls)}
        if set(facts) != wanted:
            raise ValueError(f"an agreement has {', '.join(sorted(wanted))}; this has {', '.join(sorted(facts))}.")
        try:
            return cls(**{name: _KINDS.get(name, str)(value) for name, value in facts.items()})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"the agreement is malformed: {error}.") from error


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _architecture(facts: Any) -> Architecture:
    if not isinstance(facts, dict) or set(facts) != {"lines", "constants"}:
        raise ValueError("an architecture has lines and constants.")
    names = [field.name for field in fields(Constant)]
    return from_json(facts["lines"], [[constant[name] for name in names] for constant in facts["constants"]])


_KINDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("parameters", "start", "stop", "pool"), int),
    **dict.fromkeys(("bound", "upload", "epsilon", "delta"), float),
    **dict.fromkeys(("mean", "std"), _numbers),
    "shape": _sizes,
    "architecture": _architecture,
}


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("the message is not JSON.") from error
    if not isinstance(facts, dict):
        raise ValueError("the message is not a JSON object.")
    return facts
