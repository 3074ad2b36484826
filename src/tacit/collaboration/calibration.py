"""γ and τ from public data. They shape what everybody uploads, so private records must have no say in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tacit.collaboration.messages import Vector
from tacit.collaboration.problem import Problem
from tacit.collaboration.settings import Settings
from tacit.collaboration.simulation import simulate

_BOUNDS = (0.9, 0.99, 0.999)  # γ is tried at these quantiles of the changes
_THRESHOLDS = (0.5, 1, 2)  # τ is tried where so many times the upload are above it, but not above γ
_UNBOUNDED = 1e6
CLOSE = 0.005
"""The share of the best accuracy that a bound must reach; the smallest such bound is taken: it needs least noise."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting and the accuracy it reached on the public test set."""

    bound: float
    threshold: float | None
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """``bound`` γ, ``threshold`` τ, and ``clip_norm``: the usual L2 norm of as much as is uploaded."""

    bound: float
    threshold: float
    clip_norm: float
    accuracy: float
    unbounded_accuracy: float
    trials: tuple[Trial, ...]


def calibrate(public: Problem, settings: Settings, *, records: int, close: float = CLOSE) -> Calibration:
    """Choose γ, then τ, by collaborations on public records that look like the private ones.

    ``settings`` are those of the collaboration to come; as many participants are simulated as the public records allow
    with ``records`` each (at least two). No privacy mechanism runs, because the records are public. γ is the smallest
    that comes within ``close`` of the best accuracy: noise grows with it, so that 0 is for uploads without noise.
    """
    if not 0 <= close <= 1:
        raise ValueError(f"close is {close!r}; it is a difference of accuracies, from 0 to 1.")
    each = max(min(records, len(public.inputs) // 2), 1)
    people = min(settings.participants, max(len(public.inputs) // each, 1))
    plain = replace(settings, participants=people, share=each / len(public.inputs), privacy=None)
    seen = _Seen()
    free = simulate(public, replace(plain, selection="largest", bound=_UNBOUNDED), baselines=False, watch=seen)
    trials: list[Trial] = []

    def attempt(bound: float, threshold: float | None) -> Trial:
        wanted = replace(plain, bound=bound, selection="largest")
        if threshold is not None:
            wanted = replace(wanted, selection="threshold", threshold=threshold)
        found = simulate(public, wanted, baselines=False)
        trials.append(Trial(bound=bound, threshold=threshold, accuracy=found.test_accuracy))
        return trials[-1]

    bounded = [attempt(seen.quantile(share), None) for share in _BOUNDS]
    best = max(trial.accuracy for trial in bounded)
    bound = min(trial.bound for trial in bounded if trial.accuracy >= best - close)
    shares = (max(1 - times * settings.upload, 0.0) for times in _THRESHOLDS)
    thresholds = sorted({min(seen.quantile(share), bound) for share in shares})
    picked = max((attempt(bound, threshold) for threshold in thresholds), key=lambda trial: trial.accuracy)
    assert picked.threshold is not None
    return Calibration(
        bound=bound,
        threshold=picked.threshold,
        clip_norm=seen.norm() * math.sqrt(settings.upload),
        accuracy=picked.accuracy,
        unbounded_accuracy=free.test_accuracy,
        trials=tuple(trials),
    )


class _Seen:
    """The sizes of changes: of each the quantiles at a thousand levels, so that memory does not grow with the model."""

    def __init__(self) -> None:
        self._levels = np.linspace(0.0, 1.0, 1001)
        self._quantiles: list[Vector] = []
        self._norms: list[float] = []

    def __call__(self, change: Vector) -> None:
        sizes = np.abs(change)
        moved = sizes[sizes > 0]
        if moved.size:
            self._quantiles.append(np.quantile(moved, self._levels).astype(np.float32))
            self._norms.append(float(np.linalg.norm(change)))

    def quantile(self, share: float) -> float:
        """Return the median over changes of their quantiles."""
        if not self._quantiles:
            raise ValueError("nothing changed in training; raise the learning rate or the number of epochs.")
        return float(np.interp(share, self._levels, np.median(np.stack(self._quantiles), axis=0)))

    def norm(self) -> float:
        return float(np.median(self._norms))
