"""Runs of distributed and of selective SGD on MNIST and SVHN, kept: figures that need the same run share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from tacit.collaboration import Problem, Progress, SelectiveSGD, Settings, baselines, simulate
from tacit.collaboration.problem import builder, of_images
from tacit.collaboration.simulation import accuracy
from tacit.data import Images, load
from tacit.recipes.reproduction.experiment import Setting

TITLES = {"mnist": "MNIST", "svhn": "SVHN"}
PUBLIC = {"mnist": 1 / 6, "svhn": 0.0}
"""The last images of the training set, which no participant holds: settings were chosen on them."""
SHARES = {"mnist": 0.012, "svhn": 864 / 26_000}
"""Training images that each participant holds: 600 as in the paper; 864 of our 26,000 for its 1,000.

That is 27 minibatches of 32. With 866, a thirtieth, every local epoch would end with a step on two images.
"""
SIZES = (
    "Participants have 600 images of MNIST each, as in the paper, dealt from the first 50,000 training images; the "
    "other 10,000 are public, for choosing settings. Of SVHN there are 26,000 training and 8,001 test images here "
    "instead of 100,000 and 10,000, and each participant holds 864 instead of 1,000 (27 minibatches of 32: with 866, a "
    "thirtieth, every local epoch would end with a step on two images, and does much worse); where all participants "
    "together hold more than there are, images are dealt again."
)
BEST = (
    "Accuracies without noise are those of the best epoch, as in the paper, chosen on the test set (the CSV has the "
    "last as well); standalone is the last epoch, the mean of ten. The paper's figures print no values: where it has "
    "none there is a bar."
)
PROTECTS = (
    "Experiments run on public benchmark data, with seeds (means over several): their noise gives no protection. "
    "Between people use `tacit collaborate`."
)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A collaboration: on which data, with which network, and how; the seed is not part of it."""

    data: str
    model: str
    settings: Settings

    @property
    def title(self) -> str:
        return f"{TITLES[self.data]}, {self.model.upper()}"

    @property
    def baseline(self) -> Job:
        """The part of the job on which pooled and lonely training depend."""
        s = self.settings
        return replace(
            self,
            settings=Settings(
                participants=s.participants,
                epochs=s.epochs,
                share=s.share,
                learning_rate=s.learning_rate,
                batch_size=s.batch_size,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Found:
    """Accuracies (0 to 1) after each epoch; ε of a participant's whole training, and as the paper counts it."""

    history: tuple[float, ...]
    epsilon: float | None
    per_parameter: float | None
    bytes_up: int
    cpu_seconds: float

    @property
    def last(self) -> float:
        return self.history[-1]

    @property
    def best(self) -> float:
        return max(self.history)

    @property
    def late(self) -> float:
        return last_quarter(self.history)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Accuracy of participants who train alone, and of SGD on their pooled records after each epoch; and which α."""

    standalone: float
    centralised: tuple[float, ...]
    standalone_rate: float
    centralised_rate: float


@dataclass(frozen=True, kw_only=True)
class Selective:
    """One party with ``records`` images that updates the fraction ``theta`` of its parameters in each step."""

    data: str
    model: str
    records: int
    tests: int
    theta: float
    batch_size: int
    learning_rate: float
    epochs: int


def last_quarter(history: Sequence[float]) -> float:
    """The mean of the last quarter of the epochs: neither the best of them nor a dip at the end decides it."""
    return fmean(history[-max(len(history) // 4, 1) :])


class _Data:
    """A data set in memory: normalised once, and only if something has to be trained."""

    def __init__(self, name: str) -> None:
        self.images: Images = load(name, fetch=True)

    @cached_property
    def _problem(self) -> Problem:
        return of_images(self.images, "mlp")

    def problem(self, model: str) -> Problem:
        return replace(self._problem, build=builder(model, channels=self.images.train.shape[1]))

    def private(self, model: str) -> Problem:
        """Without the training images that are public."""
        whole = self.problem(model)
        held = round(len(whole.inputs) * (1 - PUBLIC[self.images.name]))
        return replace(whole, inputs=whole.inputs[:held], labels=whole.labels[:held])


def collaborations(
    setting: Setting, jobs: Sequence[Job], *, part: tuple[float, float] = (0, 1)
) -> dict[Job, list[Found]]:
    """Each job with each seed; ``part``: from where to where of the whole experiment's work."""

    def make(data: _Data, job: Job, seed: int, tell: Callable[[float], None]) -> dict[str, Any]:
        def progress(state: Progress) -> None:
            tell(state.done / state.total)

        started = time.process_time()
        seeded = replace(job.settings, seed=seed)
        result = simulate(data.private(job.model), seeded, baselines=False, progress=progress)
        claim = result.claim
        found = Found(
            history=tuple(result.history),
            epsilon=None if claim is None else claim.whole.epsilon,
            per_parameter=None if claim is None else claim.per_parameter,
            bytes_up=result.bytes_up,
            cpu_seconds=time.process_time() - started,
        )
        return asdict(found)

    def words(job: Job) -> str:
        return f"{job.title}, N = {job.settings.participants}, θ_u = {job.settings.upload:g}"

    kept = _all(setting, "collaboration", jobs, make, words, part)
    return {job: [Found(**run | {"history": tuple(run["history"])}) for run in runs] for job, runs in kept.items()}


def lonely(setting: Setting, jobs: Sequence[Job], *, part: tuple[float, float] = (0, 1)) -> dict[Job, list[Baseline]]:
    """The baselines of each job, with each seed; jobs that differ only in how they exchange share theirs."""

    def make(data: _Data, job: Job, seed: int, tell: Callable[[float], None]) -> dict[str, Any]:
        found = baselines(data.private(job.model), replace(job.settings, seed=seed))
        return {"standalone": found.standalone, "centralised": found.centralised}

    different = list(dict.fromkeys(job.baseline for job in jobs))
    kept = _all(setting, "baseline", different, make, lambda job: f"{job.title}, pooled and alone", part)
    found = {
        job: [
            Baseline(
                standalone=run["standalone"], centralised=tuple(run["centralised"]),
                standalone_rate=job.settings.learning_rate, centralised_rate=job.settings.learning_rate,
            )
            for run in runs
        ]
        for job, runs in kept.items()
    }  # fmt: skip
    return {job: found[job.baseline] for job in jobs}


def fair(setting: Setting, job: Job, rates: Sequence[float], *, part: tuple[float, float] = (0, 1)) -> list[Baseline]:
    """The baselines of a job with each seed, both with that of the learning rates which is best for them.

    The best is the one with the highest mean on the test set, so that a choice made there is in their favour.
    """
    tried = [replace(job, settings=replace(job.settings, learning_rate=rate)) for rate in rates]
    found = lonely(setting, tried, part=part)
    pooled = max(found.values(), key=lambda runs: fmean(max(run.centralised) for run in runs))
    alone = max(found.values(), key=lambda runs: fmean(run.standalone for run in runs))
    return [
        replace(one, standalone=other.standalone, standalone_rate=other.standalone_rate)
        for one, other in zip(pooled, alone, strict=True)
    ]


def selective(setting: Setting, jobs: Sequence[Selective]) -> dict[Selective, list[list[float]]]:
    """The accuracies after each epoch of selective SGD, for each seed."""

    def make(data: _Data, job: Selective, seed: int, tell: Callable[[float], None]) -> dict[str, Any]:
        history = []
        for value in _epochs(_cut(data.problem(job.model), job), job, seed):
            history.append(value)
            tell(len(history) / job.epochs)
        return {"accuracy": history}

    def words(job: Selective) -> str:
        return f"{TITLES[job.data]}, {job.model.upper()}, M = {job.batch_size}, θ = {job.theta:g}"

    kept = _all(setting, "selective", jobs, make, words, (0, 1))
    return {job: [run["accuracy"] for run in runs] for job, runs in kept.items()}


def _cut(problem: Problem, job: Selective) -> Problem:
    """The first ``records`` and ``tests`` images."""
    return replace(
        problem,
        inputs=problem.inputs[: job.records],
        labels=problem.labels[: job.records],
        test_inputs=problem.test_inputs[: job.tests],
        test_labels=problem.test_labels[: job.tests],
    )


def _epochs(problem: Problem, job: Selective, seed: int) -> Iterator[float]:
    model = problem.network(seed)
    optimizer = SelectiveSGD(model.parameters(), lr=job.learning_rate, fraction=job.theta)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(job.epochs):
        model.train()
        for rows in torch.split(torch.randperm(len(problem.inputs), generator=generator), job.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(problem.inputs[rows]), problem.labels[rows]))
            optimizer.step()
        yield accuracy(model, problem)


def _all(
    setting: Setting,
    kind: str,
    jobs: Sequence[Key],
    make: Callable[[_Data, Any, int, Callable[[float], None]], dict[str, Any]],
    words: Callable[[Any], str],
    part: tuple[float, float],
) -> Mapping[Key, list[dict[str, Any]]]:
    """Return the results of ``make`` for each job and seed. One data set at a time is in memory."""
    found: dict[Key, list[dict[str, Any]]] = {job: [] for job in jobs}
    total = len(found) * len(setting.seeds)

    def one(data: _Data, job: Key, seed: int) -> dict[str, Any]:
        done = sum(map(len, found.values()))

        def tell(share: float) -> None:
            setting.tell(words(job), part[0] + (part[1] - part[0]) * (done + share) / total)

        tell(0.0)
        what = {"kind": kind, "job": job, "data": data.images.fingerprint, "seed": seed}
        return setting.runs.keep(what, kind, lambda: make(data, job, seed, tell))

    for name in dict.fromkeys(_data_of(job) for job in found):
        data = _Data(name)
        for job in (job for job in found if _data_of(job) == name):
            for seed in setting.seeds:
                found[job].append(one(data, job, seed))
    return found


def _data_of(job: Any) -> str:
    return str(job.data)


def percent_of(values: Sequence[float]) -> float:
    """The mean, in per cent."""
    return 100 * fmean(values)
