"""The numbers of the paper's abstract and sections 5.2 and 5.3: accuracy at each budget, and without privacy."""

from __future__ import annotations

from tacit.data import load
from tacit.recipes.reproduction import cifar, mnist
from tacit.recipes.reproduction.experiment import Comparison, Result, Setting, Value, percent
from tacit.recipes.reproduction.measure import mean, not_private


def headline(setting: Setting) -> Result:
    """MNIST as printed and with averaged weights; CIFAR-10 with public data, where there is any."""
    images = load("mnist", fetch=True)
    free, runs = mnist.baseline(setting, images), mnist.printed_runs(setting, images)
    rows: list[dict[str, Value]] = []
    for epsilon, found in runs.items():
        for seed, run in zip(setting.seeds, found, strict=True):
            spent = mnist.cost(epsilon, run, run.last.step, len(images.train))
            rows.append(_row("mnist", seed, spent, run.last.epoch, run.last.test, run.last.averaged))
    rows.append(_row("mnist", setting.seeds[0], None, free.last.epoch, free.last.test, free.last.averaged))
    comparisons: list[Comparison] = []
    for epsilon, found in runs.items():
        paper = mnist.PAPER[epsilon]
        comparisons += [
            percent(f"MNIST, ε = {epsilon:g}, as printed", paper, mean(run.last.test for run in found)),
            percent(f"MNIST, ε = {epsilon:g}, averaged weights", paper, mean(run.last.averaged for run in found)),
            percent(f"MNIST, ε = {epsilon:g}, train minus test accuracy", None, mnist.gap(found)),
        ]
    lost = 100 * free.last.test - mean(run.last.test for run in runs[8.0])
    comparisons += [
        percent("MNIST without privacy", mnist.PAPER_BASELINE, 100 * free.last.test),
        percent("MNIST without privacy, train minus test accuracy", None, mnist.gap([free])),
        percent("MNIST, lost to privacy at ε = 8", 1.3, lost),
    ]
    more, also, said = _cifar(setting)
    paid = "δ = 1e-5; everything learned from the records is paid for, the PCA included."
    return Result(
        comparisons=[*comparisons, *more],
        rows=[*rows, *also],
        notes=[paid, mnist.GROUPS, *said, not_private(setting.seeds)],
    )


def _cifar(setting: Setting) -> tuple[list[Comparison], list[dict[str, Value]], list[str]]:
    """The CIFAR-10 part; a note instead if the data are not here."""
    try:
        found = cifar.measured(setting)
    except ValueError as error:
        return [], [], [f"CIFAR-10 is left out: {error}"]
    comparisons, rows = [], []
    for epsilon, runs in found.runs.items():
        reached = mean(run.last.test for run in runs)
        comparisons.append(percent(f"CIFAR-10, ε = {epsilon:g}, public convolutions", cifar.PAPER[epsilon], reached))
        for seed, run in zip(setting.seeds, runs, strict=True):
            rows.append(_row("cifar10", seed, epsilon, run.last.epoch, run.last.test, run.last.averaged))
    last = found.free.last
    comparisons.append(percent("CIFAR-10 without privacy, same pipeline", cifar.PAPER_BASELINE, 100 * last.test))
    rows.append(_row("cifar10", setting.seeds[0], None, last.epoch, last.test, last.averaged))
    return comparisons, rows, cifar.notes(setting, found)


def _row(
    data: str, seed: int, epsilon: float | None, epochs: float, accuracy: float, averaged: float
) -> dict[str, Value]:
    return {
        "data": data,
        "epsilon": epsilon,
        "delta": None if epsilon is None else mnist.DELTA,
        "seed": seed,
        "epochs": epochs,
        "test_accuracy": accuracy,
        "averaged_test_accuracy": averaged,
    }
