"""Who is employed? A private classifier of census microdata (PUMS, Fulton County).

The task of the slides by Wang, Zou, Yan and Yang: predict `employed` from the other answers without exposing anybody.
Accuracy over ε, beside logistic regression without privacy, as a figure and as a table:

    python examples/census.py --out runs/census          # 5 repetitions, about two minutes on one core

The records are public-use microdata, so accuracy on held-out rows is shown exactly; with people's own data leave
`test` out and the score is released with noise and charged.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tacit.ledger import Budget, Header, Ledger
from tacit.recipes.outcome import versions
from tacit.tables.encoding import Encoding
from tacit.tables.known import known
from tacit.tables.model import TableModel
from tacit.tables.reading import Columns, from_columns
from tacit.tables.records import encode
from tacit.tables.schema import Schema
from tacit.tables.training import train_table

EPSILONS = (0.5, 1.0, 3.0, 8.0)
Results = dict[str, dict[float, list[float]]]
"""Of a model, at each ε, the test accuracy of each repetition."""


def split(columns: Columns, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Four fifths to train on and one fifth to test on."""
    count = len(next(iter(columns.values())))
    order = np.random.default_rng(seed).permutation(count)
    cut = count * 4 // 5
    return tuple({name: values[rows] for name, values in columns.items()} for rows in (order[:cut], order[cut:]))


def private(train: Columns, test: Columns, schema: Schema, epsilon: float, model: str) -> float:
    """Test accuracy of a model trained within (ε, 1e-5)."""
    outcome = train_table(
        lambda: from_columns(train, schema.columns),
        schema,
        budget=Budget(epsilon=epsilon, delta=1e-5),
        ledger=Ledger(Header(purpose="census example")),
        model=model,
        test=from_columns(test, schema.columns),
    )
    assert outcome.score is not None and outcome.guarantee.epsilon <= epsilon
    return outcome.score.value


def public(train: Columns, test: Columns, schema: Schema) -> float:
    """Test accuracy of logistic regression without privacy, to compare with."""
    import torch

    encoding = Encoding(schema)
    records = [encode(from_columns(part, schema.columns), encoding) for part in (train, test)]
    (rows, wanted), (held, truth) = (next(part.slices(len(part))) for part in records)
    model = TableModel.new("linear", schema)
    optimizer = torch.optim.LBFGS(model.network.parameters(), max_iter=100)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(model.outputs(rows), wanted)
        value.backward()
        return value

    optimizer.step(loss)
    return float((model.outputs(held).argmax(dim=1) == truth).float().mean())


def markdown(results: Results, baseline: list[float], majority: float) -> str:
    """The results as Markdown, with where and when they were measured."""
    lines = ["| model | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " | not private |"]
    lines.append("|---" * (len(EPSILONS) + 2) + "|")
    for name, points in results.items():
        public = spread(baseline) if name == "logistic regression" else ""
        lines.append(f"| {name} | " + " | ".join(map(spread, points.values())) + f" | {public} |")
    where = ", ".join([f"{datetime.now(UTC):%Y-%m-%d}", platform.machine(), *map(" ".join, versions().items())])
    how = f"Test accuracy in %, mean and standard deviation of {len(baseline)} new splits, δ = 1e-5"
    return "\n".join([*lines, "", f"{how}; the commoner answer: {100 * majority:.2f}. {where}.", ""])


def spread(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.pstdev(values):.2f}"


def draw(path: Path, results: Results, baseline: float, majority: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), constrained_layout=True)
    for name, points in results.items():
        means = [100 * statistics.mean(values) for values in points.values()]
        spread = [100 * statistics.pstdev(values) for values in points.values()]
        axes.errorbar(list(points), means, yerr=spread, marker="o", capsize=3, label=name)
    axes.axhline(100 * baseline, color="black", linestyle="--", label="logistic regression, not private")
    axes.axhline(100 * majority, color="grey", linestyle=":", label="everybody gets the commoner answer")
    axes.set(
        xscale="log", xlabel="ε (δ = 1e-5)", ylabel="test accuracy, %", title="Employed? Census 2000, Fulton County"
    )
    axes.minorticks_off()
    axes.set_xticks(list(EPSILONS), [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/census"))
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    table, schema = known("pums", fetch=True)
    parts = [split(table.train, seed) for seed in range(arguments.repetitions)]
    baseline = [public(*part, schema) for part in parts]
    employed = statistics.mean(float((test["employed"] == 1).mean()) for _, test in parts)
    majority = max(employed, 1 - employed)
    results: Results = {}
    for model, name in (("linear", "logistic regression"), ("mlp", "network with 32 hidden units")):
        results[name] = {epsilon: [private(*part, schema, epsilon, model) for part in parts] for epsilon in EPSILONS}
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(arguments.out / "census.png", results, statistics.mean(baseline), majority)
    text = markdown(results, baseline, majority)
    (arguments.out / "census.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"figure: {arguments.out / 'census.png'}")


if __name__ == "__main__":
    main()
