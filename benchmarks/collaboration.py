"""CPU milliseconds of the protocol in one exchange: everything but local training, for the paper's MLP on MNIST.

Ten participants with 140,106 parameters each exchange with the server in turn; between download and upload each really
trains, on one minibatch, so that caches are as cold as in use. The median of several rounds. The targets are 1.5 ms
without sparse vector and 10 ms with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from typing import Any

import torch

from tacit.collaboration import GaussianPrivacy, Problem, Settings, SparseVectorPrivacy, simulate
from tacit.models import shokri

Row = dict[str, Any]

BASE = Settings(participants=10, epochs=5, share=0.1)
SPARSE = SparseVectorPrivacy(epsilon_per_epoch=14_010.0)
GAUSSIAN = GaussianPrivacy(epsilon=100.0, delta=1e-5, clip_norm=0.1)
CASES: list[tuple[str, float | None, Settings]] = [
    ("largest, upload 0.1", 1.5, BASE),
    ("largest, upload 0.01", 1.5, replace(BASE, upload=0.01)),
    ("everything", 1.5, replace(BASE, upload=1.0)),
    ("threshold, upload 0.1", 1.5, replace(BASE, selection="threshold")),
    ("random, upload 0.1", 1.5, replace(BASE, selection="random")),
    ("largest, upload 0.1, download 0.1", 1.5, replace(BASE, download=0.1)),
    ("sparse vector, upload 0.1", 10.0, replace(BASE, privacy=SPARSE)),
    ("sparse vector, upload 0.01", 10.0, replace(BASE, upload=0.01, privacy=SPARSE)),
    ("gaussian, upload 0.1", None, replace(BASE, privacy=GAUSSIAN)),
]


def measure(settings: Settings, rounds: int) -> float:
    """Milliseconds an exchange."""
    problem = Problem(
        name="noise",
        inputs=torch.randn(320, 1, 32, 32),
        labels=torch.arange(320) % 10,
        test_inputs=torch.randn(10, 1, 32, 32),
        test_labels=torch.arange(10),
        build=lambda: shokri.mlp(channels=1),
    )
    results = [simulate(problem, settings, baselines=False) for _ in range(rounds)]
    return statistics.median(1000 * result.protocol_seconds / result.exchanges for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = [
        {"case": name, "milliseconds": measure(settings, arguments.rounds), "target": target}
        for name, target, settings in CASES
    ]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'exchange':<36} {'ms of CPU':>9} {'target':>7}")
    for row in rows:
        print(f"{row['case']:<36} {row['milliseconds']:>9.2f} {row['target'] or '–':>7}")


if __name__ == "__main__":
    main()
