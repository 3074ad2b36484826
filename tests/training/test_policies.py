"""Sampling policies through make_private: what is drawn, what the ledger says, what is promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacit


@pytest.mark.parametrize(
    ("sampling", "words", "adjacency"),
    [
        ("poisson", "Poisson", "add/remove"),
        ("fixed-size", "fixed size without replacement", "replace-one"),
        ("shuffled", "no amplification claimed", "add/remove"),
        ("allocation", "random allocation", "add/remove"),
    ],
)
def test_the_guarantee_names_the_sampling_that_was_done(
    make: Any, train: Any, sampling: str, words: str, adjacency: str
) -> None:
    accountant = "pld" if sampling in ("fixed-size", "allocation") else "rdp"
    _, _, run = make(sampling=sampling, steps=5, accountant=accountant)
    train(run)
    found = run.guarantee(1e-5)
    assert words in str(found) and found.adjacency == adjacency
    assert sampling == "fixed-size" or words in run.statement(1e-5)


def test_honest_guarantees_are_not_equal(make: Any, train: Any) -> None:
    """The same noise and lot size: Poisson sampling amplifies; shuffling pays for every epoch in full."""
    spent = {}
    for sampling in ("poisson", "fixed-size", "shuffled"):
        _, _, run = make(sampling=sampling, steps=10, lot_size=6, noise_multiplier=2.0)
        train(run)
        spent[sampling] = run.guarantee(1e-5).epsilon
    one_epoch = tacit.plan(records=60, lot_size=60, steps=1, noise_multiplier=2.0, delta=1e-5).guarantee.epsilon
    assert spent["shuffled"] == pytest.approx(one_epoch, rel=1e-3)
    assert spent["poisson"] < 0.6 * spent["shuffled"]
    assert spent["poisson"] < spent["fixed-size"]


def test_random_allocation_is_solved_for_guarded_and_amplified(make: Any, train: Any) -> None:
    budget = tacit.Budget(epsilon=2.0, delta=1e-5)
    _, _, run = make(sampling="allocation", lot_size=12, steps=10, noise_multiplier=None, budget=budget)
    train(run)
    assert run.step == 10
    assert 1.9 < run.guarantee(1e-5).epsilon <= 2.0
    assert run.sampler.event().lots == 5
    with pytest.raises(ValueError, match="AdaptiveBudget has no proof with sampling='allocation'"):
        make(sampling="allocation", budget=tacit.AdaptiveBudget(epsilon=2.0, delta=1e-5))
    with pytest.raises(ValueError, match="participations is 2 with sampling='poisson'"):
        make(participations=2)


def test_lots_are_what_the_policy_says(make: Any, train: Any, lots: Any) -> None:
    _, _, fixed = make(sampling="fixed-size", lot_size=7, steps=9)
    drawn = lots(fixed)
    train(fixed)
    assert all(len(lot) == 7 == len(set(lot.tolist())) for lot in drawn)
    _, _, shuffled = make(sampling="shuffled", lot_size=12, steps=10)
    drawn = lots(shuffled)
    train(shuffled)
    for epoch in (drawn[:5], drawn[5:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(60))
    _, _, allocated = make(sampling="allocation", participations=2, lot_size=12, steps=20)
    drawn = lots(allocated)
    train(allocated)
    for epoch in (drawn[:10], drawn[10:]):
        assert sorted(np.concatenate(epoch).tolist()) == sorted([*range(60), *range(60)])
    _, _, poisson = make(lot_size=12, steps=30)
    drawn = lots(poisson)
    train(poisson)
    assert len({len(lot) for lot in drawn}) > 3
    assert all(len(set(lot.tolist())) == len(lot) for lot in drawn)


def test_replace_one_with_poisson_costs_more(make: Any, train: Any) -> None:
    found = []
    for adjacency in ("add/remove", "replace-one"):
        _, _, run = make(adjacency=adjacency, steps=5)
        train(run)
        found.append(run.guarantee(1e-5))
    assert found[1].adjacency == "replace-one"
    assert found[1].epsilon > 1.1 * found[0].epsilon


def test_a_seeded_run_is_marked_everywhere(make: Any, train: Any) -> None:
    _, _, run = make(seed=3, accountant="rdp")
    train(run)
    assert run.ledger.header.secure_randomness is False
    assert "NOT PRIVATE" in str(run.guarantee(1e-5))
    statement = run.statement(1e-5)
    assert statement.splitlines()[0].endswith("NOT PRIVATE: seeded randomness, for debugging only.")
    assert "SEEDED, FOR DEBUGGING. THIS RUN IS NOT PRIVATE." in statement
    _, _, secure = make(accountant="rdp")
    train(secure)
    assert "NOT PRIVATE" not in secure.statement(1e-5) + str(secure.guarantee(1e-5))


def test_a_seeded_run_needs_a_ledger_of_its_own(make: Any, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="a seeded run needs a ledger of its own"):
        make(seed=3, ledger=tacit.Ledger())
    path = tmp_path / "ledger.jsonl"
    make(ledger=path)[2].ledger.close()
    with pytest.raises(ValueError, match="a seeded run needs a ledger of its own"):
        make(seed=3, ledger=path)
    marked = tmp_path / "seeded.jsonl"
    make(seed=3, ledger=marked)[2].ledger.close()
    run = make(nn.Linear(4, 3), ledger=marked)[2]  # secure from now on, but the mark stays
    assert run.ledger.header.secure_randomness is False


def test_seeds_repeat_and_secure_runs_do_not(make: Any, train: Any) -> None:
    def weights(**settings: Any) -> Any:
        import torch

        torch.manual_seed(0)
        model, _, run = make(**settings)
        train(run)
        return model.weight.detach()

    assert weights(seed=5).equal(weights(seed=5))
    assert not weights(seed=5).equal(weights(seed=6))
    assert not weights().equal(weights())  # torch.manual_seed does not reach the noise


def test_lots_of_one_shape_train_like_the_records_alone(make: Any) -> None:
    """Every batch has exactly batch_size rows; what fills it up changes neither sums nor metrics."""
    shapes, sums = [], {}
    for most in (None, 40):
        model, optimizer, run = make(
            lot_size=12,
            steps=4,
            seed=3,
            max_lot_size=most,
            batch_size=16,
            trial=False,
            noise_multiplier=1e-3,
            metrics={"one": tacit.Metric(bound=1.0, noise_multiplier=1e-2)},
        )
        released = []
        for x, y in run.batches():
            if most is not None:
                shapes.append((len(x), run.real_rows))
            loss = nn.functional.cross_entropy(model(x), y, reduction="none")
            run.observe(one=(loss * 0 + 1).detach())
            loss.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.lot_finished:
                released.append(round(run.metrics["one"] * 12))
        sums[most] = released
        if most is not None:
            assert released == [sum(real for _, real in shapes[3 * step : 3 * step + 3]) for step in range(4)]
    assert {rows for rows, _ in shapes} == {16}
    assert len(shapes) == 4 * 3
    assert "cut to a largest size" in str(run.guarantee(1e-3))


def test_a_largest_lot_size_is_charged_and_refused_where_it_is_not_proved(make: Any) -> None:
    with pytest.raises(ValueError, match="max_lot_size is 20; it is for Poisson lots of single examples"):
        make(max_lot_size=20, sampling="shuffled")
    plans = {"records": 1000, "lot_size": 50, "steps": 100, "noise_multiplier": 1.0, "delta": 1e-5}
    free, wide, tight = (tacit.plan(**plans, max_lot_size=most).guarantee.epsilon for most in (None, 140, 95))
    assert free <= wide < 1.0001 * free < tight
    with pytest.raises(ValueError, match="epsilon is not finite"):
        tacit.plan(**plans, max_lot_size=60)


def test_rows_that_fill_up_add_exactly_nothing() -> None:
    from tacit.gradients import attach
    from tacit.training.first_rows import FirstRows

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    x, y = torch.randn(6, 5), torch.randint(2, (6,))
    x[4:] *= float("inf")
    clipping = tacit.Flat(0.5).bind({name: p.shape for name, p in model.named_parameters()})
    engine = attach(model)
    sums = []
    for rows, chosen in ((6, FirstRows(clipping, 4)), (4, clipping)):
        batch = engine.trace(x[:rows], rows)
        nn.functional.cross_entropy(model(batch), y[:rows], reduction="sum").backward()
        sums.append(engine.clipped_sum(chosen))
        model.zero_grad()
    for name, total in sums[1].items():
        torch.testing.assert_close(sums[0][name], total)
        assert total.abs().sum() > 0
