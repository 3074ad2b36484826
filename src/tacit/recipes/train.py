"""The runner: a recipe, a data set and a budget become a trained model, its ledger and its story."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.accounting import Filter, account
from tacit.data import Images
from tacit.features.cache import cached
from tacit.ledger import Budget, BudgetExceeded, GaussianSum, Header, Ledger
from tacit.randomness import Integers
from tacit.recipes.averaging import Average
from tacit.recipes.folder import Folder
from tacit.recipes.interrupts import interrupts
from tacit.recipes.job import BATCH, Job
from tacit.recipes.outcome import Outcome, write_json, write_tensors
from tacit.recipes.recipe import Recipe
from tacit.recipes.schedule import Schedule
from tacit.training import PrivateRun
from tacit.tuning.histogram import gradient_norms

_POINTS = 40  # of the history, at most
_PUBLIC = "computed on the test set, which is taken to be public"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The progress of a run. ``metrics`` holds {"value": …, "private": …} by name, as in run.json."""

    stage: str
    step: int = 0
    steps: int = 0
    epoch: float = 0.0
    epochs: float = 0.0
    epsilon: float = 0.0
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Progress = Callable[[Moment], None]


def train(
    recipe: Recipe,
    images: Images,
    *,
    budget: Budget,
    out: str | Path,
    seed: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    accountant: str = "pld",
    save_every: float = 20.0,
    cache: str | Path | None = None,
) -> Outcome:
    """Train on ``images`` as ``recipe`` says, within ``budget``, and leave everything in the directory ``out``.

    The budget pays for all that is learned from the training records: what the front end learns, the gradients and the
    loss that is shown. How long and how noisy the run is follows from recipe, budget and number of records before
    anyone is looked at. The test set is taken to be public.

    Ctrl-C, a crash or a kill leaves a run that ``resume=True`` goes on with, from a point at most ``save_every``
    seconds back; the steps since then stay charged, and the budget's filter counts them. ``seed`` is for debugging: the
    run is then marked as not private. Features are kept on disk in half precision, in ``out`` while the run lasts or in
    the directory ``cache`` for later runs: they are as secret as the records.
    """
    job = Job(recipe, images, budget=budget, seed=seed, accountant=accountant)
    folder = Folder(Path(out))
    facts = job.facts()
    if resume:
        facts = folder.saved(facts)
        folder.check_ledger()
        job.plan = Schedule(**facts["plan"])
    else:
        folder.make()
    tell = progress or (lambda moment: None)
    started = time.monotonic() - float(facts["seconds"])
    header = Header(secure_randomness=seed is None, purpose=f"recipe {recipe.name} on {images.name}")
    with Ledger.open(folder.ledger, header) as ledger:  # no other process works here from now on
        if not resume:
            folder.begin(facts)
        ledger.guard(Filter(budget, accountant=accountant))
        tell(Moment(stage="front end"))
        fitted = job.front(folder.front, ledger)
        tell(Moment(stage="features"))
        rows, test = (
            cached(part, fitted, cache or folder.features, configuration=repr(recipe.front))
            for part in (images.train, images.test)
        )
        run = job.private(rows, ledger)
        average = Average(recipe.averaging, run.model, job.plan.steps)
        try:
            saved = folder.load(run) if resume else None
            if saved is not None:
                average.restore(saved)
            facts["history"] = [point for point in facts["history"] if point["step"] <= run.step]
            _loop(job, run, average, test, facts, folder, tell, started, save_every)
        finally:
            run.close()
        model = job.trained(average)
        if recipe.norms is not None and "gradient_norms" not in facts:
            _norms(job, model, rows, ledger, facts)
            write_json(folder.facts, facts)  # a run resumed from here on must not pay again
        outcome = Outcome(
            out=folder.out,
            model=model,
            fitted=fitted,
            guarantee=account(ledger, delta=budget.delta, accountant=accountant),
            test_accuracy=_accuracy(model, test, images.test_labels),
            steps=run.step,
            noise_multiplier=job.plan.noise_multiplier,
            seconds=time.monotonic() - started,
        )
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"front.{name}": value for name, value in fitted.state().items()}
    write_tensors(folder.model, tensors, ledger.stamp)
    write_json(folder.architecture, job.architecture())
    facts |= {"finished": True, "seconds": outcome.seconds, "result": outcome.result()}
    folder.finish(facts)
    return outcome


def _loop(
    job: Job,
    run: PrivateRun,
    average: Average,
    test: Tensor,
    facts: dict[str, Any],
    folder: Folder,
    tell: Progress,
    started: float,
    save_every: float,
) -> None:
    """Train to the end of the plan or of the budget, writing down how it goes."""
    every = math.ceil(job.plan.steps / _POINTS)
    passes = job.recipe.lot_size / job.records
    saved = time.monotonic()
    optimizer, watched = run.optimizer, job.recipe.loss_bound is not None
    with interrupts() as asked:
        for x, y in run.batches():
            before = run.step
            optimizer.param_groups[0]["lr"] = job.recipe.optimizer.at(before * passes)
            output = run.model(x.float())
            torch.autograd.backward(F.cross_entropy(output, y))
            if watched:
                run.observe(loss=F.cross_entropy(output.detach().as_subclass(Tensor), y, reduction="none"))
            optimizer.step()
            optimizer.zero_grad()
            if run.step == before:
                continue
            average.add(run.step)
            if run.step % every == 0 or run.step == job.plan.steps:
                point = _point(job, run, _accuracy(job.trained(average), test, job.images.test_labels))
                facts["history"].append(point)
                tell(_moment(job, point))
            if asked or time.monotonic() - saved >= save_every:
                facts["seconds"] = time.monotonic() - started
                folder.save(run, average.state(), facts)
                saved = time.monotonic()
            if asked:
                raise KeyboardInterrupt


def _norms(job: Job, model: nn.Module, rows: Tensor, ledger: Ledger, facts: dict[str, Any]) -> None:
    """The histogram of gradient norms at the end, into ``facts``; its edges are public: around the clip norm."""
    histogram, labels = job.recipe.norms, job.images.train_labels
    assert histogram is not None
    edges = [_clip_norm(ledger) * 2.0**place for place in range(-10, 6)]

    def norms(chosen: Integers) -> Tensor:
        places = torch.from_numpy(chosen)
        return gradient_norms(model, rows[places].float(), labels[places])

    try:
        counts = histogram.release(norms, edges, records=job.records, ledger=ledger, source=job.source("norms"))
    except BudgetExceeded:  # after a crash: what was charged and lost cannot be spent again
        facts["notes"].append("The histogram of gradient norms was not released: the budget was spent.")
        return
    private = ledger.header.secure_randomness
    facts["gradient_norms"] = {"edges": edges, "counts": counts, "private": private, "group": histogram.group}


def _clip_norm(ledger: Ledger) -> float:
    """Return the clip norm of the gradient as a whole, in the last step of training."""
    for step, _ in reversed(ledger.entries):
        found = [q.clip_norm for q in step.queries if isinstance(q, GaussianSum) and q.group.startswith("gradients")]
        if found:
            return math.hypot(*found)
    raise ValueError("the ledger has no step of training; the budget did not pay for one.")


def _point(job: Job, run: PrivateRun, accuracy: float) -> dict[str, Any]:
    """One line of the history."""
    step = run.ledger.entries[-1][0]
    metrics: dict[str, Any] = {
        name: {"value": value, "private": run.ledger.header.secure_randomness} for name, value in run.metrics.items()
    }
    metrics["test_accuracy"] = {"value": accuracy, "private": False, "note": _PUBLIC}
    return {
        "step": run.step,
        "epoch": run.step * job.recipe.lot_size / job.records,
        "epsilon": run.guarantee().epsilon,
        "noise_multiplier": step.noise_multiplier,
        "clip_norm": _clip_norm(run.ledger),
        "learning_rate": run.optimizer.param_groups[0]["lr"],
        "metrics": metrics,
    }


def _moment(job: Job, point: Mapping[str, Any]) -> Moment:
    return Moment(
        stage="training",
        step=point["step"],
        steps=job.plan.steps,
        epoch=point["epoch"],
        epochs=job.plan.steps * job.recipe.lot_size / job.records,
        epsilon=point["epsilon"],
        metrics=point["metrics"],
    )


@torch.no_grad()
def _accuracy(model: nn.Module, rows: Tensor, labels: Tensor) -> float:
    """The share of rows whose label the model finds."""
    pieces = zip(torch.split(rows, BATCH), torch.split(labels, BATCH), strict=True)
    right = sum(int((model(x.float()).argmax(1) == y).sum()) for x, y in pieces)
    return right / len(labels)
