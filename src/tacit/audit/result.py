"""The result of an audit beside the claim."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tacit.accounting import Guarantee


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Lower bounds on ε from an attack, beside the claim that the run's own ledger makes.

    ``epsilon`` holds with probability ``confidence`` whatever the mechanism is. ``epsilon_gaussian`` also assumes that
    the releases have the recorded form (sampled Gaussian sums) with noise of unknown size; without millions of runs
    there is no other way to see as far into the tail as δ = 1e-5. ``epsilon_independent`` assumes of many canaries in
    one run that, as recorded, the noise at each of their parameters is independent of the others. Either is None where
    the attack gives none. Any of the three above the claim refutes what the ledger says: the second refutes the curve
    ε(δ) that the accountant claims (see `tacit.audit.curve`), the third that curve or the independence of the noise.
    """

    attack: str
    claim: Guarantee
    epsilon: float
    epsilon_gaussian: float | None = None
    epsilon_independent: float | None = None
    confidence: float
    details: str

    @property
    def violated(self) -> bool:
        """True if a lower bound is above the claim.

        Each bound holds with ``confidence`` by itself, so a sound mechanism gives a false alarm with probability at
        most 1 - ``confidence`` for each bound: 3 % for three at 99 %. Repeat an audit that says so before acting on it.
        """
        return self.largest > self.claim.epsilon

    @property
    def largest(self) -> float:
        """The largest of the lower bounds."""
        return max(self.epsilon, self.epsilon_gaussian or 0.0, self.epsilon_independent or 0.0)

    @property
    def tightness(self) -> float:
        """The largest lower bound as a part of the claim."""
        return self.largest / self.claim.epsilon

    def facts(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return {
            "attack": self.attack,
            "epsilon_claimed": self.claim.epsilon,
            "epsilon_audited": self.epsilon,
            "epsilon_audited_gaussian": self.epsilon_gaussian,
            "epsilon_audited_independent": self.epsilon_independent,
            "delta": self.claim.delta,
            "confidence": self.confidence,
            "violated": self.violated,
            "details": self.details,
        }

    def __str__(self) -> str:
        def down(value: float) -> str:
            return f"{math.floor(value * 1000) / 1000:.3f}"

        lines = [
            f"{self.attack}: {self.details}",
            f"  claimed  {self.claim}",
            f"  audited  ε ≥ {down(self.epsilon)} (lower bound, {self.confidence:.2%} confidence, no assumption)",
        ]
        if self.epsilon_gaussian is not None:
            lines.append(f"  audited  ε ≥ {down(self.epsilon_gaussian)} (the same, assuming Gaussian noise)")
        if self.epsilon_independent is not None:
            lines.append(f"  audited  ε ≥ {down(self.epsilon_independent)} (assuming Gaussian noise, independent)")
        if self.violated:
            bounds = 1 + (self.epsilon_gaussian is not None) + (self.epsilon_independent is not None)
            alarm = bounds * (1 - self.confidence)
            lines.append(
                "  VIOLATED: the attack does better than the claim allows. Do not rely on this claim. (A false alarm "
                f"has probability at most {alarm:.2%}; repeat the audit to be sure.)"
            )
        else:
            lines.append(f"  the claim stands; the attack reaches {self.tightness:.0%} of it")
        return "\n".join(lines)
