"""Training that is watched while it goes on. For experiments on public benchmark data, never for people's records.

Accuracy on the training records is computed without noise, and the randomness comes from a seed, so that a figure can
be computed again: nothing measured here is private, whatever the run would have been worth. `tacit.recipes.train` is
the private runner; mechanism, schedule and accounting are the same.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit._version import __version__
from tacit.accounting import guarantee
from tacit.data import Images
from tacit.ledger import Budget, GaussianSum, Header, Ledger, Poisson, Step
from tacit.randomness import SeededSource
from tacit.recipes.averaging import Average
from tacit.recipes.outcome import FORMAT, described, read_json, write_json
from tacit.recipes.recipe import Ema, Recipe, Sgd
from tacit.recipes.schedule import schedule
from tacit.training import make_private

AVERAGE = Ema(decay=0.999)
_BATCH = 4096
_EVALUATED = 10_000  # of the training records, the first ones: enough for a curve

Features = tuple[Tensor, Tensor]
"""Features of the training and of the test images."""
Watch = Callable[[float], None]
"""Told from time to time how much of the run is done (0 to 1)."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Accuracies (0 to 1) after ``step``; ``averaged`` is the test accuracy of the averaged weights."""

    step: int
    epoch: float
    test: float
    train: float
    averaged: float


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A watched run. ``noise_multiplier`` is z of a whole step, None without noise; time is CPU time, training only."""

    points: tuple[Point, ...]
    noise_multiplier: float | None
    cpu_seconds_per_epoch: float

    @property
    def last(self) -> Point:
        return self.points[-1]

    def at(self, step: int) -> Point:
        """The last point that is not after ``step``."""
        return [point for point in self.points if point.step <= step][-1]


def not_private(seeds: Sequence[int]) -> str:
    """Return the remark that belongs to every experiment that trains."""
    return (
        "Experiments run on public benchmark data: the noise comes from a seed "
        f"({', '.join(map(str, seeds))}; means over several), and accuracy on the training set is computed without "
        "privacy. On records that need protection use `tacit train`."
    )


def mean(values: Iterable[float]) -> float:
    """In per cent."""
    return 100 * fmean(values)


def marks_mean(runs: Sequence[Trajectory], name: str) -> list[float]:
    """The mean over runs of one kind of accuracy at each point, in per cent."""
    return [mean(getattr(point, name) for point in points) for points in zip(*(r.points for r in runs), strict=True)]


class Runs:
    """Finished runs, kept in a directory: figures that need the same run share it, and a stopped sweep goes on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(self, what: Mapping[str, Any], make: Callable[[], Trajectory]) -> Trajectory:
        """The run that ``what`` describes completely, made now if it is not there."""
        kept = self.keep(what, "trajectory", lambda: asdict(make()))
        return Trajectory(**kept | {"points": tuple(Point(**point) for point in kept["points"])})

    def keep(self, what: Mapping[str, Any], name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of ``make``, kept as JSON under ``name``."""
        facts = {"format": FORMAT, "tacit": __version__, **described(what)}
        path = self.directory / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}.json"
        if not path.exists():
            found = make()
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(path, facts | {name: found})
        return dict(read_json(path)[name])


def private(
    recipe: Recipe,
    images: Images,
    *,
    budget: Budget,
    seed: int,
    runs: Runs,
    points: int = 40,
    also: Iterable[int] = (),
    features: Callable[[], Features] | None = None,
    watch: Watch = lambda share: None,
) -> Trajectory:
    """Train as `tacit.recipes.train` would, watched at ``points`` steps and ``also`` at those given.

    No loss is released, and the weights are averaged on the side, which changes nothing. Charged like any run, to a
    ledger in memory.
    ``features`` gives what the front end makes of the images, for a front end that learns nothing from them.
    """
    if features is not None and recipe.front.charges(len(images.train)):
        raise ValueError(f"front is {recipe.front}; it learns from the records, so its features cannot be given.")
    model = _built(recipe, images, seed)
    plan = schedule(recipe, model, records=len(images.train), budget=budget)
    marks = _marks(plan.steps, points, also)

    def make() -> Trajectory:
        ledger = Ledger(Header(secure_randomness=False, purpose=f"reproduction of {recipe.name} on {images.name}"))
        rows = features() if features is not None else _features(recipe, images, ledger, seed)
        eye = _Eye(model, rows, images, watch, marks)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=recipe.optimizer.learning_rate, momentum=recipe.optimizer.momentum
        )
        run = make_private(
            model,
            optimizer,
            TensorDataset(eye.rows, images.train_labels),
            lot_size=recipe.lot_size,
            steps=plan.steps,
            clipping=recipe.clipping,
            budget=budget,
            noise_multiplier=plan.noise_multiplier,
            ledger=ledger,
            batch_size=_BATCH,
            reduction="mean",
            seed=seed,
        )
        average = Average(recipe.averaging or AVERAGE, model, plan.steps)
        passes = recipe.lot_size / len(images.train)
        try:
            for x, y in run.batches():
                before = run.step
                optimizer.param_groups[0]["lr"] = recipe.optimizer.at(before * passes)
                torch.autograd.backward(F.cross_entropy(model(x.float()), y))
                optimizer.step()
                optimizer.zero_grad()
                if run.step > before:
                    average.add(run.step)
                    eye.look(run.step, run.step * passes, model, average)
        finally:
            run.close()
        return eye.trajectory(plan.noise_multiplier)

    what = {"kind": "private", "recipe": recipe, "data": images.fingerprint, "epsilon": budget.epsilon}
    return runs.get(what | {"delta": budget.delta, "seed": seed, "marks": sorted(marks)}, make)


def plain(
    model: nn.Module,
    rows: Features,
    images: Images,
    *,
    batch: int,
    epochs: int,
    sgd: Sgd,
    seed: int,
    points: int = 40,
    watch: Watch = lambda share: None,
) -> Trajectory:
    """Train without privacy on the features ``rows`` (training, test): shuffled batches, no clipping, no noise."""
    records = len(rows[0])
    lots = records // batch
    eye = _Eye(model, rows, images, watch, _marks(lots * epochs, points, ()))
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.learning_rate, momentum=sgd.momentum)
    generator = torch.Generator().manual_seed(seed)
    average, step = Average(AVERAGE, model, lots * epochs), 0
    for _ in range(epochs):
        order = torch.randperm(records, generator=generator)
        for chosen in torch.split(order[: lots * batch], batch):
            optimizer.param_groups[0]["lr"] = sgd.at(step / lots)
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(eye.rows[chosen].float()), images.train_labels[chosen]))
            optimizer.step()
            step += 1
            average.add(step)
            eye.look(step, step / lots, model, average)
    return eye.trajectory(None)


def spent(recipe: Recipe, z: float, *, records: int, steps: int, delta: float, accountant: str = "pld") -> float:
    """ε of the front end and of ``steps`` steps with noise multiplier ``z``: an upper bound."""
    query = GaussianSum(group="gradients", clip_norm=1.0, noise_std=z)
    step = Step(Poisson(rate=recipe.lot_size / records, records=records), (query,))
    entries = [(charge, 1) for charge in recipe.front.charges(records)] + [(step, steps)]
    return guarantee(entries, Header(), delta=delta, accountant=accountant).epsilon


def _features(recipe: Recipe, images: Images, ledger: Ledger, seed: int) -> Features:
    source = SeededSource(seed)
    source.branch("front")  # else the run would draw the same numbers again
    fitted = recipe.front.fit(images.train, ledger=ledger, source=source)
    return fitted.transform(images.train), fitted.transform(images.test)


class _Eye:
    """Looks at a model at chosen steps, and keeps the time of looking out of the time of training."""

    def __init__(self, model: nn.Module, rows: Features, images: Images, watch: Watch, marks: frozenset[int]) -> None:
        self._copy = copy.deepcopy(model)  # the model itself may be busy with a lot
        (self.rows, self._test), self._images, self._watch, self._marks = rows, images, watch, marks
        self._points: list[Point] = []
        self._last, self._told = max(marks), 0.0
        self._started, self._looking = time.process_time(), 0.0

    def look(self, step: int, epoch: float, model: nn.Module, average: Average) -> None:
        if time.monotonic() - self._told > 0.5:
            self._told = time.monotonic()
            self._watch(step / self._last)
        if step not in self._marks:
            return
        began = time.process_time()
        self._copy.load_state_dict(average.weights())
        averaged = accuracy(self._copy, self._test, self._images.test_labels)
        self._copy.load_state_dict(model.state_dict())
        test = accuracy(self._copy, self._test, self._images.test_labels)
        train = accuracy(self._copy, self.rows[:_EVALUATED], self._images.train_labels[:_EVALUATED])
        self._points.append(Point(step=step, epoch=epoch, test=test, train=train, averaged=averaged))
        self._looking += time.process_time() - began

    def trajectory(self, noise_multiplier: float | None) -> Trajectory:
        used = time.process_time() - self._started - self._looking
        return Trajectory(
            points=tuple(self._points),
            noise_multiplier=noise_multiplier,
            cpu_seconds_per_epoch=used / self._points[-1].epoch,
        )


@torch.no_grad()
def accuracy(model: nn.Module, rows: Tensor, labels: Tensor) -> float:
    """The share of rows whose label the model finds."""
    pieces = zip(torch.split(rows, _BATCH), torch.split(labels, _BATCH), strict=True)
    return sum(int((model(x.float()).argmax(1) == y).sum()) for x, y in pieces) / len(labels)


def _built(recipe: Recipe, images: Images, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return recipe.model.build(recipe.front.features(tuple(images.train.shape[1:])), images.classes)


def _marks(steps: int, points: int, also: Iterable[int]) -> frozenset[int]:
    """About ``points`` steps, evenly spread, with the last; and the others that are not beyond it."""
    spread = {max(round(steps * (i + 1) / points), 1) for i in range(points)}
    return frozenset(spread | {step for step in also if 1 <= step <= steps})
