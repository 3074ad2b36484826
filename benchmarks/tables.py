"""Private models of tables: the targets, the rule against tuned settings, and against diffprivlib at equal ε.

    python benchmarks/tables.py [--seeds 5] [--state runs/tables] [--write]

Each seed has its own noise and, where the table has no test part, its own split. Settings of the tuned run are chosen
from a grid on the *test* part of the first seed, which flatters it, and then used for all seeds. diffprivlib needs an
older scikit-learn, so it gets an environment of its own; its LogisticRegression has pure ε-DP (δ = 0), a stronger
promise than ours at the same ε, and it needs a bound on the rows' norm, which is declared: the square root of the
number of columns. It gets the best of three regularisations, chosen on the test part too.

Every number is kept in the directory ``--state`` as soon as it is there: a benchmark that was broken off goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
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
from tacit.tables.schema import Number, Schema
from tacit.tables.training import train_table

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
MARK = "<!-- measured -->"
DELTA = 1e-5
PEER_NEEDS = ("diffprivlib==0.6.6", "scikit-learn==1.5.2", "numpy==2.4.6", "scipy==1.17.1", "statsmodels==0.15.0")
GRID = tuple(product((8, 32), (150, 600), (0.5, 1.0, 3.0)))
"""One lot's share of the records, steps, learning rate."""
STRENGTHS = (0.01, 0.1, 1.0)
TASKS = ("Adult: income", "PUMS: employed", "RAND HIE: saw a doctor", "Fair 1978: affair")
TARGETS = (
    ("Adult, declared bins", "Adult: income", 1.0, 86.0),
    ("Adult, no bins", "Adult without bins", 1.0, 84.6),
    ("PUMS", "PUMS: employed", 1.0, 74.6),
    ("PUMS", "PUMS: employed", 0.5, 74.4),
)
"""Title, task, ε, accuracy in %."""
MODELS = ("linear", "mlp")

YES = {"type": "category", "values": ["0", "1"]}
HEALTH = Schema.from_json(
    {
        "target": "visit",
        "columns": {
            "lncoins": {"type": "number", "low": 0, "high": 5},
            "idp": YES,
            "lpi": {"type": "number", "low": 0, "high": 8},
            "fmde": {"type": "number", "low": 0, "high": 9},
            "physlm": {"type": "number", "low": 0, "high": 1},
            "disea": {"type": "number", "low": 0, "high": 60, "bins": [3, 6, 9, 12, 15, 20, 30]},
            "hlthg": YES,
            "hlthf": YES,
            "hlthp": YES,
            "visit": YES,
        },
    }
)
MARRIAGE = Schema.from_json(
    {
        "target": "affair",
        "columns": {
            "rate_marriage": {"type": "category", "values": [1, 2, 3, 4, 5]},
            "age": {"type": "number", "low": 17, "high": 43},
            "yrs_married": {"type": "number", "low": 0, "high": 25, "bins": [1, 4, 8, 12, 20]},
            "children": {"type": "number", "low": 0, "high": 6},
            "religious": {"type": "category", "values": [1, 2, 3, 4]},
            "educ": {"type": "number", "low": 9, "high": 20},
            "occupation": {"type": "category", "values": [1, 2, 3, 4, 5, 6]},
            "occupation_husb": {"type": "category", "values": [1, 2, 3, 4, 5, 6]},
            "affair": YES,
        },
    }
)

Parts = tuple[Columns, Columns]
_known = cache(known)


class State:
    """Numbers that are known already, and the environment of the peer."""

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place, self._file = place, place / "numbers.json"
        self._known: dict[str, float] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def number(self, key: str, compute: Callable[[], float]) -> float:
        if key not in self._known:
            self._known[key] = compute()
            self._file.write_text(json.dumps(self._known, indent=1))
            print(f"{key}: {100 * self._known[key]:.2f}", file=sys.stderr, flush=True)
        return self._known[key]

    @cache  # noqa: B019 (one state a process)
    def python(self) -> Path:
        """The interpreter of an environment with diffprivlib, and with two data sets that come with statsmodels."""
        place = self.place / "peer"
        python, ready = place / "bin" / "python", place / "ready"
        if not ready.exists():
            venv.create(place, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER_NEEDS], check=True, stdout=sys.stderr)
            subprocess.run([python, "-c", EXPORT, self.place], check=True)
            ready.touch()
        return python


EXPORT = """
import sys
import statsmodels.api as sm
for name in ("randhie", "fair"):
    getattr(sm.datasets, name).load_pandas().data.to_csv(f"{sys.argv[1]}/{name}.csv", index=False)
"""

PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.filterwarnings("ignore")
data = np.load(sys.argv[1], allow_pickle=False)
model = LogisticRegression(epsilon=float(sys.argv[2]), data_norm=float(data["norm"]), C=float(sys.argv[3]),
                           random_state=int(sys.argv[4]), max_iter=1000)
print(float(model.fit(data["x"], data["y"]).score(data["xt"], data["yt"])))
"""


def task(name: str, seed: int, state: State) -> tuple[Parts, Schema]:
    """The training and the test part of a task, and its declared schema."""
    if name.startswith("Adult"):
        table, schema = _known("adult")
        assert table.test is not None
        return (table.train, table.test), schema if name == "Adult: income" else _without_bins(schema)
    if name.startswith("PUMS"):
        table, schema = _known("pums")
        return _split(table.train, seed), schema
    state.python()
    if name.startswith("RAND"):
        columns = _csv(state.place / "randhie.csv")
        columns["visit"] = (columns["mdvis"] > 0).astype(float)
        return _split(columns, seed), HEALTH
    columns = _csv(state.place / "fair.csv")
    columns["affair"] = (columns["affairs"] > 0).astype(float)
    return _split(columns, seed), MARRIAGE


def _split(columns: Columns, seed: int) -> Parts:
    count = len(next(iter(columns.values())))
    order = np.random.default_rng(seed).permutation(count)
    first, second = (
        {name: values[rows] for name, values in columns.items()}
        for rows in (order[: count * 4 // 5], order[count * 4 // 5 :])
    )
    return first, second


def _csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)
    return {name: np.array(column, dtype=float) for name, column in zip(names, zip(*rows))}


def _without_bins(schema: Schema) -> Schema:
    """Every number scaled between its bounds, the skewed ones too."""
    columns = {
        name: replace(column, bins=()) if isinstance(column, Number) else column
        for name, column in schema.columns.items()
    }
    return replace(schema, columns=columns)


def accuracy(
    name: str,
    epsilon: float,
    seed: int,
    state: State,
    chosen: Callable[[Settings, int], Settings] | None = None,
    *,
    model: str = "linear",
) -> float:
    (train, test), schema = task(name, seed, state)
    outcome = train_table(
        lambda: from_columns(train, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=DELTA),
        ledger=Ledger(Header(secure_randomness=False)),
        model=model,
        chosen=chosen,
        test=from_columns(test, schema.columns),
        seed=seed,
    )
    assert outcome.score is not None and outcome.guarantee.epsilon <= epsilon
    return outcome.score.value


def by_rule(name: str, epsilon: float, seeds: int, state: State, model: str = "linear") -> list[float]:
    def score(seed: int) -> float:
        return accuracy(name, epsilon, seed, state, model=model)

    return [state.number(f"{model}, {name}, {epsilon:g}, {seed}", partial(score, seed)) for seed in range(seeds)]


def without_privacy(name: str, seeds: int, state: State) -> list[float]:
    """Logistic regression on the same features, to compare with."""

    def score(seed: int) -> float:
        (train, test), schema = task(name, seed, state)
        encoding = Encoding(schema)
        (rows, wanted), (held, truth) = (_whole(part, schema, encoding) for part in (train, test))
        weights = torch.zeros(encoding.width + 1, len(schema.classes), requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=100)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(rows @ weights[1:] + weights[0], wanted)
            value.backward()
            return value

        optimizer.step(loss)
        return float(((held @ weights[1:] + weights[0]).argmax(dim=1) == truth).float().mean())

    return [state.number(f"not private, {name}, {seed}", partial(score, seed)) for seed in range(seeds)]


def _whole(part: Columns, schema: Schema, encoding: Encoding) -> tuple[torch.Tensor, torch.Tensor]:
    records = encode(from_columns(part, schema.columns), encoding)
    [(rows, targets)] = records.slices(len(records))
    return encoding.expand(rows), targets


def tuned(name: str, epsilon: float, seeds: int, state: State) -> list[float]:
    """The best settings of the grid on the first seed's test part, used for all seeds."""

    def score(settings: tuple[int, int, float], seed: int) -> float:
        share, steps, rate = settings

        def chosen(rule: Settings, records: int) -> Settings:
            return replace(rule, lot_size=records // share, steps=steps, learning_rate=rate)

        key = f"1/{share} a lot, {steps} steps, rate {rate:g}, {name}, {epsilon:g}, {seed}"
        return state.number(key, lambda: accuracy(name, epsilon, seed, state, chosen))

    best = max(GRID, key=lambda settings: score(settings, 0))
    return [score(best, seed) for seed in range(seeds)]


def peer(name: str, epsilon: float, seeds: int, state: State) -> float:
    """diffprivlib's mean accuracy with the best of its regularisations."""

    def score(strength: float, seed: int) -> float:
        (train, test), schema = task(name, seed, state)
        encoding = Encoding(schema)
        (rows, wanted), (held, truth) = (_whole(part, schema, encoding) for part in (train, test))
        arrays = {"x": rows.numpy(), "y": wanted.numpy(), "xt": held.numpy(), "yt": truth.numpy()}
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "table.npz"
            np.savez(file, norm=np.sqrt(len(schema.features)), **arrays)
            command = [state.python(), "-c", PEER, file, str(epsilon), str(strength), str(seed)]
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    means = []
    for strength in STRENGTHS:
        keys = {f"diffprivlib C={strength:g}, {name}, {epsilon:g}, {seed}": seed for seed in range(seeds)}
        means.append(statistics.mean(state.number(key, partial(score, strength, seed)) for key, seed in keys.items()))
    return max(means)


def targets(seeds: int, state: State) -> Iterator[str]:
    yield "| task | ε | target | logistic regression | network | logistic regression, not private |"
    yield "|---|---|---|---|---|---|"
    for title, name, epsilon, wanted in TARGETS:
        reached = [_spread(by_rule(name, epsilon, seeds, state, model)) for model in MODELS]
        public = _spread(without_privacy(name, seeds, state))
        yield f"| {title} | {epsilon:g} | {wanted:.1f} | {' | '.join(reached)} | {public} |"


def comparison(seeds: int, state: State) -> Iterator[str]:
    yield "| task | records | ε | the rule | tuned | diffprivlib |"
    yield "|---|---|---|---|---|---|"
    for name, epsilon in product(TASKS, (0.5, 1.0)):
        (train, _), schema = task(name, 0, state)
        rule, best = by_rule(name, epsilon, seeds, state), tuned(name, epsilon, seeds, state)
        records, other = len(train[schema.target]), peer(name, epsilon, seeds, state)
        yield f"| {name} | {records} | {epsilon:g} | {_spread(rule)} | {_spread(best)} | {100 * other:.2f} |"


def _spread(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.pstdev(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--state", type=Path, help="directory to keep numbers in; left out: a temporary one")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/tables.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        state = State(arguments.state or Path(directory))
        facts = (
            f"Test accuracy in %, mean and standard deviation of {arguments.seeds} seeds, δ = {DELTA:g}; "
            f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}, "
            f"torch {torch.__version__.partition('+')[0]}, diffprivlib 0.6.6."
        )
        text = "\n".join([*targets(arguments.seeds, state), "", *comparison(arguments.seeds, state), "", facts])
    print(text)
    if arguments.write:
        before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
        PAGE.write_text(f"{before}{MARK}\n{text}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
