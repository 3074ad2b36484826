"""The first lot's gradients are those of its parts, or the loop is refused before anything is released."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients import attach
from tacit.training import PrivateBatchNorm
from tacit.training.collated_rows import Rows
from tacit.training.trial import Trial

Loop = Callable[[Any, nn.Module, Tensor, Tensor], Tensor]


@pytest.fixture
def data() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(60, 4) + 1, torch.arange(60) % 3)


def go(make: Any, loop: Loop, model: nn.Module | None = None, **settings: Any) -> Any:
    """Train with a loop that computes the loss; returns the run."""
    model, optimizer, run = make(model, **{"lot_size": 40, "steps": 2, **settings})
    for x, y in run.batches():
        loop(run, model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return run


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the run has warned of; the engine has warnings of its own."""
    return [record.message for record in caplog.records if record.name == "tacit"]


def each(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def penalty(model: nn.Module) -> Tensor:
    return torch.stack([p.square().sum() for p in model.parameters()]).sum()


@torch.jit.script
def scripted_copy(x: Tensor) -> Tensor:
    return x * 1.0


def observing_shares(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = each(model, x, y)
    run.observe(m=losses.detach() / len(x))
    return losses.mean()


DIVIDED: dict[str, tuple[Loop, dict[str, Any]]] = {
    "entry by entry": (lambda r, m, x, y: (each(m, x, y) / len(x)).sum(), {}),
    "weighted by class": (lambda r, m, x, y: (torch.ones(3)[y] * each(m, x, y) / x.shape[0]).sum(), {}),
    "by a constant of a row each": (
        lambda r, m, x, y: (each(m, x, y) * torch.full((len(x),), 1 / max(len(x), 1))).sum(),
        {},
    ),
    "a penalty": (lambda r, m, x, y: each(m, x, y).mean() + penalty(m) / max(len(x), 1), {}),
    "a penalty that is small at first": (
        lambda r, m, x, y: each(m, x, y).mean() + 1e-6 * penalty(m) / max(len(x), 1),
        {},
    ),
    "a declared sum": (lambda r, m, x, y: each(m, x, y).sum() / len(x), {"reduction": "sum"}),
    "a metric": (observing_shares, {"metrics": {"m": tacit.Metric(bound=1.0)}}),
}


@pytest.mark.parametrize("how", DIVIDED)
def test_losses_and_metrics_divided_by_the_size_of_the_batch_are_refused(make: Any, how: str) -> None:
    loop, settings = DIVIDED[how]
    with pytest.raises(ValueError, match=r"changed with the (other|number of) examples in the first lot"):
        go(make, loop, **settings)


COPIED: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.tensor": lambda x: torch.tensor(x),
    "torch.asarray": lambda x: torch.asarray(x, copy=True),
    "copy.copy": copy.copy,
    "numpy": lambda x: torch.from_numpy(x.numpy().copy()),
    "scripted": scripted_copy,
    "python": lambda x: torch.tensor(x.tolist()).view(-1, 4),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("how", COPIED)
def test_a_normalisation_by_statistics_of_a_copy_is_refused(make: Any, how: str) -> None:
    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x - COPIED[how](x).mean(0)), y)

    with pytest.raises(ValueError, match=r"first lot|no per-example gradients"):
        go(make, loop)


SIZES: dict[str, Loop] = {
    "rows of a mask": lambda r, m, x, y: (each(m, x, y) * x[y == 2].shape[0]).sum(),
    "classes of a one-hot": lambda r, m, x, y: (each(m, x, y) * F.one_hot(y).shape[1]).sum(),
}


@pytest.mark.parametrize("how", SIZES)
def test_sizes_that_data_decide_are_refused(make: Any, how: str) -> None:
    with pytest.raises(ValueError, match="first lot"):
        go(make, SIZES[how])


def test_the_loop_is_refused_before_anything_is_released(make: Any, noise: Any) -> None:
    model = nn.Linear(4, 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="first lot"):
        go(make, DIVIDED["entry by entry"][0], model)
    assert not noise.added
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def noisy(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    flipped = torch.where(torch.rand(len(x), 1) < 0.7, x.flip(1), x)
    return F.cross_entropy(model(flipped + 0.1 * torch.randn(x.shape) + 0.1 * torch.randn_like(x)), y)


HONEST: dict[str, tuple[Loop, dict[str, Any]]] = {
    "mean": (lambda r, m, x, y: F.cross_entropy(m(x), y), {}),
    "sum": (lambda r, m, x, y: each(m, x, y).sum(), {}),
    "a mean, written out": (lambda r, m, x, y: each(m, x, y).sum() / len(x), {"reduction": "mean"}),
    "weighted by class": (lambda r, m, x, y: (torch.tensor([1.0, 2, 3])[y] * each(m, x, y)).mean(), {}),
    "a penalty": (lambda r, m, x, y: F.cross_entropy(m(x), y) + 0.1 * penalty(m), {}),
    "noise and flips": (noisy, {}),
    "one factor a batch": (lambda r, m, x, y: F.cross_entropy(m(x), y) * random.random(), {"reduction": "mean"}),
    "another order": (lambda r, m, x, y: (lambda k: each(m, x[k], y[k]).mean())(torch.randperm(len(x))), {}),
    "a batch at a time": (lambda r, m, x, y: F.cross_entropy(m(x), y), {"batch_size": 5}),
    "two at a time": (lambda r, m, x, y: F.cross_entropy(m(x), y), {"batch_size": 2}),
    "one at a time": (lambda r, m, x, y: F.cross_entropy(m(x), y), {"batch_size": 1}),
    "microbatches": (lambda r, m, x, y: F.cross_entropy(m(x), y), {"microbatch_size": 3, "lot_size": 12}),
}


@pytest.mark.parametrize("how", HONEST)
def test_honest_loops_pass_without_a_word(make: Any, how: str, caplog: pytest.LogCaptureFixture) -> None:
    loop, settings = HONEST[how]
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3))
    with caplog.at_level(logging.WARNING):
        assert go(make, loop, model, **settings).step == 2
    assert not told(caplog)


def test_doubles_are_compared_as_finely_as_they_are(make: Any) -> None:
    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (each(model, x.double(), y) * (1 + 1e-6 * len(x))).sum()

    with pytest.raises(ValueError, match="first lot"):
        go(make, loop, nn.Linear(4, 3).double())
    go(make, lambda r, m, x, y: F.cross_entropy(m(x.double()), y), nn.Linear(4, 3).double())


def test_autocast_passes_without_a_word(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    with caplog.at_level(logging.WARNING):
        assert go(make, loop, model).step == 2
    assert not told(caplog)


def test_a_random_loop_is_reported_and_trained(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (each(model, x, y) * torch.tensor([random.random() for _ in y])).sum()

    with caplog.at_level(logging.WARNING):
        assert go(make, loop).step == 2
    assert "because the loop is random" in caplog.text and len(told(caplog)) == 1


def test_a_factor_that_grows_from_batch_to_batch_is_not_taken_for_an_influence(make: Any) -> None:
    factors = iter(range(1, 100))
    go(make, lambda r, m, x, y: F.cross_entropy(m(x), y) * next(factors), reduction="mean")


# -- nothing of the trial stays ----------------------------------------------------------------------------------------


def test_a_run_releases_the_same_with_and_without_a_trial(make: Any, noise: Any) -> None:
    ends = []
    for trial in (False, True):
        torch.manual_seed(1)
        noise.generator.manual_seed(7)
        model = nn.Sequential(PrivateBatchNorm(4), nn.Linear(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        metrics = {"loss": tacit.Metric(bound=2.0)}
        _, _, run = make(model, optimizer, lot_size=60, steps=3, metrics=metrics, trial=trial)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
        sizes = []
        for x, y in run.batches():
            losses = each(model, x, y)
            losses.mean().backward()
            run.observe(loss=losses.detach())
            optimizer.step()
            scheduler.step()
            sizes.append((len(x), run.in_trial))
        assert sizes == [(7, True), (3, True), (4, True)] * trial + [(60, False)] * 3
        ends.append((copy.deepcopy(model.state_dict()), run.metrics, scheduler.state_dict(), len(run.ledger)))
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-5)
    assert ends[0][2:] == ends[1][2:]
    for name, value in ends[0][0].items():
        torch.testing.assert_close(value, ends[1][0][name])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.seen_is_written:
            self.seen += 1
        return self.linear(x)  # type: ignore[no-any-return]

    seen_is_written = False


def test_public_buffers_are_put_back_after_the_trial(make: Any) -> None:
    model = Counting()
    go(make, HONEST["mean"][0], model, public_buffers=["count"])
    assert float(model.count) == 2


def test_writes_to_other_buffers_are_refused_in_the_trial(make: Any) -> None:
    model = Counting()
    model.seen_is_written = True
    with pytest.raises(RuntimeError, match="buffer 'seen' changed"):
        go(make, HONEST["mean"][0], model, public_buffers=["count"])
    assert float(model.seen) == 0


def test_dropout_of_recurrent_layers_stands_still_and_is_put_back(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 3, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x.view(len(x), 2, 2))[0][:, -1]  # type: ignore[no-any-return]

    model = Reader()
    with caplog.at_level(logging.WARNING):
        go(make, HONEST["mean"][0], model)
    assert model.lstm.dropout == 0.5
    assert not told(caplog)


def test_random_numbers_go_on_as_if_there_had_been_no_trial(make: Any) -> None:
    drawn = []
    for trial in (False, True):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        model, optimizer, run = make(nn.Linear(4, 3), lot_size=60, steps=1, trial=trial)
        for x, y in run.batches():
            numbers = (float(torch.rand(())), random.random(), float(np.random.rand()))  # noqa: NPY002
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        drawn.append(numbers)
    assert drawn[0] == drawn[1]


def test_dropout_works_again_after_the_step_of_a_trial_batch(make: Any) -> None:
    model, optimizer, run = make(lot_size=40, steps=1)
    for x, y in run.batches():
        assert (F.dropout(torch.ones(50), 0.5).min() > 0) == run.in_trial
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert F.dropout(torch.ones(50), 0.5).min() == 0


def test_a_loop_that_is_left_in_the_trial_lets_noise_go_on(make: Any) -> None:
    _, _, run = make(lot_size=40, steps=1)
    before = torch._C._len_torch_function_stack()
    batches = run.batches()
    next(batches)
    run.close()
    assert F.dropout(torch.ones(50), 0.5).min() == 0
    batches.close()
    assert torch._C._len_torch_function_stack() == before


def test_noise_goes_on_where_a_loop_was_interrupted_in_the_trial_and_is_still_held(make: Any) -> None:
    """As in a notebook, which keeps the traceback and with it the half-finished loop."""
    _, _, run = make(lot_size=40, steps=1)

    def loop() -> Any:
        batches = run.batches()
        next(batches)
        assert F.dropout(torch.ones(50), 0.5).min() > 0
        return batches

    held = loop()
    assert F.dropout(torch.ones(50), 0.5).min() == 0 and torch.rand(9).unique().numel() > 1
    held.close()
    run.close()


def test_a_step_that_fails_in_the_trial_is_tried_again_in_the_next_lot(make: Any) -> None:
    model, optimizer, run = make(lot_size=40, steps=2)
    seen = []
    for lot in range(2):
        for x, y in run.lot():
            seen.append((lot, run.in_trial))
            if len(seen) == 1:
                with pytest.raises(RuntimeError, match="backward"):
                    optimizer.step()
                continue
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert seen == [(0, True), (0, False), (1, True), (1, True), (1, True), (1, False)]


def test_small_lots_wait_for_the_first_of_four(make: Any) -> None:
    model, optimizer, run = make(sampling="fixed-size", lot_size=lambda step: 3 + step, steps=3)
    tried = []
    for x, y in run.batches():
        tried.append((run.step, run.in_trial))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert tried == [(0, False), (1, True), (1, True), (1, True), (1, False), (2, False)]


def test_a_resumed_run_tries_again_once(make: Any, tmp_path: Any) -> None:
    trials = []
    for steps in (1, 2):
        model, optimizer, run = make(nn.Linear(4, 3), steps=2, lot_size=40, ledger=tmp_path / "ledger.jsonl")
        if steps == 2:
            run.load(tmp_path / "checkpoint")
        while run.step < steps:
            for x, y in run.lot():
                trials.append((run.step, run.in_trial))
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        run.save(tmp_path / "checkpoint")
        run.close()
        run.ledger.close()
    assert trials == [(0, True)] * 3 + [(0, False)] + [(1, True)] * 3 + [(1, False)]


def test_a_checkpoint_saved_in_the_trial_is_that_of_before_the_lot(make: Any, tmp_path: Any) -> None:
    model, optimizer, run = make(nn.Linear(4, 3), steps=2, lot_size=40, ledger=tmp_path / "ledger.jsonl")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    before = copy.deepcopy(model.state_dict())
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        with pytest.raises(RuntimeError, match="a lot is being worked on"):
            run.save(tmp_path / "checkpoint", scheduler=scheduler)
        optimizer.step()
        scheduler.step()
        if run.step == 0:
            run.save(tmp_path / "checkpoint", scheduler=scheduler)
    assert scheduler.last_epoch == 2
    run.load(tmp_path / "checkpoint", scheduler=scheduler)
    assert run.step == 0 and scheduler.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 0.1
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_missing_trial_of_sharded_models_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    trial = Trial(attach(model), model, torch.optim.SGD(model.parameters()), wanted=True, sharded=True, rows=Rows())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not list(trial.batches(None, np.arange(30), 10))  # type: ignore[arg-type]
    assert len(told(caplog)) == 1 and "sharded" in caplog.text


# -- inputs that are not followed --------------------------------------------------------------------------------------


def test_an_untraced_input_with_a_row_for_each_record_is_the_records_own(make: Any) -> None:
    """As if it were followed: statistics of it are refused inside the model."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor, copied: Tensor) -> Tensor:
            return self.linear(x - copied.mean(0))  # type: ignore[no-any-return]

    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, torch.from_numpy(x.numpy().copy())), y)

    with pytest.raises(ValueError, match="no per-example gradients"):
        go(make, loop, Centred(), trial=False)


def test_an_untraced_input_of_another_length_is_refused_with_the_remedy(make: Any) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.linear(x @ mask)  # type: ignore[no-any-return]

    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, torch.eye(4)), y)

    with pytest.raises(ValueError, match=r"do not agree on the number of examples.*batch_dim="):
        go(make, loop, Masked(), trial=False)
    assert go(make, loop, Masked(), batch_dim={"mask": None}).step == 2


@pytest.mark.parametrize("factor", [0.5, 4.0, -2.0])
def test_a_loss_scaled_by_a_constant_needs_no_declaration(make: Any, factor: float) -> None:
    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return factor * F.cross_entropy(model(x), y) + factor * 0.1 * model(x).square().mean()

    assert go(make, loop).guarantee(1e-5).epsilon > 0


HALVES: dict[str, Loop] = {
    "the sum of losses over len(x)": lambda run, m, x, y: each(m, x, y).sum() / len(x),
    "a reduction of sum over the size": lambda run, m, x, y: F.cross_entropy(m(x), y, reduction="sum") / x.size(0),
    "with a factor": lambda run, m, x, y: 0.1 * each(m, x, y).sum() / len(x),
    "beside a mean": lambda run, m, x, y: each(m, x, y).mean() + m(x).square().sum() / len(x),
}


@pytest.mark.parametrize("how", HALVES)
def test_a_sum_divided_by_the_number_of_records_is_their_mean(make: Any, how: str) -> None:
    """The step is that of the same loss written as a mean."""
    torch.manual_seed(0)
    first = nn.Linear(4, 3)
    means: dict[str, Loop] = {
        "with a factor": lambda run, m, x, y: 0.1 * each(m, x, y).mean(),
        "beside a mean": lambda run, m, x, y: (each(m, x, y) + m(x).square().sum(1)).mean(),
    }
    plain: Loop = means.get(how, lambda run, m, x, y: each(m, x, y).mean())
    found = []
    for loop in (HALVES[how], plain):
        model = copy.deepcopy(first)
        go(make, loop, model, noise_multiplier=1e-6, clipping=0.3, batch_size=7, seed=1)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_a_sum_divided_by_a_count_that_was_the_number_of_records_in_the_trial_is_refused(make: Any) -> None:
    """Labels that count are rarely missing: the first few records have them all."""

    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        counts = (y >= 0) if run.in_trial else (y > 0)
        return (each(model, x, y) * counts).sum() / counts.sum().item()

    with pytest.raises(ValueError, match="divided by something else now"):
        go(make, loop)


def test_a_sum_divided_by_the_square_of_the_number_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="changed with the other examples"):
        go(make, lambda run, m, x, y: each(m, x, y).sum() / len(x) ** 2)


def test_a_scale_that_changes_after_the_trial_must_be_declared(make: Any) -> None:
    def loop(run: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y) * (0.5 if run.in_trial else 0.25)

    with pytest.raises(ValueError, match="reduction cannot be told"):
        go(make, loop)
    assert go(make, loop, reduction="mean").guarantee(1e-5).epsilon > 0


def test_a_progress_bar_around_the_batches_does_not_hide_a_mixing_loop(make: Any) -> None:
    """A generator between loop and run, as tqdm is: dropout must stand still for the loop behind it."""

    def progress(batches: Any) -> Any:
        yield from batches

    def loop() -> None:
        for x, y in progress(run.batches()):
            (each(model, x, y) / len(x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model, optimizer, run = make(model, lot_size=40, steps=2)
    with pytest.raises(ValueError, match="run together and in two parts"):
        loop()
