"""Settings of a collaboration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.collaboration.exchange import Protocol
from tacit.collaboration.messages import check_fraction
from tacit.collaboration.privacy import LocalDpSgd, Privacy
from tacit.collaboration.selection import AboveThreshold, AtRandom, Largest, Selection


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A simulation. ``upload`` and ``download`` are θ_u and θ_d, ``bound`` is γ and ``threshold`` is τ.

    Each participant holds the fraction ``share`` of the training set. ``selection`` is ``"largest"``, ``"threshold"``
    or ``"random"``; uploads by sparse vector or Gaussian noise make their own. γ and τ must not come from the
    participants' records: `calibrate` finds them on public ones, for one network, learning rate and θ_u. The defaults
    are for any of them and so fit none: γ cuts off only what has gone astray, and τ is that of the paper. The fewer are
    uploaded, the larger a τ is found, up to 200 times as large. With a ``seed`` everything is repeatable, and noise
    gives no protection.
    """

    participants: int = 30
    epochs: int = 15
    upload: float = 0.1
    download: float = 1.0
    protocol: Protocol = Protocol.ROUND_ROBIN
    selection: str = "largest"
    share: float = 0.01
    learning_rate: float = 0.02
    batch_size: int = 32
    bound: float | None = None
    threshold: float = 0.0001
    privacy: Privacy | None = None
    delta: float = 1e-5
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("participants", "epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        for name in ("upload", "download", "share"):
            check_fraction(name, getattr(self, name))
        for name in ("learning_rate", "limit", "threshold"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name.replace('limit', 'bound')} is {getattr(self, name)!r}; it must be above 0.")
        if self.protocol not in tuple(Protocol):
            raise ValueError(f"protocol is {self.protocol!r}; choose {', '.join(Protocol)}.")
        object.__setattr__(self, "protocol", Protocol(self.protocol))
        self.rule()

    @property
    def limit(self) -> float:
        """γ. Changes of DP-SGD have noise in them already and need more room; their bound is no part of any proof."""
        if self.bound is not None:
            return self.bound
        return 1.0 if isinstance(self.privacy, LocalDpSgd) else 0.01

    def rule(self) -> Selection:
        """How changes are selected where the privacy mechanism leaves a choice."""
        if self.selection == "largest":
            return Largest(fraction=self.upload)
        if self.selection == "threshold":
            return AboveThreshold(fraction=self.upload, threshold=self.threshold)
        if self.selection == "random":
            return AtRandom(fraction=self.upload)
        raise ValueError(f"selection is {self.selection!r}; choose largest, threshold or random.")
