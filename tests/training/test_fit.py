"""fit in one call, what it logs and shows, and the statement."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit._version import __version__
from tacit.ledger import Everyone, Step
from tacit.mechanisms import LaplaceQuery, SparseVectorQuery
from tacit.training import JsonLines, PrivateRun, TensorBoard
from tacit.training.statement import statement

SETTINGS: dict[str, Any] = {"lot_size": 30, "clipping": tacit.Flat(1.0), "accountant": "rdp"}


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))


@pytest.mark.parametrize("progress", [False, True])
def test_fit_trains_and_prints_nothing_but_its_bar(
    data: TensorDataset, capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    model = nn.Linear(4, 3)
    run = tacit.fit(
        model,
        data,
        steps=40,
        budget=tacit.Budget(50.0, 1e-5),
        metrics={"loss": tacit.Metric(bound=3.0)},
        progress=progress,
        **SETTINGS,
    )
    x, y = data.tensors
    assert run.step == 40
    assert float((model(x).argmax(1) == y).float().mean()) > 0.8
    assert not model._forward_hooks  # the run is closed
    assert run.guarantee().epsilon <= 50.0
    out = capsys.readouterr()
    if progress:
        assert "40/40" in out.out + out.err and "of 50" in out.out + out.err and "loss" in out.out + out.err
    else:
        assert out.out + out.err == ""


def test_fit_logs_every_so_often_and_at_the_end(data: TensorDataset, tmp_path: Path) -> None:
    writer = Writer()
    run = tacit.fit(
        nn.Linear(4, 3),
        data,
        steps=25,
        noise_multiplier=1.0,
        metrics={"loss": tacit.Metric(bound=3.0)},
        loggers=[JsonLines(tmp_path / "log.jsonl"), TensorBoard(writer)],
        **SETTINGS,
    )
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 25]
    assert all(line["private"] and "loss" in line for line in lines)
    assert "epsilon" in lines[0] and "epsilon" in lines[-1]
    assert lines[-1]["epsilon"] == pytest.approx(run.guarantee(1e-5).epsilon)
    assert lines[-1]["loss"] == run.metrics["loss"]
    assert [name for name, _, _ in writer.scalars].count("private/loss") == 3
    assert [step for name, _, step in writer.scalars if name == "private/epsilon"] == [
        line["step"] for line in lines if "epsilon" in line
    ]


def test_accounting_takes_a_twentieth_of_the_time(
    data: TensorDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock where a step takes 0.1 and ε takes 1; what is logged is the ε of that very step."""
    clock, readings = [0.0], []
    account, take = PrivateRun.guarantee, PrivateRun._take

    def slow_account(run: PrivateRun, delta: float | None = None) -> Any:
        clock[0] += 1.0
        readings.append((run.step, account(run, delta).epsilon))
        return account(run, delta)

    def slow_step(run: PrivateRun, closure: Any) -> Any:
        clock[0] += 0.1
        return take(run, closure)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(PrivateRun, "guarantee", slow_account)
    monkeypatch.setattr(PrivateRun, "_take", slow_step)
    tacit.fit(
        nn.Linear(4, 3),
        data,
        steps=600,
        noise_multiplier=1.0,
        log_every=1,
        loggers=[JsonLines(tmp_path / "log.jsonl")],
        **SETTINGS,
    )
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 601))
    assert [(line["step"], line["epsilon"]) for line in lines if "epsilon" in line] == readings
    assert [step for step, _ in readings] == [1, 191, 381, 571, 600]


def test_fit_logs_the_last_step_that_the_budget_allowed(data: TensorDataset, tmp_path: Path) -> None:
    run = tacit.fit(
        nn.Linear(4, 3),
        data,
        steps=1000,
        noise_multiplier=2.0,
        budget=tacit.Budget(3.0, 1e-5),
        loggers=[JsonLines(tmp_path / "log.jsonl")],
        **SETTINGS,
    )
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == run.step < 1000
    assert "loss" not in lines[-1]  # a loss that was not declared is not shown


def test_a_seeded_fit_is_logged_as_not_private(data: TensorDataset) -> None:
    writer = Writer()
    tacit.fit(nn.Linear(4, 3), data, steps=10, noise_multiplier=1.0, seed=1, loggers=[TensorBoard(writer)], **SETTINGS)
    assert [name for name, _, _ in writer.scalars] == ["not_private/epsilon"]


@pytest.mark.parametrize(
    "loss", [F.cross_entropy, F.nll_loss, lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1)]
)
def test_fit_observes_the_loss_of_each_record(data: TensorDataset, silence: Any, loss: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = tacit.fit(
        model,
        data,
        optimizer=optimizer,
        loss=loss,
        steps=1,
        noise_multiplier=1.0,
        metrics={"loss": tacit.Metric(bound=100.0)},
        **{**SETTINGS, "lot_size": 60},
    )
    assert run.metrics["loss"] == pytest.approx(float(loss(model(data.tensors[0]), data.tensors[1])), rel=1e-4)


def test_fit_of_sequences(silence: Any) -> None:
    """A loss of many positions is averaged over them: one number a record."""

    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x).transpose(1, 2)

    x = torch.randint(0, 5, (20, 7))
    model = Letters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = tacit.fit(
        model,
        TensorDataset(x, x.roll(1, 1)),
        optimizer=optimizer,
        steps=1,
        noise_multiplier=1.0,
        metrics={"loss": tacit.Metric(bound=100.0)},
        **{**SETTINGS, "lot_size": 20},
    )
    assert run.metrics["loss"] == pytest.approx(float(F.cross_entropy(model(x), x.roll(1, 1))), rel=1e-4)


def test_a_failing_fit_closes_its_run(data: TensorDataset) -> None:
    model = nn.Linear(4, 2)  # too few classes
    with pytest.raises((IndexError, RuntimeError)):
        tacit.fit(model, data, steps=2, noise_multiplier=1.0, **SETTINGS)
    assert not model._forward_hooks


def test_the_library_logs_and_does_not_print(
    data: TensorDataset, make: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], train: Any
) -> None:
    with caplog.at_level(logging.INFO, logger="tacit"):
        _, _, run = make(budget=tacit.Budget(1.0, 1e-5), noise_multiplier=2.0, steps=1000, accountant="rdp")
        train(run)
    assert "1000 steps, noise multiplier 2 of a whole step" in caplog.text
    assert f"stopped after {run.step} of 1000 steps" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_the_statement_answers_the_checklists(make: Any, train: Any) -> None:
    """Ponomareva et al. 2023 and NIST SP 800-226, item by item."""
    _, _, run = make(steps=6, noise_multiplier=2.0, clipping=tacit.Flat(1.25), accountant="rdp")
    train(run)
    text = run.statement(1e-5)
    for item in (
        str(run.guarantee(1e-5)),  # the claim in one line
        "Central model",  # who is trusted, who sees what
        "Protected unit: one example",
        "neighbours if one has one example more",
        "all checkpoints",  # what is released
        "the 6 steps in the ledger",  # what accesses are covered
        "Not covered:",
        "hyperparameter search",
        "Tuning: charged if, and only if",
        "number of records, 60",
        "Accounting: rdp, sampling as carried out: Poisson",
        "Steps T: 6 with sampling rate q = 0.2",
        "Noise multiplier of a step (all its queries together): 2",
        "δ = 1e-05",
        "Group gradients: clip norm S 1.275, noise σ on the sum 2.55",
        "The curve, δ at ε",
        "An attacker who accuses 1 %",  # true positives at a false-positive rate
        "Audit: no audit",
        "Randomness: AES-256-CTR",
        "in floating point",
        f"tacit {__version__}",
        run.ledger.digest,
    ):
        assert item in text, item


def test_the_curve_of_the_statement_is_an_upper_bound(make: Any, train: Any) -> None:
    _, _, run = make(steps=6, noise_multiplier=2.0, accountant="rdp")
    train(run)
    line = next(line for line in run.statement(1e-5).splitlines() if line.startswith("The curve"))
    pairs = [pair.split(" at ") for pair in line.split(": ")[1].rstrip(".").split(", ")]
    assert len(pairs) == 5
    found = run.guarantee(1e-5)
    for delta, epsilon in pairs:
        assert float(delta) >= found.curve([float(epsilon)])[0]


@pytest.mark.slow
def test_the_statement_with_the_default_accountant(make: Any, train: Any) -> None:
    _, _, run = make(steps=6, noise_multiplier=2.0)
    train(run)
    assert "No accounting of these steps could give less than ε = " in run.statement(1e-5)


def test_the_statement_names_noise_that_is_not_gaussian() -> None:
    ledger = tacit.Ledger()
    sparse = SparseVectorQuery(group="upload", epsilon=1.8, releases=5, bound=1.0, threshold=0.1)
    laplace = LaplaceQuery(group="count", clip_norm=1.0, scale=4.0)
    ledger.record(Step(Everyone(), (sparse.event(),)))
    ledger.record(Step(Everyone(), (laplace.event(),)))
    text = statement(tacit.account(ledger, delta=1e-5, accountant="rdp"), ledger, records=100)
    assert "Group upload: sparse vector, 5 values or fewer and ε 1.01 a step." in text  # 1.0, rounded up
    assert "Group count: clip norm 1 (L1), Laplace noise of scale 4 on the sum." in text
    assert "Noise multiplier" not in text and "inf" not in text
