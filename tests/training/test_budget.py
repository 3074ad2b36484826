"""The budget: the step that would overrun is not taken, and one budget can serve several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tacit
from tacit.ledger import GaussianSum, Poisson, Step


def admitted(records: int, lot: int, z: float, budget: tacit.Budget) -> int:
    """How many steps fit, counted one by one with the accountant."""
    step = Step(Poisson(rate=lot / records, records=records), (GaussianSum(group="g", clip_norm=1.0, noise_std=z),))
    ledger, count = tacit.Ledger(), 0
    while True:
        ledger.record(step)
        if tacit.account(ledger, delta=budget.delta).epsilon > budget.epsilon:
            return count
        count += 1


def test_exactly_the_steps_that_fit_are_taken(make: Any, train: Any) -> None:
    budget = tacit.Budget(2.0, 1e-5)
    model, _, run = make(budget=budget, noise_multiplier=2.0, steps=1000)
    wanted = admitted(60, 12, 2.0, budget)
    assert 3 < wanted < 60
    assert train(run) >= wanted
    assert run.step == len(run.ledger) == wanted
    assert run.guarantee().epsilon <= 2.0
    assert list(run.batches()) == []  # and it stays that way
    before = (model.weight.detach().clone(), len(run.ledger))
    with pytest.raises(tacit.BudgetExceeded, match=f"the {wanted} steps before it"):
        next(run.lot())
    assert torch.equal(model.weight, before[0]) and len(run.ledger) == before[1]


def test_a_manual_loop_gets_budget_exceeded(make: Any) -> None:
    model, optimizer, run = make(budget=tacit.Budget(1.0, 1e-5), noise_multiplier=2.0, steps=10**6)

    def loop() -> None:
        while True:
            for x, y in run.lot():
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(tacit.BudgetExceeded, match="over the budget of 1"):
        loop()
    assert run.step > 0
    assert run.guarantee().epsilon <= 1.0


def test_two_runs_share_one_ledger_file(make: Any, train: Any, tmp_path: Path) -> None:
    path, budget = tmp_path / "ledger.jsonl", tacit.Budget(2.0, 1e-5)
    first = make(budget=budget, noise_multiplier=3.0, steps=10, ledger=path, purpose="pre-training")[2]
    train(first)
    first.close()
    first.ledger.close()
    second = make(budget=budget, noise_multiplier=2.0, steps=1000, ledger=str(path))[2]
    train(second)
    alone = make(budget=budget, noise_multiplier=2.0, steps=1000)[2]
    train(alone)
    assert 0 < second.step < alone.step
    assert second.guarantee().epsilon <= 2.0
    second.ledger.close()
    stored = tacit.Ledger.load(path)
    assert len(stored) == 10 + second.step
    assert tacit.account(stored, delta=1e-5).epsilon == pytest.approx(second.guarantee().epsilon)
    third = make(budget=budget, noise_multiplier=2.0, steps=5, ledger=path)[2]
    assert train(third) == 0


def test_two_runs_share_one_ledger_object(make: Any, train: Any) -> None:
    ledger, budget = tacit.Ledger(), tacit.Budget(2.0, 1e-5)
    runs = [make(budget=budget, noise_multiplier=2.0, steps=8, ledger=ledger)[2] for _ in range(2)]
    train(runs[0])
    train(runs[1])
    assert len(ledger) == runs[0].step + runs[1].step
    assert runs[0].guarantee().epsilon == runs[1].guarantee().epsilon <= 2.0


def test_two_writers_of_one_file_are_refused(make: Any, tmp_path: Path) -> None:
    held = make(ledger=tmp_path / "ledger.jsonl")  # a run that is let go of lets go of its ledger
    with pytest.raises((RuntimeError, OSError, ValueError), match=r"ledger\.jsonl"):
        make(ledger=tmp_path / "ledger.jsonl")
    assert held is not None


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_solved_noise_spends_the_budget_and_not_more(make: Any, train: Any, sampling: str, adaptive: bool) -> None:
    clipping = tacit.Adaptive(count_noise_std=30.0) if adaptive else tacit.Flat(1.0)
    _, _, run = make(
        budget=tacit.Budget(3.0, 1e-5),
        steps=25,
        sampling=sampling,
        clipping=clipping,
    )
    train(run)
    assert run.step == 25
    assert 3.0 * 0.995 <= run.guarantee().epsilon <= 3.0


def test_solved_noise_pays_for_metrics_and_for_what_was_spent_before(make: Any) -> None:
    ledger = tacit.Ledger()
    ledger.record(Step(Poisson(rate=1.0, records=60), (GaussianSum(group="mean", clip_norm=1.0, noise_std=5.0),)))
    model, optimizer, run = make(
        budget=tacit.Budget(2.0, 1e-5), steps=20, ledger=ledger, metrics={"loss": tacit.Metric(bound=2.0)}
    )
    alone = make(budget=tacit.Budget(2.0, 1e-5), steps=20)[2]
    assert run.noise_multiplier > 1.05 * alone.noise_multiplier
    for x, y in run.batches():
        out = model(x)
        F.cross_entropy(out, y).backward()
        run.observe(loss=F.cross_entropy(out, y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 20
    assert 2.0 * 0.995 <= run.guarantee().epsilon <= 2.0


def test_an_adaptive_budget_stops_too(make: Any, train: Any) -> None:
    _, _, run = make(budget=tacit.AdaptiveBudget(2.0, 1e-5), noise_multiplier=2.0, steps=1000)
    train(run)
    plain = make(budget=tacit.Budget(2.0, 1e-5), noise_multiplier=2.0, steps=1000)[2]
    train(plain)
    assert 0 < run.step < plain.step


def test_the_guarantee_is_an_odometer(make: Any) -> None:
    model, optimizer, run = make(steps=5, trial=False)
    seen = [run.guarantee(1e-5).epsilon]
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        digest = run.ledger.digest
        seen.append(run.guarantee(1e-5).epsilon)
        assert run.guarantee(1e-5).epsilon == seen[-1]
        assert run.ledger.digest == digest
    assert seen[0] == 0 and seen == sorted(set(seen)) and len(seen) == 6
    with pytest.raises(ValueError, match="give delta"):
        run.guarantee()


def test_a_failing_budget_leaves_the_ledger_free(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match="must match exactly one"):
        make(ledger=path, clipping=tacit.Groups({"nothing": 1.0}))
    run = make(nn.Linear(4, 3), ledger=path)[2]
    assert len(run.ledger) == 0


def test_shuffled_lots_are_paid_for_by_the_epoch(make: Any, train: Any) -> None:
    """The lots of an epoch are disjoint: the first pays for all, and a new epoch is paid for anew."""
    budget = tacit.Budget(4.0, 1e-5)
    _, _, run = make(budget=budget, noise_multiplier=2.0, steps=1000, sampling="shuffled")
    train(run)
    epochs = tacit.plan(records=60, lot_size=60, noise_multiplier=2.0, epsilon=4.0, delta=1e-5).steps
    assert run.step == 5 * epochs
    assert run.guarantee().epsilon <= 4.0


def test_a_broken_off_epoch_of_shuffled_lots_is_not_a_lease_for_the_next(make: Any) -> None:
    budget = tacit.Budget(4.0, 1e-5)
    _, _, run = make(budget=budget, noise_multiplier=2.0, steps=1000, sampling="shuffled")
    epochs = tacit.plan(records=60, lot_size=60, noise_multiplier=2.0, epsilon=4.0, delta=1e-5).steps
    for _ in range(epochs):
        next(run.lot())
        run.sampler.restore(run.sampler.state())
    with pytest.raises(tacit.BudgetExceeded):
        next(run.lot())
