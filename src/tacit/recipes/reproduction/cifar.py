"""CIFAR-10 of Abadi et al. 2016, section 5.3 and Figure 6: convolutions from public data, the rest private."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from tacit.data import Images, load
from tacit.features.cache import cached
from tacit.ledger import Budget, Ledger
from tacit.randomness import SeededSource
from tacit.recipes.pretraining import pretrain
from tacit.recipes.public import Pretrained, cifar, public_images
from tacit.recipes.recipe import Recipe, Sgd
from tacit.recipes.reproduction.experiment import Comparison, Line, Panel, Result, Setting, Value, percent
from tacit.recipes.reproduction.measure import (
    Features,
    Trajectory,
    marks_mean,
    mean,
    not_private,
    plain,
    private,
    spent,
)
from tacit.recipes.schedule import schedule

DELTA = 1e-5
PAPER = {2.0: 67.0, 4.0: 70.0, 8.0: 73.0}
"""Test accuracy in per cent at each ε (Figure 6)."""
PAPER_BASELINE = 80.0
PAPER_SECONDS = (40.0, 180.0)
"""An epoch without and with privacy (section 5.3)."""
_EPOCHS = 12  # of the quick setting
_BASELINE_EPOCHS = {True: 10, False: 60}  # quick, full
_PUBLIC_EPOCHS = {True: 20, False: 80}
_REACH = {2.0: 36.0, 4.0: 60.0, 8.0: 75.0}
"""Learning rate times steps: the printed noise takes more and smaller steps than the quick setting's. Seen on
10,000 training images held out from the others, one seed: at ε = 2 after 5 epochs 57 % with 10 and 61 % with 30; at
ε = 8 56 % with 5, 59 % with 10, 61 % with 25, and after 12 epochs 64 % with 75. Those for 2 and 4 were not
tried."""
_SEED = 1  # of what is done once: pre-training and the baseline


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that was trained: the runs by ε, one for each seed, and ``free``, the baseline without privacy."""

    public: Images
    records: int
    recipes: Mapping[float, Recipe]
    runs: Mapping[float, Sequence[Trajectory]]
    free: Trajectory


def figure6(setting: Setting) -> Result:
    """Accuracy over epochs at three ε, the baseline of the same pipeline, and what privacy costs in time."""
    found = measured(setting)
    return Result(
        comparisons=_comparisons(found.runs, found.free),
        rows=_rows(setting, found),
        panels=[_panel(epsilon, runs, found.free) for epsilon, runs in found.runs.items()],
        notes=[*notes(setting, found), not_private(setting.seeds)],
    )


def measured(setting: Setting) -> Measured:
    """Pre-train, compute features once, train with and without privacy."""
    public, images = public_images(), load("cifar10", fetch=True)
    weights, digest = _weights(setting, public)
    recipes = {epsilon: _recipe(setting, epsilon, weights, digest, images) for epsilon in PAPER}

    @cache
    def features() -> Features:
        setting.tell("features of CIFAR-10", 0.25)
        fitted = recipes[2.0].front.fit(images.train, ledger=Ledger(), source=SeededSource(_SEED))
        train, test = (
            cached(part, fitted, setting.runs.directory, configuration=digest) for part in (images.train, images.test)
        )
        return train, test

    return Measured(
        public=public,
        records=len(images.train),
        recipes=recipes,
        free=_baseline(setting, images, features, weights, digest),
        runs={epsilon: _runs(setting, images, epsilon, recipe, features) for epsilon, recipe in recipes.items()},
    )


def _recipe(setting: Setting, epsilon: float, weights: Path, digest: str, images: Images) -> Recipe:
    """As printed; the quick one spends the same ε in few epochs, with less noise and so a larger learning rate."""
    recipe = cifar(epsilon, weights=weights, digest=digest)
    if setting.quick:
        recipe = replace(recipe, epochs=_EPOCHS, noise=None)
    model = recipe.model.build(recipe.front.features(tuple(images.train.shape[1:])), images.classes)
    budget = Budget(epsilon=epsilon, delta=DELTA)
    steps = schedule(recipe, model, records=len(images.train), budget=budget).steps
    return replace(recipe, optimizer=Sgd(learning_rate=_REACH[epsilon] / steps))


def _weights(setting: Setting, public: Images) -> tuple[Path, str]:
    """The file of public weights and its digest, made now if it is not there."""
    epochs = _PUBLIC_EPOCHS[setting.quick]
    path = setting.runs.directory / f"public-{public.name}-{epochs}.safetensors"
    if path.exists():
        return path, hashlib.sha256(path.read_bytes()).hexdigest()
    words = f"pre-training on {public.name}"
    return path, pretrain(public, path, epochs=epochs, seed=_SEED, watch=lambda done: setting.tell(words, 0.25 * done))


def _baseline(
    setting: Setting, images: Images, features: Callable[[], Features], weights: Path, digest: str
) -> Trajectory:
    """The same frozen convolutions, the same layers on top, trained without privacy in batches of 120."""
    epochs = _BASELINE_EPOCHS[setting.quick]
    optimizer = Sgd(learning_rate=0.01, final_learning_rate=0.0005, decay_epochs=epochs, momentum=0.9)

    def make() -> Trajectory:
        rows = features()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(_SEED)
            head = Pretrained(weights=str(weights), digest=digest, lengths=(10.0, 10.0, 10.0))
            model = head.build(tuple(rows[0].shape[1:]), images.classes)
        return plain(
            model,
            rows,
            images,
            batch=120,
            epochs=epochs,
            sgd=optimizer,
            seed=_SEED,
            points=epochs,
            watch=lambda done: setting.tell("CIFAR-10 without privacy", 0.3 + 0.1 * done),
        )

    what = {"kind": "baseline", "data": images.fingerprint, "digest": digest, "epochs": epochs, "sgd": optimizer}
    return setting.runs.get(what, make)


def _runs(
    setting: Setting, images: Images, epsilon: float, recipe: Recipe, features: Callable[[], Features]
) -> list[Trajectory]:
    place = 0.4 + 0.2 * list(PAPER).index(epsilon)

    def one(number: int, seed: int) -> Trajectory:
        return private(
            recipe,
            images,
            budget=Budget(epsilon=epsilon, delta=DELTA),
            seed=seed,
            runs=setting.runs,
            points=12 if setting.quick else 40,
            features=features,
            watch=lambda done: setting.tell(
                f"CIFAR-10, ε = {epsilon:g}", place + 0.2 * (number + done) / len(setting.seeds)
            ),
        )

    return [one(number, seed) for number, seed in enumerate(setting.seeds)]


def _rows(setting: Setting, found: Measured) -> list[dict[str, Value]]:
    rows: list[dict[str, Value]] = []
    for epsilon, runs in found.runs.items():
        recipe = found.recipes[epsilon]
        for seed, run in zip(setting.seeds, runs, strict=True):
            z = run.noise_multiplier or math.nan
            rows += [
                {
                    "run": f"epsilon {epsilon:g}", "seed": seed, "lot_size": recipe.lot_size, "epoch": point.epoch,
                    "epsilon": spent(recipe, z, records=found.records, steps=point.step, delta=DELTA), "delta": DELTA,
                    "noise_multiplier": z, "test_accuracy": point.test, "averaged_test_accuracy": point.averaged,
                    "train_accuracy_not_private": point.train,
                }
                for point in run.points
            ]  # fmt: skip
    blank: dict[str, Value] = dict.fromkeys(rows[0])
    return rows + [
        blank | {
            "run": "not private", "seed": _SEED, "lot_size": 120, "epoch": point.epoch, "test_accuracy": point.test,
            "averaged_test_accuracy": point.averaged, "train_accuracy_not_private": point.train,
        }
        for point in found.free.points
    ]  # fmt: skip


def _comparisons(runs: Mapping[float, Sequence[Trajectory]], free: Trajectory) -> list[Comparison]:
    reached = {epsilon: mean(run.last.test for run in found) for epsilon, found in runs.items()}
    averaged = {epsilon: mean(run.last.averaged for run in found) for epsilon, found in runs.items()}
    gap = mean(run.last.train - run.last.test for run in runs[8.0])
    without, seconds = PAPER_SECONDS
    ours, slower = free.cpu_seconds_per_epoch, runs[2.0][0].cpu_seconds_per_epoch
    return [
        *(percent(f"test accuracy, ε = {epsilon:g}", PAPER[epsilon], value) for epsilon, value in reached.items()),
        *(percent(f"with averaged weights, ε = {epsilon:g}", None, value) for epsilon, value in averaged.items()),
        percent("test accuracy without privacy", PAPER_BASELINE, 100 * free.last.test),
        percent("lost to privacy at ε = 8", PAPER_BASELINE - PAPER[8.0], 100 * free.last.test - reached[8.0]),
        percent("train minus test accuracy without privacy", None, 100 * (free.last.train - free.last.test)),
        percent("train minus test accuracy, ε = 8", None, gap),
        Comparison(what="an epoch without privacy, batches of 120", paper=without, ours=ours, unit="s"),
        Comparison(what="an epoch with privacy, lots of 2,000", paper=seconds, ours=slower, unit="s"),
        Comparison(what="ratio of the two", paper=seconds / without, ours=slower / ours),
    ]


def _panel(epsilon: float, found: Sequence[Trajectory], free: Trajectory) -> Panel:
    epochs = [point.epoch for point in found[0].points]
    return Panel(
        title=f"ε = {epsilon:g}",
        x="epoch",
        y="accuracy (%)",
        lines=[
            Line(label="test", x=epochs, y=marks_mean(found, "test")),
            Line(label="training (not private)", x=epochs, y=marks_mean(found, "train"), style="dashed"),
            Line(label="paper, at the end", x=epochs, y=[PAPER[epsilon]], style="level"),
            Line(label="ours without privacy", x=epochs, y=[100 * free.last.test], style="level"),
        ],
    )


def notes(setting: Setting, found: Measured) -> list[str]:
    """Return the remarks that belong to these numbers."""
    public, z = found.public, {epsilon: runs[0].noise_multiplier or math.nan for epsilon, runs in found.runs.items()}
    said = [
        f"Convolutions learned without privacy from {public.name} ({len(public.train):,} images of {public.classes} "
        "classes, taken to be public). The paper has CIFAR-100: 50,000 images that are much more like CIFAR-10.",
        "Features of un-augmented images are computed once; clip norm 3, and 6 for the softmax layer. Three layers are "
        "noised apart and one record moves all three, so a step has z = σ / √3: "
        + ", ".join(f"σ = {value * math.sqrt(3):.2f} at ε = {epsilon:g}" for epsilon, value in z.items())
        + ".",
    ]
    if setting.quick:
        said.append(
            f"Quick: {_EPOCHS} epochs with the noise solved for, so that the budget is spent; the paper's σ = 6 takes "
            f"many more epochs (the full setting). The baseline has {_BASELINE_EPOCHS[True]} epochs (the paper: 250)."
        )
    rates = ", ".join(f"{recipe.optimizer.learning_rate:g} at ε = {e:g}" for e, recipe in found.recipes.items())
    said.append(
        f"The paper does not print a learning rate; here it is {rates}, after eight trials of rates and scales on "
        "10,000 training images held out from the others, one seed, at ε = 2 and 8 (mostly over 5 epochs); the rates "
        "at ε = 2 and 4 themselves were not tried. The search is not charged. What goes into each layer is centred and "
        "scaled by statistics of the public images."
    )
    said.append(
        "Seconds are CPU time of the layers that are trained, on frozen features; the paper's include the "
        "convolutions, on other hardware. The ratio is what can be compared."
    )
    return said
