"""The settings of a finished run, to attack its mechanism on the training path."""

from __future__ import annotations

import math

from tacit.audit.setting import Setting
from tacit.ledger import Everyone, GaussianSum, Ledger, Poisson, Step
from tacit.mechanisms import Flat


def setting_of(ledger: Ledger, *, canaries: int, delta: float, confidence: float = 0.99) -> Setting:
    """Return the settings with which the steps of a ledger's training are repeated, on ``canaries`` places.

    Training is the longest series of equal steps with Gaussian sums of gradients. Its groups become one, with the noise
    multiplier (Σ (S_g/σ_g)²)^(-1/2) that they have together; the sampling rate is the ledger's, to the nearest place.
    Metrics and statistics, which the run released besides, are not repeated: the audit's claim is that of training.
    """
    series = [(step, count) for step, count in ledger.entries if _gradients(step)]
    if not series:
        raise ValueError("the ledger has no Gaussian sums of gradients; only such training can be repeated.")
    step, count = max(series, key=lambda pair: pair[1])
    if isinstance(step.sampling, Poisson):
        rate = step.sampling.rate
    elif isinstance(step.sampling, Everyone):
        rate = 1.0
    else:
        raise ValueError(
            f"the ledger's lots are drawn by {type(step.sampling).__name__}; the audit repeats Poisson lots and lots "
            "of everyone."
        )
    multiplier = math.hypot(*(query.clip_norm / query.noise_std for query in _gradients(step))) ** -1
    return Setting(
        records=canaries,
        lot_size=max(1, round(rate * canaries)),
        steps=count,
        noise_multiplier=multiplier,
        delta=delta,
        clipping=Flat(1.0),
        confidence=confidence,
    )


def _gradients(step: Step) -> list[GaussianSum]:
    queries = [query for query in step.queries if isinstance(query, GaussianSum)]
    return [query for query in queries if query.group.split("/")[0] == "gradients" and query.noise_std > 0]
