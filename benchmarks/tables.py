"""Private models of tables: the rule against tuned settings, and against diffprivlib at equal ε.

    python benchmarks/tables.py [--seeds 5] [--write]

Settings of the tuned run are chosen on the *test* part, which flatters it: the rule must come close all the same.
diffprivlib needs an older scikit-learn, so it gets an environment of its own, made in a temporary directory. Its
LogisticRegression has pure ε-DP (δ = 0), a stronger promise than ours at the same ε; it needs a bound on the rows'
norm, which is declared: the square root of the number of columns.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np
import torch

from tacit.ledger import Budget, Header, Ledger
from tacit.tables.encoding import Encoding
from tacit.tables.known import known
from tacit.tables.reading import Columns, from_columns
from tacit.tables.records import encode
from tacit.tables.rule import Settings
from tacit.tables.schema import Schema
from tacit.tables.training import train_table

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
MARK = "<!-- measured -->"
DELTA = 1e-5

Parts = tuple[Columns, Columns]


def tables(seed: int) -> dict[str, tuple[Parts, Schema]]:
    """Four tasks: two that are usual, two more targets of the census."""
    adult, adult_schema = known("adult")
    pums, pums_schema = known("pums")
    found: dict[str, tuple[Parts, Schema]] = {}
    assert adult.test is not None
    found["adult: income"] = ((adult.train, adult.test), adult_schema)
    count = len(pums.train["employed"])
    order = np.random.default_rng(seed).permutation(count)
    first, second = (
        {name: values[rows] for name, values in pums.train.items()}
        for rows in (order[: count * 4 // 5], order[count * 4 // 5 :])
    )
    found["pums: employed"] = ((first, second), pums_schema)
    for target in ("married", "disability"):
        found[f"pums: {target}"] = ((first, second), replace(pums_schema, target=target))
    return found


def accuracy(
    parts: Parts, schema: Schema, epsilon: float, seed: int, chosen: Callable[[Settings, int], Settings] | None = None
) -> float:
    train, test = parts
    outcome = train_table(
        lambda: from_columns(train, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=DELTA),
        ledger=Ledger(Header(secure_randomness=False)),
        chosen=chosen,
        test=from_columns(test, schema.columns),
        seed=seed,
    )
    assert outcome.score is not None
    return outcome.score.value


def tuned(parts: Parts, schema: Schema, epsilon: float) -> float:
    """The best of a grid, chosen on the test part."""
    best = 0.0
    for share, steps, rate in product((8, 32), (150, 600), (0.5, 1.0, 3.0)):

        def chosen(
            rule: Settings, records: int, share: int = share, steps: int = steps, rate: float = rate
        ) -> Settings:
            return replace(rule, lot_size=records // share, steps=steps, learning_rate=rate)

        best = max(best, accuracy(parts, schema, epsilon, 0, chosen))
    return best


PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.filterwarnings("ignore")
data = np.load(sys.argv[1], allow_pickle=False)
scores = []
for seed in range(int(sys.argv[3])):
    model = LogisticRegression(epsilon=float(sys.argv[2]), data_norm=float(data["norm"]), C=float(sys.argv[4]),
                               random_state=seed, max_iter=1000)
    scores.append(float(model.fit(data["x"], data["y"]).score(data["xt"], data["yt"])))
print(json.dumps(scores))
"""


class Peer:
    """diffprivlib in an environment of its own."""

    def __init__(self, place: Path) -> None:
        venv.create(place, with_pip=True)
        self._python = place / "bin" / "python"
        wanted = ["diffprivlib==0.6.6", "scikit-learn==1.5.2"]
        subprocess.run([self._python, "-m", "pip", "install", "--quiet", *wanted], check=True, stdout=sys.stderr)

    def best(self, parts: Parts, schema: Schema, epsilon: float, seeds: int, place: Path) -> float:
        """Its mean accuracy with the best of three regularisations."""
        encoding = Encoding(schema)
        pairs = [encode(from_columns(part, schema.columns), encoding) for part in parts]
        arrays = [(encoding.expand(pair.inputs).numpy(), pair.targets.numpy().astype(int)) for pair in pairs]
        norm = np.sqrt(len(schema.features))
        np.savez(place / "table.npz", x=arrays[0][0], y=arrays[0][1], xt=arrays[1][0], yt=arrays[1][1], norm=norm)
        means = []
        for strength in (0.01, 0.1, 1.0):
            command = [self._python, "-c", PEER, place / "table.npz", str(epsilon), str(seeds), str(strength)]
            means.append(statistics.mean(json.loads(subprocess.run(command, check=True, capture_output=True).stdout)))
        return max(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/tables.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| table | ε | the rule | tuned on the test part | diffprivlib, best C |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as directory:
        peer = Peer(Path(directory) / "venv")
        for name, (parts, schema) in tables(0).items():
            for epsilon in (0.5, 1.0):
                ours = [accuracy(parts, schema, epsilon, seed) for seed in range(arguments.seeds)]
                mean, spread = statistics.mean(ours), statistics.pstdev(ours)
                best, other = (
                    tuned(parts, schema, epsilon),
                    peer.best(parts, schema, epsilon, arguments.seeds, Path(directory)),
                )
                figures = f"{100 * mean:.2f} ± {100 * spread:.2f} | {100 * best:.2f} | {100 * other:.2f}"
                lines.append(f"| {name} | {epsilon:g} | {figures} |")
                print(lines[-1], flush=True)
    facts = (
        f"Mean of {arguments.seeds} seeds, test accuracy in %, δ = {DELTA:g}; "
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, diffprivlib 0.6.6."
    )
    text = "\n".join([facts, "", *lines])
    print(text)
    if arguments.write:
        before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
        PAGE.write_text(f"{before}{MARK}\n{text}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
