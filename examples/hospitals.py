"""Three hospitals with tables of their own train a classifier that none of them could train alone.

Each hospital treats three of six diseases, so that its own table says nothing about the other three. The records stay
where they are; the parameter server sees noisy changes of a network, and each hospital's ledger says what they cost.

    python examples/hospitals.py --out runs/hospitals     # about half a minute on one core

The same with commands, each on its own machine, in this folder (see docs/collaboration.md):

    tacit collaborate serve --state run --model hospitals:build --schema schema.json --keys keys --upload 1 \
        --mechanism dp-sgd --epsilon 4 --delta 1e-5 --admit north --admit south --admit east
    tacit collaborate join --server 127.0.0.1:8470 --keys keys --name north --model hospitals:build \
        --data north.csv --schema schema.json --epsilon 4 --epochs 40

The patients are made up: a mean for each disease, and noise.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tacit
import tacit.tables.schema
from tacit.collaboration import LocalDpSgd, join, serve
from tacit.collaboration.network import make_keys
from tacit.tables import load_dataset

DISEASES = ("influenza", "pneumonia", "sepsis", "angina", "infarction", "embolism")
TREATS = {"north": DISEASES[:3], "south": DISEASES[2:5], "east": (*DISEASES[4:], DISEASES[0])}
COLUMNS = {  # bounds, then the mean of each disease; nobody's records say them
    "age": (0, 110, (35, 60, 65, 62, 66, 55)),
    "temperature": (34, 42, (39.2, 38.9, 39.5, 36.8, 36.9, 37.3)),
    "crp": (0, 400, (25, 140, 220, 6, 25, 50)),
    "heart_rate": (30, 220, (95, 105, 125, 85, 95, 112)),
    "oxygen": (70, 100, (97, 90, 91, 97, 95, 88)),
    "systolic": (50, 250, (125, 120, 88, 145, 118, 110)),
    "troponin": (0, 60, (3, 5, 10, 9, 32, 14)),
    "d_dimer": (0, 20, (0.5, 2.0, 5.0, 0.5, 1.0, 9.0)),
}
SPREAD = 0.12  # of a column's range
EPSILON, DELTA, EPOCHS = 4.0, 1e-5, 40
PROTOCOL = "round-robin"


def build() -> nn.Module:
    """Return the network that all have agreed on."""
    return nn.Sequential(nn.Linear(len(COLUMNS) + 2, 32), nn.Tanh(), nn.Linear(32, len(DISEASES)))


def schema() -> dict[str, Any]:
    """Return the columns as all have declared them."""
    columns: dict[str, Any] = {
        name: {"type": "number", "low": low, "high": high} for name, (low, high, _) in COLUMNS.items()
    }
    columns["smoker"] = {"type": "category", "values": ["no", "yes"]}
    columns["diagnosis"] = {"type": "category", "values": list(DISEASES)}
    return {"target": "diagnosis", "columns": columns}


def write_table(path: Path, diseases: tuple[str, ...], rows: int, seed: int) -> None:
    """Write a table of made-up patients with these diseases."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "smoker", "diagnosis"])
        for which in rng.choice([DISEASES.index(name) for name in diseases], size=rows):
            values = [
                float(np.clip(rng.normal(means[which], SPREAD * (high - low)), low, high))
                for low, high, means in COLUMNS.values()
            ]
            smokes = "yes" if rng.random() < (0.5 if which in (1, 4) else 0.2) else "no"
            writer.writerow([*(f"{value:.1f}" for value in values), smokes, DISEASES[which]])


def accuracy(model: nn.Module, table: Path, columns: Path) -> float:
    """Return the accuracy on a table."""
    inputs, labels = load_dataset(table, columns).tensors
    model.eval()
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == labels).float().mean())


def alone(table: Path, columns: Path, epsilon: float | None) -> nn.Module:
    """Return the network that one hospital trains by itself, within the same budget or without any."""
    records, model = load_dataset(table, columns), build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if epsilon is None:
        inputs, labels = records.tensors
        for _ in range(400):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        return model
    budget = tacit.Budget(epsilon=epsilon, delta=DELTA)
    run = tacit.make_private(model, optimizer, records, lot_size=500, epochs=EPOCHS, clipping=1.0, budget=budget)
    for inputs, labels in run.batches():
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def together(out: Path, columns: Path) -> dict[str, Any]:
    """Return what each hospital leaves the collaboration with: over mutual TLS, on this machine."""
    make_keys(out / "keys", servers=["127.0.0.1"], participants=list(TREATS))
    stands: dict[str, Any] = {}
    text = json.dumps(tacit.tables.schema.Schema.load(columns).to_json())
    with serve(
        out / "server",
        network=build,
        keys=out / "keys",
        listen="127.0.0.1:0",
        admit=list(TREATS),
        schema=text,
        mechanism="dp-sgd",
        epsilon=EPSILON,
        delta=DELTA,
        upload=1.0,
        protocol=PROTOCOL,
    ) as server:

        def take_part(name: str) -> None:
            stands[name] = join(
                server.address,
                name=name,
                keys=out / "keys",
                folder=out / name,
                network=build,
                dataset=load_dataset(out / f"{name}.csv", columns),
                schema=text,
                privacy=LocalDpSgd(epsilon=EPSILON, delta=DELTA),
                epochs=EPOCHS,
            )

        threads = [threading.Thread(target=take_part, args=(name,)) for name in TREATS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return stands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/hospitals"))
    parser.add_argument("--rows", type=int, default=2000, help="of each hospital's table")
    arguments = parser.parse_args()
    logging.getLogger("tacit").setLevel(logging.ERROR)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    columns = out / "schema.json"
    columns.write_text(json.dumps(schema(), indent=2))
    for seed, (name, diseases) in enumerate(TREATS.items()):
        write_table(out / f"{name}.csv", diseases, arguments.rows, seed)
    write_table(out / "everybody.csv", DISEASES, 3000, 99)
    print("accuracy on patients with any of the six diseases:")
    for name in TREATS:
        free, private = (accuracy(alone(out / f"{name}.csv", columns, e), out / "everybody.csv", columns)
                         for e in (None, EPSILON))  # fmt: skip
        print(f"  {name} alone     {private:.3f} with ε = {EPSILON:g}, {free:.3f} without noise")
    stands = together(out, columns)
    for name, stand in stands.items():
        found = accuracy(stand.model, out / "everybody.csv", columns)
        print(f"  {name} together  {found:.3f}; {stand.claim}")


if __name__ == "__main__":
    main()
