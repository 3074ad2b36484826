"""Accelerate needs no adapter: `make_private` before or after `prepare`, in one process or several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data

import tacit
from tacit.mechanisms import lattice
from tacit.sampling import PoissonSampler

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed (extra 'hf')")

ORDERS = ("before", "after", "with the loader", "inner")
Y = torch.arange(60) % 3
X = 2 * torch.eye(4)[Y] + 0.5 * torch.randn(60, 4, generator=torch.Generator().manual_seed(7))


def train(order: str, ledger: Any = None, **settings: Any) -> tuple[nn.Module, tacit.training.PrivateRun]:
    """Train with `make_private` and `prepare` in the given order."""
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = plain = nn.Linear(4, 3)
    optimizer = inner = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = data.DataLoader(data.TensorDataset(X, Y), batch_size=12, shuffle=True)
    parallel = tacit.Parallel() if accelerator.num_processes > 1 else None
    chosen = {"lot_size": 12, "batch_size": 5, "steps": 4, "clipping": 1.0, "noise_multiplier": 1.0, **settings}
    chosen |= {"ledger": ledger, "parallel": parallel}
    if order == "before":
        run = tacit.make_private(model, optimizer, loader, **chosen)
        model, optimizer = accelerator.prepare(model, optimizer)
    elif order == "after":
        model, optimizer = accelerator.prepare(model, optimizer)
        run = tacit.make_private(model, optimizer, loader, **chosen)
    else:
        optimizer, loader, model = accelerator.prepare(optimizer, loader, model)
        given = (plain, inner) if order == "inner" else (model, optimizer)
        run = tacit.make_private(*given, loader, **chosen)
    for epoch in run.epochs():
        for x, y in epoch:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
    run.close()
    return plain, run


def test_every_order_of_prepare_and_make_private_trains_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody in each lot, no noise."""
    monkeypatch.setattr(lattice, "add_gaussian_", lambda sums, source: list(sums))
    monkeypatch.setattr(PoissonSampler, "_choose", lambda sampler, rate: np.arange(sampler.records))
    ends = []
    for order in ORDERS:
        model, run = train(order)
        assert run.step == len(run.ledger) == 4 and run.abandoned == 0
        ends.append(model.weight.detach().clone())
    for end in ends[1:]:
        torch.testing.assert_close(ends[0], end, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("trial", [True, False])
def test_accumulation_by_accelerate_leaves_no_batch_out(trial: bool) -> None:
    """Accelerate scales the loss by a constant, which the trial learns; without it the scale must be declared."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(4, 3)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    people = data.TensorDataset(X, Y)
    run = tacit.make_private(
        model, optimizer, people, lot_size=30, steps=2, batch_size=5, clipping=1.0, noise_multiplier=1.0, trial=trial
    )
    taken: list[bool] = []

    def loop() -> None:
        for x, y in run.batches():
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                taken.append(not run.engine.ready)
                optimizer.zero_grad()

    if trial:
        loop()
        assert all(taken) and len(taken) > 6
    else:
        with pytest.raises(ValueError, match="gradient accumulation does so; a private loop has none"):
            loop()
    run.close()


@pytest.mark.slow
def test_accelerate_launch_trains_one_model_in_two_processes(tmp_path: Path) -> None:
    launch = Path(sys.executable).with_name("accelerate")
    settings = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(tacit.__file__).parents[1])])
    done = subprocess.run(
        [str(launch), "launch", *settings, "--dynamo_backend", "no", "--main_process_port", "0", __file__, tmp_path],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for order in ORDERS:
        first, second = (json.loads((tmp_path / f"{order}-{rank}.json").read_text()) for rank in (0, 1))
        assert first["weights"] == second["weights"] and first["step"] == second["step"] == 4
        assert first["charged"] == 4 and 0 < first["epsilon"] <= 3.0


def _in_each_process(directory: Path) -> None:
    torch.set_num_threads(1)
    budget = tacit.Budget(3.0, 1e-5)
    for order in ORDERS:
        model, run = train(order, directory / f"{order}.jsonl", noise_multiplier=None, budget=budget)
        facts = {"step": run.step, "charged": len(run.ledger), "epsilon": run.guarantee().epsilon}
        rank = accelerate.PartialState().process_index
        (directory / f"{order}-{rank}.json").write_text(json.dumps(facts | {"weights": model.weight.tolist()}))


if __name__ == "__main__":
    _in_each_process(Path(sys.argv[1]))
