"""A run as `tacit train` leaves it, made by really training a little, and ledgers of every other kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import Everyone, GaussianSum, Header, Ledger, Step
from tacit.ledger.contents import Contents, counter_line
from tacit.randomness import SecureSource, SeededSource


def _blobs(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(count) % 3
    return 2 * torch.eye(6)[:3][y] + 0.7 * torch.randn(count, 6, generator=generator), y


def train(directory: Path, *, steps: int = 30, seed: int | None = None) -> Path:
    """Release a noisy second moment of everyone, then train on three of its directions, all on one ledger."""
    directory.mkdir(parents=True, exist_ok=True)
    x, y = _blobs(900)
    test_x, test_y = _blobs(300)
    header = Header(secure_randomness=seed is None, purpose="test of the report")
    with Ledger.open(directory / "ledger.jsonl", header) as ledger:
        source = SecureSource() if seed is None else SeededSource(seed)
        query = tacit.SumQuery(group="pca", clip_norm=1.0, noise_std=8.0)
        receipt = ledger.record(Step(Everyone(), (query.event(),)))
        rows = F.normalize(x, dim=1)
        moments = query.release(receipt, (rows.T @ rows).to(torch.float64), source)
        directions = torch.linalg.eigh((moments + moments.T) / 2).eigenvectors[:, -3:].float()
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        run = tacit.make_private(
            model,
            optimizer,
            TensorDataset(x @ directions, y),
            lot_size=90,
            steps=steps,
            clipping=tacit.Flat(0.5),
            noise_multiplier=1.5,
            metrics={"loss": tacit.Metric(bound=3.0)},
            ledger=ledger,
            seed=seed,
            trial=False,
        )
        history = []
        for bx, by in run.batches():
            values = F.cross_entropy(model(bx), by, reduction="none")
            values.mean().backward()
            run.observe(loss=values)
            optimizer.step()
            optimizer.zero_grad()
            if run.step % 3 == 0:
                history.append(_entry(run, model, test_x @ directions, test_y))
        found = run.guarantee(1e-5)
        run.close()
    facts = {
        "format": 1,
        "versions": {"tacit": tacit.__version__, "torch": torch.__version__, "python": "3.11"},
        "finished": True,
        "started": "2026-11-16T01:00:00+00:00",
        "seconds": 1.25,
        "dataset": {
            "name": "blobs",
            "records": 900,
            "test_records": 300,
            "classes": 3,
            "fingerprint": "ab" * 32,
            "source": "drawn by the test",
        },
        "recipe": {
            "name": "linear",
            "front": {"kind": "Pca", "dimensions": 3, "noise_multiplier": 8.0},
            "clipping": {"kind": "Flat", "clip_norm": 0.5},
            "lot_size": 90,
        },
        "budget": {"epsilon": 10.0, "delta": 1e-5},
        "seed": seed,
        "history": history,
        "result": {
            "test_accuracy": history[-1]["metrics"]["test_accuracy"]["value"],
            "epsilon": found.epsilon,
            "delta": 1e-5,
            "steps": steps,
            "noise_multiplier": 1.5,
            "seconds": 1.25,
        },
        "notes": ["made by tests/reports"],
    }
    (directory / "run.json").write_text(json.dumps(facts))
    return directory


def _entry(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    with torch.no_grad():
        right = float((model(x).argmax(dim=1) == y).double().mean())
    note = "computed on the public test set"
    return {
        "step": run.step,
        "epoch": run.step / 10,
        "epsilon": run.guarantee(1e-5).epsilon,
        "noise_multiplier": 1.5,
        "clip_norm": 0.5,
        "learning_rate": 0.5,
        "metrics": {
            "loss": {"value": run.metrics["loss"], "private": True},
            "test_accuracy": {"value": right, "private": False, "note": note},
        },
    }


@pytest.fixture
def whole() -> None:
    """For tests that need charts with all their points."""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts of two points; the claim is computed as ever."""
    if "whole" not in request.fixturenames:
        monkeypatch.setattr("tacit.reports.findings._points", lambda composition, most: 2)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    return train(tmp_path_factory.mktemp("runs") / "blobs")


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the finished run with some of run.json changed: ``copied(seed=3)``; None takes a name out."""

    def copy(**changes: Any) -> Path:
        directory = tmp_path / "run"
        directory.mkdir()
        (directory / "ledger.jsonl").write_bytes((trained / "ledger.jsonl").read_bytes())
        facts = json.loads((trained / "run.json").read_text()) | changes
        (directory / "run.json").write_text(json.dumps(facts))
        return directory

    return copy


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """A ledger file with the given steps and counts; large counts are written as the journal would have them."""

    def write(entries: Iterable[tuple[Step, int]], **header: Any) -> Path:
        start, contents = Contents.new(Header(**header))
        lines = []
        before = newest = contents.counter()
        for step, count in entries:
            lines.append(contents.add(step))
            contents.steps, contents.runs[-1] = contents.steps + count - 1, (step, count)
            same_line = counter_line(contents.steps - 1, contents.lines, contents.tail, contents.origin)[0]
            before, newest = (same_line if count > 1 else newest), contents.counter()
        counters = [newest, before] if contents.steps % 2 == 0 else [before, newest]
        path = tmp_path / "ledger.jsonl"
        path.write_bytes(b"".join([start[: contents.counters_at], *counters, *lines]))
        return path

    return write


def gaussian(noise: float = 4.0, sampling: Any = None, group: str = "gradients", unit: str = "example") -> Step:
    return Step(sampling or Everyone(unit=unit), (GaussianSum(group=group, clip_norm=2.0, noise_std=2.0 * noise),))
