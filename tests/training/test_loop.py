"""The loops people write: epochs, schedulers, accumulation, clipping by hand, and loops over a run that has ended."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def step(run: Any, batch: Any) -> None:
    F.cross_entropy(run.model(batch[0]), batch[1]).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def test_a_nested_loop_over_epochs_takes_the_planned_steps(make: Any) -> None:
    _, _, run = make(lot_size=12, epochs=3)
    seen = []
    for epoch in run.epochs():
        planned = len(epoch)
        for batch in epoch:
            step(run, batch)
        seen.append((epoch.number, planned, len(epoch), run.step))
    assert seen == [(0, 5, 0, 5), (1, 5, 0, 10), (2, 5, 0, 15)]
    assert run.steps == 15 == len(run.ledger)


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"epochs": 2, "lot_size": 11}, [6, 11]),  # 60 records: the sixth lot begins the second epoch
        ({"epochs": 2.5, "lot_size": 12}, [5, 10, 13]),
        ({"epochs": 0.5, "lot_size": 12}, [3]),
        ({"steps": 7, "lot_size": 12}, [5, 7]),
        ({"epochs": 2, "lot_size": 60}, [1, 2]),
        ({"steps": 6, "lot_size": lambda step: 20 if step < 3 else 30}, [3, 5, 6]),
        ({"epochs": 2, "lot_size": 12, "sampling": "fixed-size"}, [5, 10]),
        ({"epochs": 2, "lot_size": 2, "microbatch_size": 10, "sampling": "fixed-size"}, [3, 6]),
        ({"epochs": 1, "lot_size": 5, "users": [i // 4 for i in range(60)], "examples_per_user": 2}, [3]),
    ],
)
def test_an_epoch_ends_when_its_lots_have_as_many_records_as_there_are(
    make: Any, settings: dict[str, Any], ends: list[int]
) -> None:
    _, _, run = make(batch_size=60, **settings)
    found = []
    for epoch in run.epochs():
        for batch in epoch:
            step(run, batch)
        found.append(run.step)
    assert found == ends


def test_shuffled_epochs_are_whole_partitions(make: Any, lots: Any) -> None:
    _, _, run = make(lot_size=11, epochs=2, sampling="shuffled")
    drawn = lots(run)
    first = next(run.epochs())
    for batch in first:
        step(run, batch)
    assert sorted(i for lot in drawn for i in lot.tolist()) == list(range(60))


def test_a_resumed_run_begins_with_the_rest_of_its_epoch(make: Any, tmp_path: Any) -> None:
    ledger = tmp_path / "ledger.jsonl"
    _, _, run = make(lot_size=12, epochs=3, ledger=ledger, trial=False)
    batches = run.batches()
    for _ in range(7):
        step(run, next(batches))
    batches.close()
    run.save(tmp_path / "checkpoint")
    run.close()
    run.ledger.close()
    _, _, run = make(lot_size=12, epochs=3, ledger=ledger)
    run.load(tmp_path / "checkpoint")
    found = []
    for epoch in run.epochs():
        found.append((epoch.number, len(epoch)))
        for batch in epoch:
            step(run, batch)
    assert found == [(1, 3), (2, 5)] and run.step == 15


def test_epochs_end_when_the_budget_does(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, _, run = make(lot_size=12, epochs=40, noise_multiplier=2.0, budget=tacit.Budget(2.0, 1e-5))
    epochs = 0
    for epoch in run.epochs():
        epochs += 1
        for batch in epoch:
            step(run, batch)
    assert 0 < run.step < run.steps and epochs == -(-run.step // 5) + (run.step % 5 == 0)
    assert f"stopped after {run.step} of {run.steps} steps" in caplog.text


def test_epochs_may_be_listed_first_and_left_early(make: Any) -> None:
    _, _, run = make(lot_size=12, epochs=2)
    first, second = run.epochs()
    for batch in first:
        step(run, batch)
        if run.step == 2:
            break
    for batch in second:
        step(run, batch)
    assert run.step == 7 and run.abandoned == 0


def test_an_epoch_left_early_gives_way_to_the_next(make: Any) -> None:
    _, _, run = make(lot_size=12, epochs=3, trial=False)
    for epoch in run.epochs():
        for batch in epoch:
            step(run, batch)
            if run.step % 2 == 0:
                break
    assert run.step == 6 and run.abandoned == 0


def test_an_epoch_left_in_the_middle_of_a_lot_loses_that_lot(make: Any) -> None:
    _, _, run = make(lot_size=60, batch_size=20, epochs=3)
    for epoch in run.epochs():
        for batch in epoch:
            step(run, batch)
            break
    assert run.step == 0 and run.abandoned == 3 == len(run.ledger)


def test_a_loop_left_with_break_ends_at_once(make: Any) -> None:
    _, _, run = make(lot_size=60, batch_size=20)
    for batch in run.batches():
        step(run, batch)
        break
    assert run.abandoned == 1 and run.lot_finished


def test_a_second_loop_over_a_run_that_has_ended_says_so(
    make: Any, train: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, run = make()
    counts = []
    for _ in range(2):  # what everybody writes: epochs outside, run.batches() inside
        caplog.clear()
        counts.append(train(run))
    assert counts == [4, 0] and run.step == 4
    assert "this loop has no batches: the run has taken all its 4 steps" in caplog.text
    assert "for epoch in run.epochs(): for x, y in epoch" in caplog.text
    caplog.clear()
    assert list(run.epochs()) == []
    assert "this loop has no epochs: the run has taken all its 4 steps" in caplog.text


def test_a_second_loop_over_the_same_epoch_says_so(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, _, run = make(lot_size=12, epochs=2)
    epoch = next(run.epochs())
    for batch in epoch:
        step(run, batch)
    assert "no batches" not in caplog.text
    assert list(epoch) == []
    assert "this loop has no batches: the one before it used them all" in caplog.text


def test_a_second_loop_after_the_budget_ended_says_so(make: Any, train: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, _, run = make(steps=100, noise_multiplier=2.0, budget=tacit.Budget(2.0, 1e-5))
    train(run)
    caplog.clear()
    assert train(run) == 0
    assert f"stopped after {run.step} of 100 steps" in caplog.text


def test_the_length_of_a_loop_is_the_number_of_steps_to_come(make: Any) -> None:
    _, _, run = make(lot_size=60, batch_size=20, steps=3)
    batches, found = run.batches(), []
    for batch in batches:
        step(run, batch)
        found.append((len(batches), run.lot_finished))
    assert [left for left, last in found if last] == [2, 1, 0]
    assert len(run.batches()) == 0 and run.steps == 3


def test_a_lot_is_finished_after_its_last_batch_only(make: Any) -> None:
    _, _, run = make(lot_size=60, batch_size=20, steps=3, sampling="fixed-size", trial=False)
    assert run.lot_finished
    found = []
    for batch in run.batches():
        assert not run.lot_finished
        step(run, batch)
        found.append(run.lot_finished)
    assert found == [False, False, True] * 3 and run.lot_finished


@pytest.mark.parametrize("right", [True, False])
def test_a_scheduler_stepped_once_a_batch_is_reported(make: Any, caplog: pytest.LogCaptureFixture, right: bool) -> None:
    _, optimizer, run = make(lot_size=60, batch_size=20, steps=3, sampling="fixed-size")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for batch in run.batches():
        step(run, batch)
        if not right or run.lot_finished:
            scheduler.step()
    assert caplog.text.count("`if run.lot_finished: scheduler.step()`") == (not right)
    assert scheduler.last_epoch == (3 if right else 9)


def test_gradient_accumulation_is_refused_in_its_own_words(make: Any) -> None:
    model, optimizer, run = make(lot_size=60, batch_size=20)

    def loop() -> None:
        for i, (x, y) in enumerate(run.batches()):
            (F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(RuntimeError, match=r"gradient accumulation.*batch_size="):
        loop()


def test_a_batch_that_is_left_out_is_refused_in_other_words(make: Any) -> None:
    _, _, run = make(lot_size=60, batch_size=20)
    batches = run.batches()
    next(batches)
    with pytest.raises(RuntimeError, match="leaves out a batch"):
        next(batches)


@pytest.mark.parametrize("several", [1, 2])
def test_clipping_by_hand_is_reported_to_have_no_effect(
    make: Any, caplog: pytest.LogCaptureFixture, several: int
) -> None:
    clip = torch.nn.utils.clip_grad_norm_  # as somebody imported it before
    runs = [make()[2] for _ in range(several)]
    for run in runs:
        caplog.clear()
        for x, y in run.batches():
            F.cross_entropy(run.model(x), y).backward()
            clip(run.model.parameters(), 1.0)
            run.optimizer.step()
        assert caplog.text.count("clip_grad_norm_ has no effect in a private run") == 1
        run.close()
    caplog.clear()
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    clip(other.parameters(), 0.5)
    assert "clip_grad_norm_" not in caplog.text
    assert float(torch.cat([p.grad.flatten() for p in other.parameters()]).norm()) == pytest.approx(0.5, rel=1e-4)


def test_a_hook_on_an_accumulated_gradient_is_reported_to_have_no_effect(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(4, 3)
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    make(model)
    assert caplog.text.count("the hook on the accumulated gradient of weight is not called in a private run") == 1


def test_gradient_hooks_of_a_parameter_change_the_released_gradient(make: Any) -> None:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.left @ self.right)

    model, seen = Factors(), list[torch.Tensor]()
    kept = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    model.left.register_hook(lambda grad: seen.append(grad.clone()))
    model.left.register_hook(lambda grad: grad * kept)
    _, optimizer, run = make(model, lot_size=20, steps=2, batch_size=6, noise_multiplier=0.1)
    for x, y in run.batches():
        before, right, step = model.left.detach().clone(), model.right.detach().clone(), run.step
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.step > step:
            moved = model.left.detach() != before
            assert torch.equal(moved, kept.bool()) and not torch.equal(model.right, right)
    assert len(seen) == 2 and all(grad.shape == (3, 2) for grad in seen)


def test_a_gradient_hook_that_uses_values_of_the_batch_is_refused(make: Any) -> None:
    model, optimizer, run = make(nn.Linear(4, 3), lot_size=20, steps=2, batch_size=6, trial=False)
    last = list[Any]()
    model.weight.register_hook(lambda grad: grad * last[-1])

    def train() -> None:
        for x, y in run.batches():
            last.append(x.mean())
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    with pytest.raises(RuntimeError, match="the gradient hook of weight uses a tensor of the batch"):
        train()


def test_a_hook_of_the_optimizer_changes_the_released_gradient(make: Any) -> None:
    model, optimizer, run = make(nn.Linear(4, 3), lot_size=20, steps=2, batch_size=6)
    before, seen = model.weight.detach().clone(), []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.zero_()))
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(seen) == 2 and torch.equal(model.weight, before)


@pytest.mark.parametrize("lost", [0, 2])
def test_after_a_resume_the_log_says_how_many_charged_steps_were_lost(
    make: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    _, _, run = make(ledger=ledger, trial=False)
    batches = run.batches()
    step(run, next(batches))
    run.save(tmp_path / "checkpoint")
    for _ in range(lost):
        step(run, next(batches))
    run.close()
    run.ledger.close()
    _, _, run = make(ledger=ledger)
    caplog.clear()
    run.load(tmp_path / "checkpoint")
    (record,) = [each for each in caplog.records if "resumed" in each.message]
    assert f"resumed at step 1 of 4; the ledger has {lost} steps that were charged after" in record.message
    assert record.levelno == (logging.WARNING if lost else logging.INFO)


def test_the_loop_in_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    code = page.partition("<!-- loop: epochs -->\n```python\n")[2].partition("```")[0]
    model = nn.Linear(8, 2)
    given: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "tacit": tacit,
        "people": TensorDataset(torch.randn(1000, 8), torch.randint(2, (1000,))),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
    }
    exec(code, given)
    assert given["run"].step == 4 == given["scheduler"].last_epoch
