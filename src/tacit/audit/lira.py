"""The likelihood-ratio attack on membership (LiRA: Carlini, Chien, Nasr, Song, Terzis & Tramèr 2022).

Shadow models are trained as the target was, each on a random half of a pool of records. The confidence φ of a model in
a record's label, as log odds, is about normal. *Online*: a record's score is the log likelihood ratio of the target's φ
under the shadows that had it and under those that had not. *Offline*: only the shadows without it are asked, and the
score is how far the target's φ lies above theirs, in standard deviations; shadows may then be trained before anyone
knows whom to accuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm
from torch import Tensor

from tacit.audit.membership import Membership, measure
from tacit.audit.setting import Track, check_count
from tacit.randomness import Floats, Source

Mask: TypeAlias = npt.NDArray[np.bool_]
Shadow: TypeAlias = Callable[[Mask], Floats]
"""Trains a model on the records of the pool that the mask picks, and returns its log odds for the whole pool."""

_OWN_VARIANCE = 32
"""With at least so many shadows each record has its own variances; with fewer all share one (Carlini et al.,
VI-C)."""
_LEAST_SPREAD = 1e-6


def log_odds(scores: Tensor, labels: Tensor) -> Floats:
    """Return log(p / (1 - p)) of each record's label, from a model's scores before the softmax."""
    chances = torch.log_softmax(scores.double(), dim=1)
    own = chances.gather(1, labels[:, None])
    rest = chances.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1)
    return np.asarray((own[:, 0] - rest).numpy())


def likelihood_ratios(observed: Floats, shadows: Floats, inside: Mask, *, online: bool) -> Floats:
    """Return the attack's score of each record, from the target's log odds and those of the shadows (models, records).

    ``inside`` says which shadow was trained on which record. Every record needs two shadows that had it (online) and
    two that had not.
    """
    if shadows.shape != inside.shape or observed.shape != shadows.shape[1:]:
        raise ValueError(f"shadows have shape {shadows.shape}, masks {inside.shape} and the target {observed.shape}.")
    fewest = int(min((~inside).sum(axis=0).min(), inside.sum(axis=0).min() if online else len(shadows)))
    if fewest < 2:
        raise ValueError(f"a record is known to {fewest} shadow models on one side; train more of them.")
    own = len(shadows) >= _OWN_VARIANCE
    out_mean, out_std = _normal(shadows, ~inside, own=own)
    if not online:
        return np.asarray((observed - out_mean) / out_std)
    in_mean, in_std = _normal(shadows, inside, own=own)
    return np.asarray(norm.logpdf(observed, in_mean, in_std) - norm.logpdf(observed, out_mean, out_std))


def _normal(values: Floats, chosen: Mask, *, own: bool) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each record over the chosen models; one deviation for all unless ``own``."""
    counts = chosen.sum(axis=0)
    mean = np.where(chosen, values, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (values - mean) ** 2, 0.0).sum(axis=0)
    variance = squares / (counts - 1) if own else np.full(mean.shape, squares.sum() / (counts - 1).sum())
    return mean, np.sqrt(variance).clip(min=_LEAST_SPREAD)


def halves(shadows: int, records: int, source: Source) -> Mask:
    """Return for each shadow a half of the pool; every record is in half of the shadows."""
    check_count("shadows", shadows, 4, 10_000)
    order = np.argsort(source.uniform(shadows * records).reshape(shadows, records), axis=0)
    return order < shadows // 2


def attack(
    observed: Floats,
    member: Mask,
    train: Shadow,
    *,
    shadows: int,
    source: Source,
    delta: float,
    confidence: float = 0.99,
    track: Track = iter,
) -> tuple[Membership, Membership]:
    """Train shadow models on halves of the pool and return the online and the offline attack on the target.

    ``observed`` are the target's log odds for the pool, ``member`` says who was in its training.
    """
    masks = halves(shadows, observed.size, source)
    scores = np.stack([train(masks[number]) for number in track(range(shadows))])
    found = []
    for online in (True, False):
        ratios = likelihood_ratios(observed, scores, masks, online=online)
        found.append(
            measure(
                ratios[member],
                ratios[~member],
                attack=f"LiRA, {'online' if online else 'offline'}",
                details=f"{shadows} shadow models, {int(member.sum())} members, {int((~member).sum())} others",
                delta=delta,
                confidence=confidence,
            )
        )
    return found[0], found[1]
