"""The experiments by name. Another paper adds its own to the list."""

from __future__ import annotations

from tacit.recipes.reproduction import (
    alone,
    cifar,
    convergence,
    distributed,
    mnist,
    noisy,
    selections,
    spending,
    sweeps,
)
from tacit.recipes.reproduction.experiment import Experiment
from tacit.recipes.reproduction.headline import headline

ABADI = "Abadi et al. 2016"
SHOKRI = "Shokri & Shmatikov 2015"

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            name="headline", title="accuracy at each budget, and without privacy", paper=f"{ABADI}, section 5",
            minutes=(25, 430), run=headline,
        ),
        Experiment(
            name="figure2", title="ε over epochs, by four accountants", paper=f"{ABADI}, Figure 2",
            minutes=(0.2, 0.2), run=spending.figure2,
        ),
        Experiment(
            name="figure3", title="MNIST accuracy over epochs at three noise levels", paper=f"{ABADI}, Figure 3",
            minutes=(9, 24), run=mnist.figure3,
        ),
        Experiment(
            name="figure4", title="MNIST accuracy over (ε, δ)", paper=f"{ABADI}, Figure 4",
            minutes=(8, 23), run=mnist.figure4,
        ),
        Experiment(
            name="figure5", title="MNIST accuracy as one parameter varies", paper=f"{ABADI}, Figure 5",
            minutes=(12, 400), run=sweeps.figure5,
        ),
        Experiment(
            name="figure6", title="CIFAR-10 with convolutions from public data", paper=f"{ABADI}, Figure 6",
            minutes=(14, 400), run=cifar.figure6,
        ),
        Experiment(
            name="epochs", title="epochs that a budget pays for, by accountant", paper=f"{ABADI}, sections 5.2 and 5.3",
            minutes=(0.2, 0.2), run=spending.epochs,
        ),
        Experiment(
            name="improvements", title="what each improvement is worth at the same ε", paper=f"{ABADI}, section 5.2",
            minutes=(9, 25), run=mnist.improvements,
        ),
        Experiment(
            name="table4", title="best accuracy of selective SGD by θ", paper=f"{SHOKRI}, Table 4",
            minutes=(28, 370), seeds=(1, 1), run=alone.table4,
        ),
        Experiment(
            name="figure8", title="convergence of selective SGD", paper=f"{SHOKRI}, Figure 8",
            minutes=(28, 300), seeds=(1, 1), run=alone.figure8,
        ),
        Experiment(
            name="figure9", title="distributed selective SGD by θ, protocol and participants",
            paper=f"{SHOKRI}, Figure 9", minutes=(45, 400), seeds=(1, 1), run=distributed.figure9,
        ),
        Experiment(
            name="figure10", title="the largest changes, or random ones above a threshold",
            paper=f"{SHOKRI}, Figure 10", minutes=(33, 310), seeds=(1, 1), run=selections.figure10,
        ),
        Experiment(
            name="figure11", title="convergence of distributed selective SGD", paper=f"{SHOKRI}, Figure 11",
            minutes=(10, 260), seeds=(1, 1), run=convergence.figure11,
        ),
        Experiment(
            name="figure12", title="what the sparse vector technique costs", paper=f"{SHOKRI}, Figure 12",
            minutes=(0.2, 0.2), run=noisy.figure12,
        ),
        Experiment(
            name="figure13", title="private uploads, at the paper's ε and at the honest one",
            paper=f"{SHOKRI}, Figure 13", minutes=(28, 350), seeds=(1, 1), run=noisy.figure13,
        ),
    )
}  # fmt: skip


def find(name: str) -> Experiment:
    """The experiment of this name; another name is refused."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment is {name!r}; choose one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
