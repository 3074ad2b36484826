"""Accuracy with correlated noise beside DP-SGD, at the same budget and the same few epochs.

    python benchmarks/correlated_accuracy.py mnist --epochs 2 --repeats 5

A linear classifier on scattering features, which learn nothing of the records. Every method has the same lots, clip
norm and epochs, and takes the learning rate of `RATES` that does best on 5,000 training images that are held out; that
choice is not in ε. Then it is trained ``repeats`` times, each with samples and noise of its own, and the mean accuracy
on the test images is printed with its standard error.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.data import load
from tacit.features import Grouped, Scattering, Whitened
from tacit.ledger import Ledger
from tacit.mechanisms import BandedToeplitz, BufferedToeplitz
from tacit.randomness import SecureSource

RATES = (2.0, 8.0, 32.0, 128.0)
METHODS: dict[str, dict[str, Any]] = {
    "DP-SGD": {},
    "keys only": {"noise": "correlated", "sampling": "cyclic"},
    "8 bands": {"noise": BandedToeplitz(bands=8), "sampling": "cyclic"},
    "4 buffers": {"noise": BufferedToeplitz(buffers=4), "sampling": "cyclic"},
}
FRONTS = {
    "mnist": Scattering(angles=4, upright=True, normalisation=Grouped(groups=25)),
    "cifar10": Scattering(angles=4, mirror=True, pooling=2, normalisation=Whitened()),
}


def trained(
    x: Tensor, y: Tensor, *, rate: float, epsilon: float, epochs: float, lot_size: int, **settings: Any
) -> nn.Module:
    model = nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(x, y),
        lot_size=lot_size,
        epochs=epochs,
        clipping=0.1,
        budget=tacit.Budget(epsilon=epsilon, delta=1e-5),
        trial=False,
        **settings,
    )
    for batch, labels in run.batches():
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    return model


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=sorted(FRONTS))
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--lot-size", type=int, default=500)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1, 3, 8])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = load(given.dataset)
    front = FRONTS[given.dataset].fit(images.train, ledger=Ledger(), source=SecureSource())
    train, test = (front.transform(part).flatten(1) for part in (images.train, images.test))
    labels, held = images.train_labels, slice(0, 5000)
    print(f"{given.dataset}: {tuple(train.shape)}, lots of {given.lot_size}, {given.epochs:g} epochs", flush=True)
    for epsilon in given.epsilon:
        size = {"epsilon": epsilon, "epochs": given.epochs, "lot_size": given.lot_size}
        for name, settings in METHODS.items():
            tried = {
                rate: accuracy(
                    trained(train[5000:], labels[5000:], rate=rate, **size, **settings), train[held], labels[held]
                )
                for rate in RATES
            }
            best = max(RATES, key=tried.__getitem__)
            found = [
                accuracy(trained(train, labels, rate=best, **size, **settings), test, images.test_labels)
                for _ in range(given.repeats)
            ]
            error = statistics.stdev(found) / math.sqrt(len(found))
            print(
                f"ε = {epsilon:g}  {name:10}  rate {best:g}  {statistics.mean(found):.2f} ± {error:.2f} %  "
                f"{' '.join(f'{each:.2f}' for each in found)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
