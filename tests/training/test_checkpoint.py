"""Checkpoints: everything comes back, nothing is unpickled, and no charge is lost."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import lr_scheduler

import tacit
from tacit.training import AdamBC, PrivateBatchNorm

OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.99)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adam bc": lambda p: AdamBC(p, lr=0.02),
}


class Tied(nn.Module):
    """Two names for one weight, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm, self.out = PrivateBatchNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(torch.tanh(self.second(torch.tanh(self.first(x))))))


@pytest.fixture(autouse=True)
def _nothing_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a checkpoint was pickled or unpickled")

    for module, name in ((torch, "load"), (torch, "save"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, refuse)


def flat(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): flat(item) for key, item in value.items()}
    return [flat(item) for item in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_state_comes_back(make: Any, train: Any, tmp_path: Path, name: str) -> None:
    ledger = tacit.Ledger()
    settings = {
        "clipping": tacit.Adaptive(initial=0.2, count_noise_std=9.0),
        "metrics": {"m": tacit.Metric(bound=1.0)},
        "ledger": ledger,
    }
    model = Tied()
    _, optimizer, run = make(model, OPTIMIZERS[name](model.parameters()), steps=3, **settings)

    def watched(run: Any) -> Any:
        def objective(x: Tensor, y: Tensor) -> Tensor:
            run.observe(m=torch.ones(len(x)))
            return F.cross_entropy(run.model(x), y)

        return objective

    train(run, watched(run))
    run.save(tmp_path / "point")
    torch.manual_seed(99)
    other = Tied()
    _, fresh, resumed = make(other, OPTIMIZERS[name](other.parameters()), steps=5, **settings)
    resumed.load(tmp_path / "point")
    assert flat(other.state_dict()) == flat(model.state_dict())
    assert other.second.weight is other.first.weight
    assert flat(fresh.state_dict()) == flat(optimizer.state_dict())
    assert isinstance(fresh.param_groups[0].get("betas", ()), tuple)
    assert resumed.clipping_state() == run.clipping_state() != {"clip_norms": {"gradients": 0.2}}
    assert (resumed.step, resumed.metrics) == (3, run.metrics)
    train(resumed, watched(resumed))
    assert resumed.step == 5 and len(ledger) == 5


SCHEDULERS: dict[str, Any] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], gamma=0.1),  # a Counter with whole numbers for keys
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 9),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=12),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),  # begins at infinity
    "chain": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_where_it_was(make: Any, silence: Any, tmp_path: Path, name: str) -> None:
    """Without noise and with everybody in the lot, stopping and resuming changes neither the rates nor the weights."""
    ledger = tacit.Ledger()

    def begin() -> tuple[Any, Any, Any]:
        torch.manual_seed(4)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
        run = make(model, optimizer, lot_size=60, steps=8, ledger=ledger)[2]
        return model, SCHEDULERS[name](optimizer), run

    def go(model: Any, scheduler: Any, run: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            for x, y in run.lot():
                F.cross_entropy(model(x), y).backward()
                run.optimizer.step()
                run.optimizer.zero_grad()
            scheduler.step(1.0) if name == "plateau" else scheduler.step()
            rates.append(run.optimizer.param_groups[0]["lr"])
        return rates

    whole = begin()
    rates = go(*whole, 8)
    assert len(set(rates)) > 2
    half = begin()
    assert go(*half, 4) == rates[:4]
    half[2].save(tmp_path / "point", scheduler=half[1])
    resumed = begin()
    resumed[2].load(tmp_path / "point", scheduler=resumed[1])
    assert flat(resumed[1].state_dict()) == flat(half[1].state_dict())
    assert go(*resumed, 4) == rates[4:]
    assert flat(resumed[0].state_dict()) == flat(whole[0].state_dict())


class Average:
    """The mean of the weights so far."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"count": 0, "mean": {}, "shape": (2, 3), "limit": -math.inf}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_tensors_and_odd_values_come_back_by_name(make: Any, train: Any, tmp_path: Path) -> None:
    _, _, run = make()
    train(run)
    average, other, fresh = Average(), Average(), Average()
    average.state.update(count=7, mean={"weight": torch.randn(3, 4), 5: torch.tensor(2.5, dtype=torch.float64)})
    run.save(tmp_path / "point", average=average, other=other)
    run.load(tmp_path / "point", average=fresh, other=Average())
    assert torch.equal(fresh.state["mean"]["weight"], average.state["mean"]["weight"])
    assert fresh.state["mean"][5].item() == 2.5 and fresh.state["mean"][5].dtype == torch.float64
    assert (fresh.state["count"], fresh.state["shape"], fresh.state["limit"]) == (7, (2, 3), -math.inf)


def test_the_same_names_must_be_given_to_load(make: Any, train: Any, tmp_path: Path) -> None:
    _, optimizer, run = make()
    train(run)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    run.save(tmp_path / "point", scheduler=scheduler)
    with pytest.raises(ValueError, match=r"point' was saved with the state of scheduler; load was given nothing\."):
        run.load(tmp_path / "point")
    run.save(tmp_path / "point")
    with pytest.raises(ValueError, match=r"with the state of nothing; load was given scheduler\."):
        run.load(tmp_path / "point", scheduler=scheduler)


@pytest.mark.parametrize("bad", [lambda: 0, {1, 2}, object(), nn.Linear(1, 1)])
def test_saving_an_unsupported_object_is_refused_and_keeps_the_old_checkpoint(
    make: Any, tmp_path: Path, bad: Any
) -> None:
    _, _, run = make()
    run.save(tmp_path / "point")
    average = Average()
    average.state["mean"] = {"inner": [bad]}
    with pytest.raises(ValueError, match=r"average/mean/inner/0 is a .*; a checkpoint holds numbers"):
        run.save(tmp_path / "point", average=average)
    run.load(tmp_path / "point")


@pytest.mark.parametrize("damage", ['{"tensor": "gone"}', '{"call": "x"}', '{"dict": 3}', '{"float": "x"}', "{}"])
def test_damaged_state_is_one_sentence(make: Any, train: Any, tmp_path: Path, damage: str) -> None:
    _, _, run = make()
    train(run)
    run.save(tmp_path / "point", average=Average())
    file = tmp_path / "point" / "run.json"
    facts = json.loads(file.read_text())
    facts["others"]["average"] = json.loads(damage)
    file.write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=r"point' does not fit this run.*\.$") as caught:
        run.load(tmp_path / "point", average=Average())
    assert "\n" not in str(caught.value)


def test_a_resumed_step_is_the_step_it_would_have_been(make: Any, train: Any, silence: Any, tmp_path: Path) -> None:
    """Without noise and with everybody in the lot, stopping and resuming changes nothing."""
    ends = []
    for stops in (False, True):
        torch.manual_seed(4)
        model = Tied()
        settings = {"lot_size": 60, "clipping": tacit.Adaptive(initial=0.2, count_noise_std=9.0)}
        _, _, run = make(model, torch.optim.Adam(model.parameters(), lr=0.05), steps=3 if stops else 6, **settings)
        train(run)
        if stops:
            run.save(tmp_path / "point")
            model = Tied()
            _, _, run = make(
                model, torch.optim.Adam(model.parameters(), lr=0.05), steps=6, ledger=run.ledger, **settings
            )
            run.load(tmp_path / "point")
            train(run)
        ends.append(flat(model.state_dict()))
    assert ends[0] == ends[1]


def test_a_resumed_run_keeps_the_noise_that_was_solved_for(make: Any, train: Any, tmp_path: Path) -> None:
    path, budget = tmp_path / "ledger.jsonl", tacit.Budget(3.0, 1e-5)
    model, optimizer, run = make(budget=budget, steps=20, ledger=path)
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if run.step == 12:
            run.save(tmp_path / "point")
        if run.step == 14:
            break
    first = run.noise_multiplier
    run.ledger.close()
    _, _, resumed = make(budget=budget, steps=20, ledger=path)
    resumed.load(tmp_path / "point")
    assert resumed.noise_multiplier == pytest.approx(first, rel=1e-12)
    train(resumed)
    # Two steps are charged twice, so the last two of the plan no longer fit.
    assert len(resumed.ledger) == 20 and resumed.step == 18
    assert 3.0 * 0.995 < resumed.guarantee().epsilon <= 3.0


@pytest.mark.parametrize("seed", [None, 7])
def test_noise_and_lots_are_never_replayed(make: Any, train: Any, lots: Any, tmp_path: Path, seed: int | None) -> None:
    ledger = tacit.Ledger(tacit.ledger.Header(secure_randomness=seed is None))
    model, _, run = make(seed=seed, ledger=ledger, steps=1)
    before = lots(run)
    run.save(tmp_path / "point")
    start = model.weight.detach().clone()
    train(run, lambda x, y: (0 * model(x)).sum())
    ends = [model.weight.detach() - start]
    for _ in range(3):
        model, _, again = make(seed=seed, ledger=ledger, steps=1)
        after = lots(again)
        again.load(tmp_path / "point")
        assert torch.equal(model.weight, start)
        train(again, lambda x, y, m=model: (0 * m(x)).sum())
        ends.append(model.weight.detach() - start)
        assert before[0].tolist() != after[0].tolist()
    assert all(not torch.equal(a, b) for i, a in enumerate(ends) for b in ends[:i])
    assert len(ledger) == 4


def test_the_ledger_must_be_the_one_it_belongs_to(make: Any, train: Any, tmp_path: Path) -> None:
    _, _, run = make(steps=3)
    train(run)
    run.save(tmp_path / "point")
    _, _, other = make(steps=3)
    with pytest.raises(ValueError, match="after 3 recorded steps but the ledger has 0; continue with the ledger"):
        other.load(tmp_path / "point")


def test_saving_and_loading_happen_between_lots(make: Any, tmp_path: Path) -> None:
    model, optimizer, run = make(lot_size=60, batch_size=30, steps=1)
    for number, (x, y) in enumerate(run.batches()):
        with pytest.raises(RuntimeError, match="save or load between lots"):
            run.save(tmp_path / "point")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number == 0:
            with pytest.raises(RuntimeError, match="save or load between lots"):
                run.load(tmp_path / "point")
    run.save(tmp_path / "point")
    assert (tmp_path / "point" / "run.json").exists()


def test_files_are_safetensors_and_json(make: Any, train: Any, tmp_path: Path) -> None:
    _, _, run = make()
    train(run)
    run.save(tmp_path / "point")
    assert {file.name for file in (tmp_path / "point").iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "run.json",
    }
    facts = json.loads((tmp_path / "point" / "run.json").read_text())
    assert facts["step"] == 4 and facts["ledger"] == {"steps": 4, "digest": run.ledger.digest}
    assert "seed" not in json.dumps(facts) and "key" not in json.dumps(facts)


def corrupt(text: str, how: str) -> str:
    facts = json.loads(text)
    if how == "cut":
        return text[: len(text) // 2]
    if how == "list":
        return "[1, 2]"
    if how == "empty":
        return ""
    key, value = how.split("=", 1)
    if value == "gone":
        del facts[key]
    else:
        facts[key] = json.loads(value)
    return json.dumps(facts)


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "list",
        "empty",
        "step=-1",
        "step=true",
        'step="3"',
        "format=2",
        "ledger=gone",
        'ledger={"steps": -5}',
        "optimizer=gone",
        'optimizer={"state": {}, "groups": []}',
        'optimizer={"state": [], "groups": 3}',
        "sampler=gone",
        'sampler={"sampler": "shuffled", "records": 60, "draws": 1}',
        'sampler={"sampler": "poisson", "records": 61, "draws": 1}',
        "others=gone",
        "others=3",
        'others={"scheduler": {"dict": []}}',
        "clipping=gone",
        'clipping={"clip_norms": {"gradients": -1}}',
        'clipping={"clip_norms": {"others": 1.0}}',
        'clipping={"clip_norms": 3}',
        "clipping={}",
        "metrics=3",
        "noise_multiplier=-2",
        'noise_multiplier="x"',
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(make: Any, train: Any, tmp_path: Path, how: str) -> None:
    ledger = tacit.Ledger()
    clipping = tacit.Adaptive(count_noise_std=9.0)
    _, _, run = make(ledger=ledger, clipping=clipping, budget=tacit.Budget(50.0, 1e-5), accountant="rdp")
    train(run)
    run.save(tmp_path / "point")
    file = tmp_path / "point" / "run.json"
    file.write_text(corrupt(file.read_text(), how))
    _, _, other = make(ledger=ledger, clipping=clipping, budget=tacit.Budget(99.0, 1e-5), accountant="rdp")
    with pytest.raises(ValueError, match=r"point.*\.$") as caught:
        other.load(tmp_path / "point")
    assert "\n" not in str(caught.value)
    assert other.step in (0, 4)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("how", ["cut", "gone", "foreign"])
def test_damaged_tensors_are_one_sentence(make: Any, train: Any, tmp_path: Path, file: str, how: str) -> None:
    _, _, run = make(nn.Sequential(nn.Linear(4, 3)))
    train(run)
    run.save(tmp_path / "point")
    target = tmp_path / "point" / file
    if how == "cut":
        target.write_bytes(target.read_bytes()[:-3])
    elif how == "gone":
        target.unlink()
    else:
        target.write_bytes(b"\x80\x04K\x01.")  # a pickle
    other = make(nn.Sequential(nn.Linear(4, 3)), ledger=run.ledger)[2]
    with pytest.raises(ValueError, match=r"point.*\.$") as caught:
        other.load(tmp_path / "point")
    assert "\n" not in str(caught.value)


def test_no_checkpoint_at_all(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        make()[2].load(tmp_path / "nothing")


def test_a_checkpoint_of_another_model_is_refused(make: Any, train: Any, tmp_path: Path) -> None:
    _, _, run = make()
    train(run)
    run.save(tmp_path / "point")
    other = make(nn.Sequential(nn.Linear(4, 3)), ledger=run.ledger)[2]
    with pytest.raises(ValueError, match="does not fit this run"):
        other.load(tmp_path / "point")


def test_a_crash_at_any_moment_of_saving_leaves_a_checkpoint(
    make: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before each of its operations on files in turn, a save leaves the old or the new checkpoint."""
    import os
    import shutil

    from tacit.training import checkpoint

    class Killed(BaseException):
        pass

    _, _, run = make(steps=200)
    target = tmp_path / "point"
    run.save(target)

    def save(operations: int) -> bool:
        """Save, killed after so many operations on files; whether it came to the end."""
        left = operations

        def counted(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for owner, name in ((checkpoint, "save_file"), (checkpoint, "sync"), (shutil, "rmtree")):
                patch.setattr(owner, name, counted(getattr(owner, name)))
            for name in ("rename", "write_text", "mkdir"):
                patch.setattr(Path, name, counted(getattr(Path, name)))
            try:
                run.save(target)
            except Killed:
                return False
            return True

    last = next(count for count in range(100) if save(count))
    assert last > 8
    for first in range(last):
        for second in range(last):
            assert not save(first)
            save(second)
            run.load(target)
    assert save(100)
    assert os.listdir(tmp_path) == ["point"]


def test_a_closed_run_lets_go_of_the_ledger_that_it_opened_by_its_path(make: Any, train: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    make(steps=2, ledger=path)[2].close()
    make(steps=2, ledger=path)[2].close()  # with the first still open: LedgerUnavailable
    shared = tacit.Ledger.open(path)
    for _ in range(2):
        run = make(steps=2, ledger=shared)[2]
        train(run)
        run.close()
    assert len(shared) == 4


def test_the_file_of_a_model_names_the_ledger_it_was_paid_from(make: Any, train: Any, tmp_path: Path) -> None:
    _, _, run = make(steps=2)
    train(run)
    run.save(tmp_path / "point")
    with safe_open(tmp_path / "point" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"tacit.ledger.digest": run.ledger.digest, "tacit.ledger.steps": "2"}
