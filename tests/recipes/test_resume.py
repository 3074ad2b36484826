"""Runs that are interrupted and resumed: nothing is forgotten, and nothing is paid for twice without need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.accounting import account
from tacit.data import Images
from tacit.features import Pca
from tacit.ledger import Budget, Ledger
from tacit.recipes import Moment, Recipe, job, train
from tacit.recipes.folder import next_free

Make = Callable[..., Recipe]
BUDGET = Budget(epsilon=3.0, delta=1e-5)


def stop_at(step: int) -> Callable[[Moment], None]:
    """Presses Ctrl-C when the run gets there."""

    def press(moment: Moment) -> None:
        if moment.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return press


def counts(out: Path) -> list[int]:
    return [count for _, count in Ledger.load(out / "ledger.jsonl").entries]


def test_after_ctrl_c_a_run_goes_on_where_it_was(images: Images, recipe: Make, tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), images, budget=BUDGET, out=tmp_path, progress=stop_at(30))
    assert counts(tmp_path) == [1, 30]
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["finished"] is False and facts["history"][-1]["step"] == 30
    with pytest.raises(ValueError, match="was not finished; resume it"):
        train(recipe(), images, budget=BUDGET, out=tmp_path)
    seen: list[Moment] = []
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True, progress=seen.append)
    assert counts(tmp_path) == [1, 80]  # not one step more than a run in one go
    assert outcome.steps == 80 and outcome.test_accuracy > 0.8
    assert next(moment.step for moment in seen if moment.step) == 32
    facts = json.loads((tmp_path / "run.json").read_text())
    assert [point["step"] for point in facts["history"]] == list(range(2, 81, 2))
    assert not (tmp_path / "work").exists()
    assert signal.getsignal(signal.SIGINT) == handler


def test_steps_after_the_last_point_stay_charged(images: Images, recipe: Make, tmp_path: Path) -> None:
    def crash(moment: Moment) -> None:
        if moment.step == 40:
            raise RuntimeError("the machine is gone")

    with pytest.raises(KeyboardInterrupt):
        train(recipe(), images, budget=BUDGET, out=tmp_path, progress=stop_at(20))
    with pytest.raises(RuntimeError, match="gone"):
        train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True, progress=crash)
    assert counts(tmp_path) == [1, 40]
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True)
    assert outcome.guarantee.epsilon <= 3.0
    assert sum(counts(tmp_path)) == 1 + 20 + outcome.steps  # steps 21 to 40 were paid for twice, and counted twice
    assert outcome.steps < 80
    steps = [point["step"] for point in json.loads((tmp_path / "run.json").read_text())["history"]]
    assert steps == sorted(set(steps))


def test_a_front_whose_result_was_lost_is_paid_for_again(
    images: Images, recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(job, "write_tensors", gone)
    with pytest.raises(OSError, match="disk full"):
        train(recipe(), images, budget=BUDGET, out=tmp_path)
    monkeypatch.undo()
    assert counts(tmp_path) == [1]
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True)
    assert counts(tmp_path)[0] == 2
    assert account(Ledger.load(tmp_path / "ledger.jsonl"), delta=1e-5).epsilon == outcome.guarantee.epsilon <= 3.0


def test_a_resumed_run_does_not_fit_the_front_again(images: Images, recipe: Make, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), images, budget=BUDGET, out=tmp_path, progress=lambda m: _interrupt(m.stage == "features"))
    assert counts(tmp_path) == [1]
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True)
    assert counts(tmp_path) == [1, 80] and outcome.steps == 80


def _interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"recipe": {"epochs": 9}}, "recipe"),
        ({"recipe": {"front": Pca(dimensions=6, noise_multiplier=21.0)}}, "recipe"),
        ({"budget": Budget(epsilon=4.0, delta=1e-5)}, "budget"),
        ({"seed": 1}, "seed"),
        ({"accountant": "rdp"}, "accountant"),
        ({"images": {"fingerprint": "1" * 64}}, "dataset"),
    ],
)
def test_only_the_same_run_can_be_resumed(
    images: Images, recipe: Make, tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), images, budget=BUDGET, out=tmp_path, progress=lambda m: _interrupt(True))
    settings: dict[str, Any] = {"budget": BUDGET, "out": tmp_path, "resume": True} | change
    other, data = recipe(**settings.pop("recipe", {})), replace(images, **settings.pop("images", {}))
    with pytest.raises(ValueError, match=f"begun with another {name}; resume it with the same"):
        train(other, data, **settings)


def test_there_must_be_something_to_resume(images: Images, recipe: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run to resume in"):
        train(recipe(), images, budget=BUDGET, out=tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True)


def test_the_next_free_name(tmp_path: Path) -> None:
    assert next_free(tmp_path / "runs", "mnist") == tmp_path / "runs/mnist"
    for name in ("mnist", "mnist-2"):
        (tmp_path / name).mkdir()
    assert next_free(tmp_path, "mnist") == tmp_path / "mnist-3"
    assert next_free(tmp_path, "a/b c") == tmp_path / "a-b-c"


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from conftest import made_up
from tacit.features import Pca
from tacit.ledger import Budget
from tacit.mechanisms import Flat
from tacit.recipes import Mlp, Recipe, Sgd, Tail, train

torch.set_num_threads(1)
recipe = Recipe(
    name="long", front=Pca(dimensions=6, noise_multiplier=20.0), model=Mlp(hidden=(16,)), lot_size=60, epochs=24,
    clipping=Flat(1.0), optimizer=Sgd(learning_rate=0.5), averaging=Tail(fraction=0.25), loss_bound=None,
)
train(
    recipe, made_up(), budget=Budget(epsilon=3.0, delta=1e-5), out=sys.argv[2], resume="resume" in sys.argv,
    save_every=0.1,
)
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    """SIGKILL, early and late: nothing charged is forgotten, and the budget holds."""
    out = tmp_path / "run"
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(out)]
    charged, points = 0, []
    for wanted in (5, 60):
        with subprocess.Popen(command + (["resume"] if charged else [])) as process:
            deadline = time.monotonic() + 120
            while length(out) < max(wanted, charged + 1) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert process.poll() is None, "the run ended before it was killed"
            process.kill()
        assert length(out) >= charged
        charged = length(out)
        points.append((out / "work/checkpoint/run.json").exists())
    assert any(points)
    subprocess.run([*command, "resume"], check=True)
    facts = json.loads((out / "run.json").read_text())
    assert facts["finished"] is True
    assert length(out) >= charged
    ledger = Ledger.load(out / "ledger.jsonl")
    assert ledger.entries[0][1] == 1  # the components were learned once
    assert length(out) >= 1 + facts["result"]["steps"]
    assert account(ledger, delta=1e-5).epsilon == facts["result"]["epsilon"] <= 3.0
    assert facts["result"]["steps"] > 60 and facts["result"]["test_accuracy"] > 0.7
    history = [point["step"] for point in facts["history"]]
    assert history == sorted(set(history))


def length(out: Path) -> int:
    ledger = out / "ledger.jsonl"
    return len(Ledger.load(ledger)) if ledger.exists() and ledger.stat().st_size else 0


def test_a_run_whose_ledger_is_gone_is_not_resumed(images: Images, recipe: Make, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), images, budget=BUDGET, out=tmp_path, progress=stop_at(30))
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="is missing"):
        train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_front_that_the_ledger_does_not_list_is_not_used(images: Images, recipe: Make, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), images, budget=BUDGET, out=tmp_path, progress=stop_at(30))
    header = Ledger.load(tmp_path / "ledger.jsonl").header
    (tmp_path / "ledger.jsonl").unlink()
    Ledger.open(tmp_path / "ledger.jsonl", header).close()
    with pytest.raises(ValueError, match="does not list it"):
        train(recipe(), images, budget=BUDGET, out=tmp_path, resume=True)
