"""The terms of private averaging, on which the server and the participants agree before anything is sent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import nn

from tacit.collaboration.architecture import Architecture, from_json
from tacit.collaboration.averaging import Averaging, check_people


@dataclass(frozen=True, kw_only=True)
class AveragingTerms:
    """The network, and how much a participant is protected, and by whose noise; `pack` is what the server sends.

    A participant that adds noise itself takes its amount from here, so the reader refuses
    terms without a proof: a server that counts fewer than no participants as colluding would have all add too little.
    """

    lines: tuple[str, ...]
    constants: tuple[tuple[str, float, float], ...]
    parameters: int
    clip_norm: float
    rounds: int
    population: int
    lot_size: int
    noise_multiplier: float
    noise_by: str
    least: int
    colluding: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("parameters", "rounds", "population", "lot_size", "least", "colluding"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < (name != "colluding"):
                raise ValueError(f"{name} is {value!r}")
        for name in ("clip_norm", "noise_multiplier", "epsilon", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value!r}")
        if self.noise_by not in ("server", "participants"):
            raise ValueError(f"noise_by is {self.noise_by!r}")
        if self.shared:
            check_people(self.population, least=self.least, colluding=self.colluding)

    @classmethod
    def of(cls, own: Averaging, network: nn.Module, parameters: int) -> Self:
        """Return the terms of this averaging of this network."""
        architecture = Architecture.of(network)
        return cls(
            lines=tuple(architecture.lines),
            constants=tuple((constant.name, constant.size, constant.projection) for constant in architecture.constants),
            parameters=parameters,
            clip_norm=own.clip_norm,
            rounds=own.rounds,
            population=own.population,
            lot_size=own.lot_size,
            noise_multiplier=own.noise,
            noise_by=own.noise_by,
            least=own.least,
            colluding=own.colluding,
            epsilon=own.budget.epsilon,
            delta=own.budget.delta,
        )

    @property
    def shared(self) -> bool:
        """Return whether the participants add the noise, under masks."""
        return self.noise_by == "participants"

    def pack(self) -> bytes:
        return json.dumps(asdict(self), allow_nan=False).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the terms that a server sent; refuse others than `pack` makes."""
        try:
            facts: dict[str, Any] = json.loads(data)
            return cls(**facts)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"the server's terms are not those of private averaging ({error}); nothing was sent. Does it run "
                "`tacit collaborate average`, of this version?"
            ) from None

    def difference(self, network: nn.Module) -> str | None:
        """Return the first difference between the network here and the server's, if there is one."""
        return Architecture.of(network).difference(from_json(list(self.lines), [list(c) for c in self.constants]))
