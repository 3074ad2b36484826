"""Private models of tables: the targets, the rule against tuned settings, and against diffprivlib at equal ε.

    python benchmarks/tables.py [--seeds 5] [--pairs 20] [--state runs/tables] [--write]

Each seed has its own noise and, where the table has no test part, its own split. Settings of the tuned run are chosen
from a grid on the *test* part of the first seed, which flatters it, and then used for all seeds. diffprivlib needs an
older scikit-learn, so it gets an environment of its own; its LogisticRegression has pure ε-DP (δ = 0), a stronger
promise than ours at the same ε, and it needs a bound on the rows' norm, which is declared: the square root of the
number of columns. It gets the same encoded rows and splits, and is shown as it comes (C = 1) and with the best of
three regularisations, chosen on the test parts of all seeds, which flatters it too. The comparison is paired: the
difference of each seed, its mean over ``--pairs`` seeds and the standard error of that mean.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from tacit.ledger import Budget, Header, Ledger
from tacit.tables.columns import Columns, Number
from tacit.tables.encoding import Encoding
from tacit.tables.known import known
from tacit.tables.reading import from_columns
from tacit.tables.records import encode
from tacit.tables.rule import Settings
from tacit.tables.schema import Schema
from tacit.tables.training import train_table

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
MARK = "<!-- measured -->"
DELTA = 1e-5
PEER_NEEDS = ("diffprivlib==0.6.6", "scikit-learn==1.5.2", "numpy==2.4.6", "scipy==1.17.1", "statsmodels==0.15.0")
GRID = tuple(product((8, 32), (150, 600), ((0.5, 1.0), (1.0, 1.0), (3.0, 1.0), (1.0, 2.0))))
"""One lot's share of the records, steps, learning rate and clip norm."""
STRENGTHS = (0.01, 0.1, 1.0)
EPSILONS = (0.5, 1.0)
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
T = TypeVar("T")
_known = cache(known)


class State:
    """Numbers that are known already, and the environment of the peer."""

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place, self._file = place, place / "numbers.json"
        self._known: dict[str, float] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def number(self, key: str, compute: Callable[[], float]) -> float:
        return self.several({key: None}, lambda _: [compute()])[0]

    def several(self, keys: Mapping[str, T], compute: Callable[[list[T]], list[float]]) -> list[float]:
        """The numbers of ``keys``; those that are not known are computed together, from what they stand for."""
        lacking = [key for key in keys if key not in self._known]
        if lacking:
            found = compute([keys[key] for key in lacking])
            self._known |= dict(zip(lacking, found, strict=True))
            self._file.write_text(json.dumps(self._known, indent=1))
            for key, value in zip(lacking, found, strict=True):
                print(f"{key}: {100 * value:.2f}", file=sys.stderr, flush=True)
        return [self._known[key] for key in keys]

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
directory, epsilon, *wanted = sys.argv[1:]
for one in wanted:
    seed, strength = one.split(":")
    data = np.load(f"{directory}/{seed}.npz", allow_pickle=False)
    model = LogisticRegression(epsilon=float(epsilon), data_norm=float(data["norm"]), C=float(strength),
                               random_state=int(seed), max_iter=1000)
    print(float(model.fit(data["x"], data["y"]).score(data["xt"], data["yt"])))
"""
"""Accuracy for every pair of a seed and a strength, a line each."""


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
    return torch.from_numpy(encoding.expand(rows.numpy())), targets


def tuned(name: str, epsilon: float, seeds: int, state: State) -> list[float]:
    """The best settings of the grid on the first seed's test part, used for all seeds."""

    def score(settings: tuple[int, int, tuple[float, float]], seed: int) -> float:
        share, steps, (rate, clip) = settings

        def chosen(rule: Settings, records: int) -> Settings:
            return replace(rule, lot_size=records // share, steps=steps, learning_rate=rate, clip_norm=clip)

        key = f"1/{share} a lot, {steps} steps, rate {rate:g}, clip {clip:g}, {name}, {epsilon:g}, {seed}"
        return state.number(key, lambda: accuracy(name, epsilon, seed, state, chosen))

    best = max(GRID, key=lambda settings: score(settings, 0))
    return [score(best, seed) for seed in range(seeds)]


def peer(name: str, epsilon: float, seeds: int, state: State) -> dict[float, list[float]]:
    """diffprivlib's accuracies with each of its regularisations."""

    def scores(wanted: list[tuple[int, float]]) -> list[float]:
        with tempfile.TemporaryDirectory() as directory:
            for seed in {seed for seed, _ in wanted}:
                (train, test), schema = task(name, seed, state)
                encoding = Encoding(schema)
                (rows, classes), (held, truth) = (_whole(part, schema, encoding) for part in (train, test))
                arrays = {"x": rows.numpy(), "y": classes.numpy(), "xt": held.numpy(), "yt": truth.numpy()}
                np.savez(Path(directory) / f"{seed}.npz", norm=np.sqrt(len(schema.features)), **arrays)
            words = [f"{seed}:{strength}" for seed, strength in wanted]
            command = [state.python(), "-c", PEER, directory, str(epsilon), *words]
            return [float(line) for line in subprocess.check_output(command, text=True).split()]

    def keys(strength: float) -> dict[str, tuple[int, float]]:
        title = f"diffprivlib C={strength:g}, {name}, {epsilon:g}"
        return {f"{title}, {seed}": (seed, strength) for seed in range(seeds)}

    return {strength: state.several(keys(strength), scores) for strength in STRENGTHS}


def targets(seeds: int, state: State) -> Iterator[str]:
    yield "| task | ε | target | logistic regression | network | logistic regression, not private |"
    yield "|---|---|---|---|---|---|"
    for title, name, epsilon, wanted in TARGETS:
        reached = [_spread(by_rule(name, epsilon, seeds, state, model)) for model in MODELS]
        public = _spread(without_privacy(name, seeds, state))
        yield f"| {title} | {epsilon:g} | {wanted:.1f} | {' | '.join(reached)} | {public} |"


def against_tuned(seeds: int, state: State) -> Iterator[str]:
    yield "| task | records | ε | the rule | tuned |"
    yield "|---|---|---|---|---|"
    for name, epsilon in product(TASKS, EPSILONS):
        (train, _), schema = task(name, 0, state)
        rule, best = by_rule(name, epsilon, seeds, state), tuned(name, epsilon, seeds, state)
        yield f"| {name} | {len(train[schema.target])} | {epsilon:g} | {_spread(rule)} | {_spread(best)} |"


def comparison(pairs: int, state: State) -> Iterator[str]:
    yield "| task | ε | the rule | diffprivlib, C = 1 | difference | diffprivlib, best C | difference |"
    yield "|---|---|---|---|---|---|---|"
    for name, epsilon in product(TASKS, EPSILONS):
        ours, theirs = by_rule(name, epsilon, pairs, state), peer(name, epsilon, pairs, state)
        best = max(theirs, key=lambda strength: statistics.mean(theirs[strength]))
        cells = [f"{100 * statistics.mean(ours):.2f}"]
        for strength, note in ((1.0, ""), (best, f" ({best:g})")):
            cells += [f"{100 * statistics.mean(theirs[strength]):.2f}{note}", _difference(ours, theirs[strength])]
        yield f"| {name} | {epsilon:g} | {' | '.join(cells)} |"


def _difference(ours: list[float], theirs: list[float]) -> str:
    """The mean of the paired differences and its standard error."""
    each = [100 * (one - other) for one, other in zip(ours, theirs, strict=True)]
    return f"{statistics.mean(each):+.2f} ± {statistics.stdev(each) / len(each) ** 0.5:.2f}"


def _spread(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.pstdev(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20, help="seeds for the comparison with diffprivlib")
    parser.add_argument("--state", type=Path, help="directory to keep numbers in; left out: a temporary one")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/tables.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        state = State(arguments.state or Path(directory))
        where = (
            f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}, "
            f"torch {torch.__version__.partition('+')[0]}, {PEER_NEEDS[0].replace('==', ' ')}"
        )
        how = f"Test accuracy in %, mean and standard deviation of {arguments.seeds} seeds, δ = {DELTA:g}."
        paired = (
            f"Test accuracy in %, means of {arguments.pairs} seeds, and mean and standard error of the differences "
            f"seed by seed, δ = {DELTA:g} for the rule; {where}."
        )
        parts = (
            targets(arguments.seeds, state),
            against_tuned(arguments.seeds, state),
            comparison(arguments.pairs, state),
        )
        first, second, third = ("\n".join(part) for part in parts)
        text = "\n\n".join([first, second, how, third, paired])
    print(text)
    if arguments.write:
        before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
        PAGE.write_text(f"{before}{MARK}\n{text}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
