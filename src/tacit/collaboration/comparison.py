"""The paper's mechanism and better ones, side by side at the same honest ε."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tacit.collaboration.privacy import GaussianPrivacy, LocalDpSgd, Privacy, SparseVectorPrivacy
from tacit.collaboration.problem import Problem
from tacit.collaboration.settings import Settings
from tacit.collaboration.simulation import Progress, simulate

CLIP_NORM = 0.2
"""The usual L2 norm of a local epoch's change of all parameters, as `calibrate` found it on digits (α = 0.05)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mechanism at one ε of a participant's whole training: what it protects and how well it learns."""

    mechanism: str
    epsilon: float
    delta: float
    unit: str
    test_accuracy: float


def mechanism(
    name: str,
    *,
    epsilon: float,
    settings: Settings,
    clip_norm: float | None = None,
    normalisation: float | None = None,
) -> Privacy:
    """``"sparse-vector"``, ``"gaussian"`` or ``"dp-sgd"``, so that the whole training costs ``epsilon``.

    ``normalisation`` is for DP-SGD alone: what protects a whole data set would drown its mean in noise.
    """
    if normalisation is not None and name != "dp-sgd":
        raise ValueError(f"private normalisation protects examples, as dp-sgd does; mechanism is {name!r}.")
    if name == "sparse-vector":
        if clip_norm is not None:
            raise ValueError("clip_norm is for gaussian and dp-sgd; sparse-vector bounds each value, by bound.")
        return SparseVectorPrivacy.whole(epsilon, epochs=settings.epochs)
    if name == "gaussian":
        norm = clip_norm if clip_norm is not None else CLIP_NORM * settings.upload**0.5
        return GaussianPrivacy(epsilon=epsilon, delta=settings.delta, clip_norm=norm)
    if name == "dp-sgd":
        return LocalDpSgd(
            epsilon=epsilon,
            delta=settings.delta,
            clip_norm=1.0 if clip_norm is None else clip_norm,
            normalisation=normalisation,
        )
    raise ValueError(f"mechanism is {name!r}; choose sparse-vector, gaussian or dp-sgd.")


def compare(
    problem: Problem,
    settings: Settings,
    epsilons: Sequence[float],
    *,
    mechanisms: Sequence[str] = ("sparse-vector", "gaussian", "dp-sgd"),
    progress: Callable[[Progress], None] | None = None,
) -> list[Row]:
    """Train once with each mechanism at each ε. All is as in ``settings`` but for the privacy."""
    rows = []
    for name in mechanisms:
        for epsilon in epsilons:
            wanted = replace(settings, privacy=mechanism(name, epsilon=epsilon, settings=settings))
            found = simulate(problem, wanted, baselines=False, progress=progress)
            assert found.claim is not None
            whole = found.claim.whole
            rows.append(
                Row(
                    mechanism=name,
                    epsilon=whole.epsilon,
                    delta=whole.delta,
                    unit=whole.unit,
                    test_accuracy=found.test_accuracy,
                )
            )
    return rows
