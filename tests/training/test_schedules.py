"""Clip norm, noise, lot size and learning rate may depend on the step; the ledger shows what was done."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tacit
from tacit.accounting import guarantee
from tacit.gradients.precision import MARGIN
from tacit.ledger import GaussianSum, Header, Poisson, Step
from tacit.mechanisms import DimensionAdjusted, Discrete, Explicit, Proportional


def listed(run: Any) -> list[Any]:
    return [step for step, count in run.ledger.entries for _ in range(count)]


def test_clip_norm_noise_and_lot_size_by_step(make: Any, train: Any, lots: Any, noise: Any) -> None:
    _, _, run = make(
        steps=6,
        clipping=lambda step: tacit.Flat(2.0 if step < 3 else 0.5),
        noise_multiplier=lambda step: 1.0 + step,
        lot_size=lambda step: 12 if step < 2 else 30,
    )
    drawn = lots(run)
    train(run)
    steps = listed(run)
    bounds = [step.queries[0].clip_norm / (1 + MARGIN) for step in steps]
    assert bounds == pytest.approx([2.0, 2.0, 2.0, 0.5, 0.5, 0.5])
    assert [step.noise_multiplier for step in steps] == pytest.approx([1, 2, 3, 4, 5, 6])
    assert [step.sampling.rate for step in steps] == pytest.approx([0.2, 0.2, 0.5, 0.5, 0.5, 0.5])
    assert [std / (1 + MARGIN) for _, std, _ in noise.added[::2]] == pytest.approx([2, 4, 6, 2, 2.5, 3])
    sizes = [len(lot) for lot in drawn]
    assert sum(sizes[:2]) < sum(sizes[2:4])


def test_the_divisor_follows_the_schedule_and_not_the_lot(make: Any, train: Any, noise: Any) -> None:
    model, optimizer, run = make(steps=4, batch_size=60, lot_size=lambda step: (10, 20, 30, 60)[step], trial=False)
    divisors = []
    for x, _y in run.batches():
        noise.added.clear()
        (0 * model(x)).sum().backward()
        optimizer.step()
        total, _, values = noise.added[0]
        divisors.append(float(((total + values) / model.weight.grad).mean()))
    assert divisors == pytest.approx([10, 20, 30, 60], rel=1e-4)


def test_fixed_size_lots_follow_the_schedule(make: Any, train: Any, lots: Any) -> None:
    _, _, run = make(steps=4, sampling="fixed-size", lot_size=lambda step: 5 + 5 * step)
    drawn = lots(run)
    train(run)
    assert [len(lot) for lot in drawn] == [5, 10, 15, 20]
    assert [step.sampling.size for step in listed(run)] == [5, 10, 15, 20]


def test_shuffled_lots_do_not_change_size(make: Any, train: Any) -> None:
    with pytest.raises(ValueError, match=r"lot_size changes from 10 to others; .* Poisson or fixed-size"):
        make(sampling="shuffled", lot_size=lambda step: 10 + step)
    _, _, run = make(sampling="shuffled", lot_size=lambda step: 10)
    train(run)


def test_users_come_in_lots_of_changing_size(make: Any, train: Any, lots: Any) -> None:
    """The user is the record: the rate is that of users, whatever the schedule."""
    users = [i % 20 for i in range(60)]
    _, _, run = make(
        steps=40, users=users, examples_per_user=2, lot_size=lambda step: 4 if step < 20 else 18, batch_size=60
    )
    drawn = lots(run)
    train(run)
    assert [step.sampling.rate for step in listed(run)] == pytest.approx([0.2] * 20 + [0.9] * 20)
    assert sum(len(lot.users) for lot in drawn[:20]) < sum(len(lot.users) for lot in drawn[20:]) / 2


@pytest.mark.parametrize("wrong", [0, 61, 7.0, True])
def test_a_lot_size_that_a_later_step_cannot_have_is_refused_at_the_start(make: Any, wrong: Any) -> None:
    ledger = tacit.Ledger()
    with pytest.raises(ValueError, match=f"lot_size is {wrong} at step 3; it must be"):
        make(steps=5, lot_size=lambda step: wrong if step == 3 else 12, ledger=ledger)
    assert len(ledger) == 0


def test_epochs_count_records_whatever_the_schedule(make: Any) -> None:
    assert make(epochs=2, lot_size=lambda step: 12 if step < 5 else 30)[2].settings.steps == 7
    assert make(epochs=0.5, lot_size=7)[2].settings.steps == 5
    assert make(epochs=3, lot_size=7)[2].settings.steps == 26


def test_allocations_by_step(make: Any, train: Any) -> None:
    _, _, run = make(
        steps=2,
        clipping=tacit.PerLayer(each=1.0),
        model=torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)),
        noise=lambda step: Proportional(2.0) if step == 0 else DimensionAdjusted(3.0),
    )
    train(run)
    first, second = listed(run)
    assert first.noise_multiplier == pytest.approx(2.0) and second.noise_multiplier == pytest.approx(3.0)
    assert first.queries[0].noise_std == first.queries[1].noise_std
    assert second.queries[0].noise_std != second.queries[1].noise_std


def test_the_budget_watches_a_schedule(make: Any, train: Any) -> None:
    _, _, run = make(steps=500, budget=tacit.Budget(2.0, 1e-5), noise_multiplier=lambda step: 4.0 if step < 10 else 1.0)
    train(run)
    assert 10 <= run.step < 500
    assert run.guarantee().epsilon <= 2.0


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("also", [False, True])
def test_noise_is_solved_for_with_a_changing_lot_size(make: Any, train: Any, sampling: str, also: bool) -> None:
    """All steps fit, together with what the ledger already holds, and hardly anything is left over."""
    ledger = None
    if also:
        _, _, first = make(steps=5, noise_multiplier=4.0, sampling=sampling)
        train(first)
        ledger = first.ledger
    _, _, run = make(
        steps=12,
        lot_size=lambda step: 4 if step < 6 else 20,
        budget=tacit.Budget(3.0, 1e-5),
        sampling=sampling,
        ledger=ledger,
        accountant="rdp",
    )
    train(run)
    assert run.step == 12
    assert 0.99 * 3.0 < run.guarantee().epsilon <= 3.0
    again = make(  # with less noise it would not have fitted
        steps=12,
        lot_size=lambda step: 4 if step < 6 else 20,
        noise_multiplier=run.settings.solved * 0.995,
        sampling=sampling,
        ledger=None if ledger is None else copied(ledger, 5),
        accountant="rdp",
    )[2]
    train(again)
    assert again.guarantee(1e-5).epsilon > 3.0


def copied(ledger: tacit.Ledger, steps: int) -> tacit.Ledger:
    """The first steps of a ledger."""
    copy = tacit.Ledger(ledger.header)
    for step in [step for step, count in ledger.entries for _ in range(count)][:steps]:
        copy.record(step)
    return copy


def test_noise_is_solved_for_with_many_lot_sizes(make: Any) -> None:
    """Sizes are rounded up to some forty: a little more noise than needed, and never less."""
    dataset = torch.utils.data.TensorDataset(torch.zeros(1000, 4), torch.zeros(1000, dtype=torch.long))
    _, _, run = make(
        dataset=dataset,
        steps=100,
        lot_size=lambda step: 20 + 3 * step,
        budget=tacit.Budget(2.0, 1e-5),
        accountant="rdp",
    )
    z = run.settings.solved
    exact = [
        (Step(Poisson(rate=(20 + 3 * step) / 1000), (GaussianSum(group="g", clip_norm=1.0, noise_std=z),)), 1)
        for step in range(100)
    ]
    assert 0.95 * 2.0 < guarantee(exact, Header(), delta=1e-5, accountant="rdp").epsilon <= 2.0


def test_noise_is_solved_for_by_the_accountant_of_the_run(make: Any) -> None:
    solved = {
        name: make(
            budget=tacit.Budget(2.0, 1e-5), steps=10, lot_size=lambda step: 3 if step < 5 else 9, accountant=name
        )[2].settings.solved
        for name in ("pld", "rdp")
    }
    assert 0.5 * solved["rdp"] < solved["pld"] < solved["rdp"]


def test_a_ledger_that_has_spent_the_budget_leaves_nothing_to_solve_for(make: Any, train: Any) -> None:
    _, _, first = make(steps=5, noise_multiplier=0.5, accountant="rdp")
    train(first)
    with pytest.raises(ValueError, match="the steps already in the ledger leave too little"):
        make(
            budget=tacit.Budget(0.5, 1e-5),
            steps=10,
            lot_size=lambda step: 10 + step % 2,
            ledger=first.ledger,
            accountant="rdp",
        )


def test_every_layer_finds_its_clip_norm_and_the_cost_of_a_step_stays(make: Any, train: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    clipping = tacit.Adaptive(initial=tacit.PerLayer(each=0.01), learning_rate=0.5, count_noise_std=3.0)
    _, _, run = make(model, steps=25, lot_size=30, batch_size=7, clipping=clipping, noise_multiplier=1.5)
    train(run)
    steps = listed(run)
    assert [query.group for query in steps[0].queries] == [
        "gradients/0",
        "gradients/2",
        "unclipped count/0",
        "unclipped count/2",
    ]
    assert {round(step.noise_multiplier, 9) for step in steps} == {1.5}
    first, second = run.clipping_state()["clip_norms"].values()
    assert first > 0.05 and second > 0.05 and first != second


def test_the_count_is_divided_by_the_lot_size_of_the_step(make: Any, silence: Any) -> None:
    model, optimizer, run = make(
        steps=4,
        lot_size=lambda step: 20 if step < 2 else 60,
        clipping=tacit.Adaptive(initial=1e6, learning_rate=1.0),
        noise_multiplier=0.1,
        batch_size=60,
        trial=False,
    )
    norm = 1e6
    for step, (x, y) in enumerate(run.batches()):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        norm *= math.exp(-0.5 * len(x) / (20 if step < 2 else 60))  # all are below: + 1/2 for each of the lot
        assert run.clipping_state()["clip_norms"]["gradients"] == pytest.approx(norm)
    assert [step.queries[1].noise_std for step in listed(run)] == [1.0, 1.0, 3.0, 3.0]


def test_adaptive_clipping_moves_and_the_cost_of_a_step_stays(make: Any, train: Any) -> None:
    _, _, run = make(
        steps=12,
        lot_size=30,
        clipping=tacit.Adaptive(initial=0.01, learning_rate=0.5, count_noise_std=3.0),
        budget=tacit.Budget(8.0, 1e-5),
        noise_multiplier=1.5,
    )
    train(run)
    steps = listed(run)
    norms = [step.queries[0].clip_norm for step in steps]
    assert norms[0] == pytest.approx(0.01 * (1 + MARGIN)) and norms[-1] > 0.05
    assert {round(step.noise_multiplier, 9) for step in steps} == {1.5}
    assert all(step.queries[1].clip_norm == 0.5 and step.queries[1].noise_std == 3.0 for step in steps)


EXPLICIT = Explicit({"gradients": 3.0})


@pytest.mark.parametrize("budget", [None, tacit.Budget(50.0, 1e-5)])
@pytest.mark.parametrize("noise", [EXPLICIT, Discrete(EXPLICIT), lambda step: EXPLICIT])
def test_a_noise_multiplier_that_follows_releases_needs_an_adaptive_budget(make: Any, budget: Any, noise: Any) -> None:
    """The clip norms are released; with the noise fixed, so is what a step costs."""
    clipping = tacit.Adaptive(initial=0.6, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"clipping is adaptive.*give noise_multiplier.*AdaptiveBudget"):
        make(clipping=clipping, noise=noise, noise_multiplier=None, budget=budget, lot_size=30)


def test_explicit_noise_and_adaptive_clipping_end_where_an_adaptive_budget_says(make: Any, train: Any) -> None:
    budget = tacit.AdaptiveBudget(6.0, 1e-5)
    clipping = tacit.Adaptive(initial=0.05, learning_rate=1.0)
    _, _, run = make(clipping=clipping, noise=EXPLICIT, noise_multiplier=None, budget=budget, lot_size=30, steps=400)
    train(run)
    multipliers = [step.noise_multiplier for step in listed(run)]
    assert max(multipliers) > 2 * min(multipliers)
    assert 0 < run.step < 400
    found = run.guarantee(1e-5)
    assert found.epsilon <= 6.0 and found.adaptive_budget == budget


def test_a_schedule_cannot_turn_to_explicit_noise_half_way(make: Any, train: Any) -> None:
    def noise(step: int) -> Any:
        return Proportional(1.5) if step < 2 else EXPLICIT

    _, _, run = make(clipping=tacit.Adaptive(initial=0.6), noise=noise, noise_multiplier=None, lot_size=30, steps=4)
    with pytest.raises(ValueError, match="clipping is adaptive"):
        train(run)
    assert len(run.ledger) == 2
