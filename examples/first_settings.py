"""The starting points of docs/first-settings.md: `python examples/first_settings.py table|text|dense|convolutions`.

Data sets are those of `tacit data`; `text` needs a folder with one sentence a line in positive.txt and negative.txt.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
import tacit.data


@dataclass(frozen=True, kw_only=True)
class Start:
    """Settings to begin with for one kind of model; δ is a tenth of one over the number of records."""

    epsilon: float
    epochs: int
    clip_norm: float
    learning_rate: float
    momentum: float = 0.0
    lot_size: int = 1000


STARTS = {
    "table": Start(epsilon=1.0, epochs=30, clip_norm=1.0, learning_rate=1.0),
    "text": Start(epsilon=3.0, epochs=20, clip_norm=1.0, learning_rate=1.0, momentum=0.9),
    "dense": Start(epsilon=3.0, epochs=15, clip_norm=1.0, learning_rate=0.2, momentum=0.9),
    "convolutions": Start(epsilon=3.0, epochs=15, clip_norm=0.5, learning_rate=4.0),
}

NUMBERS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 20_000),
    "capital-loss": (0, 4_000),
    "hours-per-week": (1, 99),
}
"""Public bounds: those of the questionnaire, not of the records."""

WORDS = ("workclass", "marital-status", "occupation", "relationship", "race", "sex")
BITS = 14
Split = tuple[Tensor, Tensor, Tensor, Tensor]


def hashed(words: list[str], width: int) -> Tensor:
    """Return how often each of ``width`` places is hit by a word: needs no vocabulary, which would be data."""
    counts = torch.zeros(width)
    for word in words:
        counts[int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") % width] += 1
    return counts


def table() -> Split:
    """Adult: numbers scaled by public bounds, words hashed."""
    adult = tacit.data.load_table("adult")
    assert adult.test is not None

    def encoded(columns: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
        parts = [
            torch.tensor(np.clip((columns[name] - low) / (high - low), 0, 1), dtype=torch.float32)[:, None]
            for name, (low, high) in NUMBERS.items()
        ]
        for name in WORDS:
            codes = {word: hashed([word], 32) for word in set(columns[name].tolist())}
            parts.append(torch.stack([codes[word] for word in columns[name].tolist()]))
        return torch.cat(parts, 1), torch.from_numpy((columns["income"] == ">50K").astype(np.int64))

    return (*encoded(adult.train), *encoded(adult.test))


def text(folder: Path) -> Split:
    """Sentences as hashed words and pairs of words, each of norm 1; the last tenth, shuffled, is the test set."""
    lines = [
        (line, label)
        for label, name in enumerate(["negative.txt", "positive.txt"])
        for line in (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0)).tolist()
    rows = []
    for place in order:
        words = re.findall(r"[a-z']+", lines[place][0].lower())
        pairs = [f"{a} {b}" for a, b in itertools.pairwise(words)]
        rows.append(F.normalize(hashed(words + pairs, 1 << BITS), dim=0))
    x, y, cut = torch.stack(rows), torch.tensor([lines[place][1] for place in order]), len(order) * 9 // 10
    return x[:cut], y[:cut], x[cut:], y[cut:]


def images() -> Split:
    """MNIST, from -1 to 1."""
    mnist = tacit.data.load("mnist", fetch=True)
    train, test = (2 * (part.float() / 255) - 1 for part in (mnist.train, mnist.test))
    return train, mnist.train_labels, test, mnist.test_labels


def model(kind: str, inputs: int) -> nn.Module:
    """Return a small model of the kind; smooth activations bound gradients better than ReLU."""
    if kind == "table":
        return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 2))
    if kind == "text":
        return nn.Linear(inputs, 2)
    if kind == "dense":
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def train(kind: str, x: Tensor, y: Tensor) -> tuple[nn.Module, tacit.Guarantee]:
    """Train a model of the kind with its starting point."""
    start = STARTS[kind]
    network = model(kind, x[0].numel())
    optimizer = torch.optim.SGD(network.parameters(), lr=start.learning_rate, momentum=start.momentum)
    run = tacit.make_private(
        network,
        optimizer,
        TensorDataset(x, y),
        lot_size=start.lot_size,
        epochs=start.epochs,
        clipping=start.clip_norm,
        budget=tacit.Budget(start.epsilon, 0.1 / len(x)),
    )
    for epoch in run.epochs():
        for a, b in epoch:
            F.cross_entropy(network(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return network, run.guarantee()


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers. Not private for ``x``: only for public test sets."""
    right = sum(
        int((network.eval()(a).argmax(1) == b).sum()) for a, b in zip(x.split(1000), y.split(1000), strict=True)
    )
    return right / len(y)


if __name__ == "__main__":
    kind = sys.argv[1] if len(sys.argv) > 1 else "table"
    if kind == "text":
        data = text(Path(sys.argv[2]))
    else:
        data = table() if kind == "table" else images()
    network, guarantee = train(kind, *data[:2])
    print(f"{kind}: {STARTS[kind]}\naccuracy {accuracy(network, *data[2:]):.4f}, {guarantee}")
