"""Advice before training, from shapes and public numbers: warn about settings that are allowed but rarely work."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from tacit.accounting.advice import budget_advice
from tacit.ledger import GaussianSum
from tacit.mechanisms.strategy_fits import prefix_sum_error
from tacit.sampling import UserSampler
from tacit.training.arithmetic import missing_kernels

if TYPE_CHECKING:
    from tacit.training.run import PrivateRun

log = logging.getLogger("tacit")

MOST_NOISE = 20.0
"""The engine warns if the norm of a step's noise is above this many clip norms."""

CLIP_NORMS = 1e-3, 100.0
"""Outside these clip norms nearly every gradient, or none, is clipped, for losses of ordinary size."""


def advise(run: PrivateRun, dataset: Any) -> None:
    """Log a warning for each setting that is likely to be a mistake, without a look at the records."""
    advice = noise_advice(run)
    if not isinstance(run.sampler, UserSampler):
        advice += data_advice(dataset)
    if run.budget is not None:
        records = run.sampler.records
        advice += budget_advice(epsilon=run.budget.epsilon, delta=run.budget.delta, records=records)
    missing = missing_kernels(run.model)
    if missing is not None:
        advice.append(f"{missing}.")
    for sentence in advice:
        log.warning("%s", sentence)


def data_advice(dataset: Any) -> list[str]:
    """Return a sentence if a `Subset` or a `ConcatDataset` lists a record twice, which halves its protection."""
    places = _places(dataset)
    if places is None:
        return []
    if len(np.unique(places, axis=0)) == len(places):
        return []
    # The sentence gives no number, because labels may have decided which records are repeated.
    return [
        "the data set lists some records more than once; the guarantee is for one entry, so a record with k entries "
        "has k times the epsilon and a larger delta. Leave the repetitions out, or give the number of each entry's "
        "record as users=."
    ]


def _places(dataset: Any) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return for each entry its data set and its place there, or None if they are not known."""
    if isinstance(dataset, Subset):
        below, indices = _places(dataset.dataset), np.asarray(dataset.indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            return None
        if below is not None:
            return np.asarray(below[indices])
        indices = np.where(indices < 0, indices + _length(dataset.dataset), indices)
        return np.stack([np.full(len(indices), id(dataset.dataset)), indices], axis=1).astype(np.int64)
    if isinstance(dataset, ConcatDataset):
        parts = []
        for part in dataset.datasets:
            found = _places(part)
            if found is None:
                length = _length(part)
                found = np.stack([np.full(length, id(part)), np.arange(length)], axis=1).astype(np.int64)
            parts.append(found)
        return np.concatenate(parts)
    return None


def _length(dataset: Any) -> int:
    return len(dataset)


def noise_advice(run: PrivateRun) -> list[str]:
    """Return a sentence for each clip norm or noise that hides the gradient; adaptive clip norms have none."""
    step, clipping = run.next_step(), run.clipping()
    queries = {query.group: query for query in step.queries if isinstance(query, GaussianSum)}
    found = []
    for group in clipping.groups:
        if group.stability is None and not CLIP_NORMS[0] <= group.clip_norm <= CLIP_NORMS[1]:
            few, many = (
                "hardly any gradient is shortened to it, and the noise grows with it",
                "nearly every gradient is shortened to it, and the learning rate must make up for that",
            )
            found.append(
                f"the clip norm of {group.name} is {group.clip_norm:g}; "
                f"{many if group.clip_norm < CLIP_NORMS[0] else few}. Begin with 1.0, or use "
                "tacit.tuning.median_gradient_norm."
            )
            break
    steps = run.settings.steps
    noise = math.sqrt(sum(_lasting(queries[group.name], steps) ** 2 * group.dimension for group in clipping.groups))
    bound = math.sqrt(sum(group.sensitivity**2 for group in clipping.groups))
    size = run.settings.lot_size(0)
    ratio = noise / (bound * size)
    if ratio > MOST_NOISE:
        trained = sum(group.dimension for group in clipping.groups)
        found.append(
            f"the noise of a step is {ratio:.0f} times as long as the longest gradient that a lot of {size} can have, "
            f"because {trained} parameters are trained: the model will hardly learn. Choose lots of "
            f"{_upwards(4 * size * ratio / MOST_NOISE)} records or more, or train fewer parameters (a new head on a "
            "frozen model, LoRA)."
        )
    return found


def _lasting(query: GaussianSum, steps: int) -> float:
    """Return the deviation of independent noise that does the same harm; correlated noise is taken back later."""
    if query.noise != "correlated":
        return query.noise_std
    error = prefix_sum_error((str(query.strategy), query.parameters or ()), steps)
    return query.noise_std * error / math.sqrt((steps + 1) / 2)


def _upwards(value: float) -> int:
    """Return the value rounded up to one digit."""
    scale = 10 ** max(0, math.floor(math.log10(value)))
    return int(math.ceil(value / scale) * scale)


def tell_first_step(run: PrivateRun) -> None:
    """Log the first step before it is charged. An impossible first step fails here."""
    first = run.next_step()
    log.info(
        "private run: %d steps, noise multiplier %.4g of a whole step; %s",
        run.settings.steps,
        first.noise_multiplier,
        ", ".join(
            f"{query.group}: clip norm {query.clip_norm:.4g}, noise {query.noise_std:.4g}"
            for query in first.queries
            if isinstance(query, GaussianSum)
        ),
    )
