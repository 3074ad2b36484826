"""The likelihood-ratio attack on a finished run of images: its training images against the test images."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.audit.lira import Mask, attack, log_odds
from tacit.audit.membership import Membership
from tacit.audit.setting import Track
from tacit.data import Images, load
from tacit.features.cache import cached
from tacit.ledger import Budget, Header, Ledger
from tacit.randomness import Floats, SecureSource, SeededSource
from tacit.recipes.averaging import Average
from tacit.recipes.job import BATCH, Job
from tacit.recipes.outcome import read_json
from tacit.recipes.recipe import Recipe
from tacit.recipes.trained import Trained, recipe_of


def attack_images(
    out: str | Path,
    *,
    shadows: int = 8,
    confidence: float = 0.99,
    seed: int | None = None,
    track: Track = iter,
    images: Images | None = None,
) -> tuple[Membership, Membership]:
    """Attack the run in ``out``, online and offline: its training images are the members, the test images the others.

    Each shadow is trained by the run's own recipe, at its sampling rate and noise, on a random half of all images, on
    the front end that the run released. ``images`` are the run's; without them they are loaded by name. The features
    are in a temporary directory while the attack lasts.
    """
    place = Path(out)
    facts = read_json(place / "run.json")
    if not facts.get("finished"):
        raise ValueError(f"the run in {place} is not finished; there is no model to attack.")
    images = load(str(facts["dataset"]["name"])) if images is None else images
    if facts["dataset"]["fingerprint"] != images.fingerprint:
        raise ValueError(f"the images found for {images.name!r} are not those that {place} was trained on.")
    trained, recipe = Trained.load(place), recipe_of(facts["recipe"])
    budget = Budget(epsilon=facts["budget"]["epsilon"], delta=facts["budget"]["delta"])
    pool = torch.cat([images.train, images.test])
    labels = torch.cat([images.train_labels, images.test_labels])
    member = np.arange(len(pool)) < len(images.train)
    with tempfile.TemporaryDirectory(prefix="tacit-audit-") as folder:
        rows = cached(pool, trained.front, folder, configuration=repr(recipe.front))

        seeds = repeat(None) if seed is None else count(seed + 1)  # one for each shadow

        def train(mask: Mask) -> Floats:
            chosen = torch.from_numpy(np.flatnonzero(mask))
            part = replace(images, train=pool[chosen], train_labels=labels[chosen])
            model = _shadow(
                recipe, part, rows[chosen], budget, str(facts["accountant"]), next(seeds), len(images.train)
            )
            return _pool_odds(model, rows, labels)

        return attack(
            _pool_odds(trained.model, rows, labels),
            member,
            train,
            shadows=shadows,
            source=SecureSource() if seed is None else SeededSource(seed),
            delta=budget.delta,
            confidence=confidence,
            track=track,
        )


def _shadow(
    recipe: Recipe, images: Images, rows: Tensor, budget: Budget, accountant: str, seed: int | None, records: int
) -> nn.Module:
    """A model trained by the recipe on ``rows``, at the sampling rate of the run on ``records``, without metrics."""
    lot_size = max(1, min(len(rows), round(recipe.lot_size * len(rows) / records)))
    recipe = replace(recipe, lot_size=lot_size, loss_bound=None, norms=None)
    job = Job(recipe, images, budget=budget, seed=seed, accountant=accountant)
    run = job.private(rows, Ledger(Header(secure_randomness=seed is None, purpose="a shadow model")))
    average = Average(recipe.averaging, run.model, job.plan.steps)
    optimizer, passes = run.optimizer, recipe.lot_size / job.records
    try:
        for x, y in run.batches():
            before = run.step
            optimizer.param_groups[0]["lr"] = recipe.optimizer.at(before * passes)
            torch.autograd.backward(F.cross_entropy(run.model(x.float()), y))
            optimizer.step()
            optimizer.zero_grad()
            if run.step > before:
                average.add(run.step)
    finally:
        run.close()
    return job.trained(average)


@torch.no_grad()
def _pool_odds(model: nn.Module, rows: Tensor, labels: Tensor) -> Floats:
    pieces = zip(torch.split(rows, BATCH), torch.split(labels, BATCH), strict=True)
    return np.concatenate([log_odds(model(x.float()), y) for x, y in pieces])
