"""What a forward pass writes into the model is found out and undone, whichever way it was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import tacit
from tacit.training import snapshot as held_module
from tacit.training.parameters import WatchedParameters
from tacit.training.snapshot import Snapshot

Write = Callable[[Any, Tensor], None]


class Writer(nn.Module):
    """A line that writes something somewhere while it looks at the batch."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.line, self.fixed, self.write = nn.Linear(4, 3), nn.Linear(4, 4), write
        self.fixed.requires_grad_(False)
        self.register_buffer("stat", torch.zeros(4))
        self.register_buffer("later", None)

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x)
        return self.line(x)  # type: ignore[no-any-return]


def unseen(x: Tensor) -> Tensor:
    """The values of the batch as a tensor that the engine does not follow."""
    with ThreadPoolExecutor(1) as others:
        return others.submit(lambda: torch.Tensor.as_subclass(x.detach(), Tensor).clone()).result()


def rebind(model: Any, x: Tensor) -> None:
    model.stat = model.stat * 0.9 + x.detach().mean(0) * 0.1


def rebind_plain(model: Any, x: Tensor) -> None:
    model.stat = model.stat + torch.as_tensor(unseen(x).mean(0))


def entry(model: Any, x: Tensor) -> None:
    model._buffers["stat"] = x.mean(0).detach().clone()


def new_entry(model: Any, x: Tensor) -> None:
    model.later = unseen(x).mean(0)


def removed(model: Any, x: Tensor) -> None:
    model.stat = None


def data(model: Any, x: Tensor) -> None:
    model.stat.data = x.detach().mean(0)


def data_in_place(model: Any, x: Tensor) -> None:
    model.stat.data.copy_(x.detach().mean(0))


def weight(model: Any, x: Tensor) -> None:
    model.line.weight.data.add_(unseen(x).mean(0) * 0.01)


def one_weight(model: Any, x: Tensor) -> None:
    model.line.bias.data[0] = x.detach().sum()


def weight_data(model: Any, x: Tensor) -> None:
    model.line.bias.data = unseen(x).mean(0)[:3]


def new_weight(model: Any, x: Tensor) -> None:
    model.line.weight = nn.Parameter(unseen(x)[:3].clone(), requires_grad=False)


BUFFERS = [rebind, rebind_plain, entry, new_entry, removed, data, data_in_place]
PARAMETERS = [weight, one_weight, weight_data, new_weight]
IN_PLACE = [data_in_place, one_weight]  # the engine sees these at the write itself, and says so there
LOST = {weight: "line.weight", one_weight: "line.bias"}  # written over


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_untouched(model: nn.Module, before: dict[str, Tensor], lost: str | None = None) -> None:
    """As it was; but for values of a weight that were written over, and are nothing now."""
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        expected = torch.full_like(value, torch.nan) if name == lost else value
        assert type(after[name]) is Tensor and torch.equal(after[name].nan_to_num(7.0), expected.nan_to_num(7.0)), name


@pytest.mark.parametrize("write", BUFFERS + PARAMETERS, ids=lambda write: str(write.__name__))
def test_writes_of_the_forward_pass_are_refused_and_undone(make: Any, train: Any, write: Write) -> None:
    model, _, run = make(Writer(write), lot_size=60)
    before = state(model)
    later = "buffer '(stat|later)'" if write in BUFFERS else "parameter 'line"
    error, said = (ValueError, "in place, into memory") if write in IN_PLACE else (RuntimeError, later)
    with pytest.raises(error, match=said):
        train(run)
    assert_untouched(model, before, LOST.get(write))
    assert run.abandoned == 1


@pytest.mark.parametrize("write", BUFFERS + PARAMETERS, ids=lambda write: str(write.__name__))
def test_nothing_stays_of_a_lot_that_was_left(make: Any, write: Write) -> None:
    model, _, run = make(Writer(write), lot_size=60)
    before = state(model)
    with pytest.raises(ValueError, match="in place") if write in IN_PLACE else nullcontext():
        for x, _ in run.lot():
            model(x)
            break
    if write in IN_PLACE:
        run.close()  # the traceback keeps the lot's iterator alive
    assert_untouched(model, before, LOST.get(write))


def test_closing_the_run_in_the_middle_of_a_lot_undoes_the_models_writes(make: Any) -> None:
    model, _, run = make(Writer(weight), lot_size=60)
    before = state(model)
    lot = run.lot()
    model(next(lot)[0])
    run.close()
    assert_untouched(model, before, "line.weight")
    with torch.no_grad():
        model.line.weight.fill_(1.0)  # the caller's own again, whatever becomes of the iterator
    lot.close()
    assert bool((model.line.weight == 1).all())


def test_a_batch_whose_weights_were_written_is_not_added_by_a_second_step(make: Any) -> None:
    _, optimizer, run = make(Writer(weight), lot_size=60, trial=False)
    for x, y in run.lot():
        F.cross_entropy(run.model(x), y).backward()
        with pytest.raises(RuntimeError, match=r"line\.weight"):
            optimizer.step()
        with pytest.raises(RuntimeError, match="twice"):
            optimizer.step()
    assert run.step == 0 and run.abandoned == 1


def test_the_model_may_not_write_after_the_step_either(make: Any) -> None:
    model, optimizer, run = make(Writer(lambda model, x: None), lot_size=60, trial=False)
    lot = run.lot()
    x, y = next(lot)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    rebind_plain(model, x)
    with pytest.raises(RuntimeError, match="buffer 'stat'"):
        next(lot)
    assert torch.equal(model.stat, torch.zeros(4))


def test_a_run_does_not_go_on_with_values_that_are_lost(make: Any, train: Any, tmp_path: Path) -> None:
    model, _, run = make(Writer(lambda model, x: None), steps=4, ledger=tmp_path / "ledger.jsonl")
    before = state(model)
    model.write = weight
    with pytest.raises(RuntimeError, match=r"'line.weight' changed .* \(without its values.*: line.weight\)"):
        train(run)
    model.write = lambda model, x: None
    recorded = len(run.ledger)
    for go_on in (lambda: train(run), lambda: run.save(tmp_path / "checkpoint")):
        with pytest.raises(RuntimeError, match=r"line.weight.*Load a checkpoint"):
            go_on()
    assert len(run.ledger) == recorded
    model.load_state_dict(before)
    assert train(run) == 4
    run.save(tmp_path / "checkpoint")


def once(write: Write) -> Write:
    """Only the first time that this model, and not a copy of it, is called."""

    def first(model: Any, x: Tensor) -> None:
        if not hasattr(model, "wrote"):
            model.wrote = True
            write(model, x)

    return first


def test_a_refused_buffer_does_not_let_a_parameter_pass(make: Any) -> None:
    """Though the caller goes on with the next batch of the lot."""

    def both(model: Any, x: Tensor) -> None:
        rebind_plain(model, x)
        weight_data(model, x)

    model, optimizer, run = make(Writer(once(both)), lot_size=60, batch_size=20)
    before = state(model)
    refused = []
    with suppress(RuntimeError):  # of the lot, which one batch is missing from
        for x, y in run.lot():
            F.cross_entropy(model(x), y).backward()
            try:
                optimizer.step()
            except RuntimeError as error:
                refused.append(str(error))
            optimizer.zero_grad()
    assert len(refused) == 1 and "'line.bias'" in refused[0]
    assert_untouched(model, before)


def test_nothing_stays_where_the_model_takes_a_module_away(make: Any, train: Any, tmp_path: Path) -> None:
    def write(model: Any, x: Tensor) -> None:
        weight_data(model, x)
        del model.fixed

    model, _, run = make(Writer(write), lot_size=60)
    bias = model.line.bias.detach().clone()
    for go_on in (lambda: train(run), lambda: train(run), lambda: run.save(tmp_path / "checkpoint")):
        with pytest.raises(RuntimeError, match=r"'fixed'.* is no longer in the model"):
            go_on()
    assert torch.equal(model.line.bias, bias)
    with pytest.raises(RuntimeError, match="no longer"):
        run.close()
    assert not run._attached


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C in one of the next digests."""
    left, real = [after], held_module.digests

    def digests(several: Sequence[Tensor]) -> Any:
        before, left[0] = left[0], left[0] - len(several)
        if left[0] <= 0 < before:
            raise KeyboardInterrupt
        return real(several)

    monkeypatch.setattr(held_module, "digests", digests)


def test_an_interruption_before_a_batch_takes_nothing_from_the_model(
    make: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, run = make(Writer(lambda model, x: None), lot_size=60)
    before = state(model)
    for after in (2, 4, 7):
        interrupted(monkeypatch, after)
        with pytest.raises(KeyboardInterrupt):
            train(run)
        monkeypatch.undo()
        assert_untouched(model, before)
    assert train(run) == 4


def test_an_interruption_while_a_write_is_undone_lets_nothing_pass(
    make: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, run = make(Writer(once(weight_data)), lot_size=60)
    before = state(model)
    for x, y in run.lot():
        F.cross_entropy(model(x), y).backward()
        interrupted(monkeypatch, 4)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        monkeypatch.undo()
        break
    assert_untouched(model, before)
    optimizer.zero_grad()
    assert train(run) == 4


@pytest.mark.parametrize("batch_size", [60, 20])
def test_values_that_are_loaded_again_are_right(make: Any, train: Any, batch_size: int) -> None:
    """At once, or when the lot has been given up."""
    model, optimizer, run = make(Writer(once(weight)), lot_size=60, batch_size=batch_size)
    good, refused = state(model), 0
    with suppress(RuntimeError):  # of the lot, which one batch is missing from
        for x, y in run.lot():
            F.cross_entropy(model(x), y).backward()
            try:
                optimizer.step()
            except RuntimeError:
                refused += 1
                model.load_state_dict(good)
            optimizer.zero_grad()
    assert refused
    model.load_state_dict(good)
    optimizer.zero_grad()
    assert train(run) == 4 * 60 // batch_size


def test_a_parameter_in_place_of_a_lost_one_is_right() -> None:
    model = nn.Linear(2, 2)
    watched = WatchedParameters(model)
    watched.hold()
    model.bias.data.add_(1)
    with pytest.raises(RuntimeError, match="'bias'"):
        watched.check()
    with pytest.raises(RuntimeError, match="Load"):
        watched.refuse_lost()
    model.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, assign=True)
    watched.refuse_lost()


def test_a_refused_checkpoint_does_not_end_the_watch(make: Any, tmp_path: Path) -> None:
    model, optimizer, run = make(Writer(weight_data), lot_size=60, ledger=tmp_path / "ledger.jsonl", trial=False)
    before = state(model)
    for x, y in run.lot():
        with pytest.raises(RuntimeError, match="a lot is being worked on"):
            run.save(tmp_path / "checkpoint")
        F.cross_entropy(model(x), y).backward()
        with pytest.raises(RuntimeError, match=r"'line.bias'"):
            optimizer.step()
    assert_untouched(model, before)


def test_a_checkpoint_has_no_buffer_that_was_written_after_the_step(make: Any, tmp_path: Path) -> None:
    model, optimizer, run = make(
        Writer(lambda model, x: None), lot_size=60, ledger=tmp_path / "ledger.jsonl", trial=False
    )
    for x, y in run.lot():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        rebind_plain(model, x)
        with pytest.raises(RuntimeError, match="buffer 'stat'"):
            run.save(tmp_path / "checkpoint")
        break


@pytest.mark.parametrize("after", range(1, 12))
def test_whenever_it_is_interrupted_nothing_stays_or_is_lost(
    make: Any, train: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: int
) -> None:
    """While a lot is left; what is loaded next is not taken for a write."""
    model, optimizer, run = make(Writer(lambda model, x: None), steps=9, ledger=tmp_path / "ledger.jsonl")
    run.save(tmp_path / "checkpoint")
    before = state(model)
    model.write = weight_data
    lot = run.lot()
    model(next(lot)[0])
    interrupted(monkeypatch, after)
    with suppress(KeyboardInterrupt):
        lot.close()
    monkeypatch.undo()
    assert_untouched(model, before)
    model.write = lambda model, x: None
    run.load(tmp_path / "checkpoint")
    optimizer.zero_grad()
    assert train(run) == 9
    assert not any(value.isnan().any() for value in model.state_dict().values())


def test_an_interrupted_step_does_not_let_the_next_batch_begin_with_what_was_written(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, run = make(Writer(once(weight_data)), lot_size=60, batch_size=20)
    before = state(model)
    lot = run.lot()
    x, y = next(lot)
    F.cross_entropy(model(x), y).backward()
    interrupted(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"'line.bias' changed"):
        next(lot)
    assert_untouched(model, before)


def test_closing_undoes_what_an_interruption_left(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, run = make(Writer(weight_data), lot_size=60)
    before = state(model)
    model(next(lot := run.lot())[0])
    monkeypatch.setattr(run._watched.weights, "put_back", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        lot.close()
    monkeypatch.undo()
    run.close()
    assert_untouched(model, before)


def sparse(model: Any, x: Tensor) -> None:
    model.extra.data._values().copy_(unseen(x)[0, :3])


def part(model: Any, x: Tensor) -> None:
    model.extra.a = unseen(x)[:3, 0].clone()


def part_data(model: Any, x: Tensor) -> None:
    model.extra.a.data = unseen(x)[:3, 0].clone()


def flag(model: Any, x: Tensor) -> None:
    model.extra.data.copy_(unseen(x)[:3, 0] > -torch.inf)  # all True, whoever was drawn


@pytest.mark.parametrize("write", [sparse, part, part_data, flag], ids=lambda write: str(write.__name__))
def test_nothing_stays_in_tensors_of_other_kinds(make: Any, train: Any, write: Write) -> None:
    kinds: dict[Write, Callable[[], Tensor]] = {
        sparse: lambda: torch.eye(3).to_sparse().coalesce(),
        flag: lambda: torch.zeros(3, dtype=torch.bool),
    }
    right = kinds.get(write, lambda: TwoTensor(torch.ones(3), torch.ones(3)))
    module = Writer(once(write))
    module.extra = nn.Parameter(right(), requires_grad=False)  # type: ignore[assignment]
    model, _, run = make(module, lot_size=60)
    with pytest.raises(RuntimeError, match=r"'extra' .*lost|'extra' .*without its values"):
        train(run)
    left = {sparse: lambda: model.extra._values(), flag: lambda: model.extra}.get(write, lambda: model.extra.a)()
    assert left.numel() == 0 or bool(left.isnan().all()) or not bool(left.any())
    with pytest.raises(RuntimeError, match="Load"):
        train(run)
    if write is flag:
        model.extra.data.copy_(torch.zeros(3))
        model.load_state_dict(model.state_dict())  # the same values, all False
        assert train(run) == 4


def test_whole_numbers_that_are_lost_are_overwritten_too(make: Any, train: Any) -> None:
    def write(model: Any, x: Tensor) -> None:
        model.table.data.copy_(unseen(x)[:3, 0] * 10)

    module = Writer(write)
    module.table = nn.Parameter(torch.arange(3), requires_grad=False)  # type: ignore[assignment]
    model, _, run = make(module, lot_size=60)
    with pytest.raises(RuntimeError, match="'table'"):
        train(run)
    assert model.table.tolist() == [2**63 - 1] * 3


def test_wrappers_around_tensors_are_watched(make: Any, train: Any) -> None:
    module = Writer(lambda model, x: None)
    module.pair = nn.Parameter(TwoTensor(torch.randn(3), torch.randn(3)), requires_grad=False)  # type: ignore[assignment]
    model, _, run = make(module, steps=2)
    assert train(run) == 2
    run.close()
    model, _, run = make(module, lot_size=60)
    model.write = lambda model, x: model.pair.b.data.copy_(unseen(x)[:3, 0])
    with pytest.raises(RuntimeError, match="'pair'"):
        train(run)
    assert bool(model.pair.b.isnan().all())


@pytest.mark.parametrize("size", [0, 4])
def test_memory_that_is_taken_away_is_seen_and_not_read(make: Any, train: Any, size: int) -> None:
    model, _, run = make(Writer(lambda model, x: model.fixed.weight.untyped_storage().resize_(size)), lot_size=60)
    with pytest.raises(RuntimeError, match=r"'fixed.weight'"):
        train(run)
    assert bool(model.fixed.weight.isnan().all())


@pytest.mark.parametrize("how", ["data", "in place"])
def test_frozen_parameters_are_watched_too(make: Any, train: Any, how: str) -> None:
    def write(model: Any, x: Tensor) -> None:
        mean = unseen(x).mean(0)
        if how == "data":
            model.fixed.bias.data = mean
        else:
            model.fixed.bias.data.copy_(mean)

    model, _, run = make(Writer(write), lot_size=60)
    before = model.fixed.bias.detach().clone()
    with pytest.raises(RuntimeError, match=r"'fixed.bias' .* restored"):
        train(run)
    assert torch.equal(model.fixed.bias, before) if how == "data" else bool(model.fixed.bias.isnan().all())


def test_a_public_buffer_may_be_written_but_not_from_the_batch(make: Any, train: Any) -> None:
    def count(model: Any, x: Tensor) -> None:
        model.stat = model.stat + 1

    model, _, run = make(Writer(count), public_buffers=["st*"], steps=3)
    assert train(run) == 3 and model.stat.tolist() == [3.0] * 4
    model, _, run = make(Writer(rebind), public_buffers=["st*"], lot_size=60)
    with pytest.raises(RuntimeError, match="buffer 'stat'"):
        train(run)
    assert torch.equal(model.stat, torch.zeros(4)) and type(model.stat) is Tensor


def test_a_checkpoint_brings_its_buffers(make: Any, train: Any, tmp_path: Path) -> None:
    pretrained = Writer(lambda model, x: None)
    pretrained.stat.fill_(2.0)
    _, _, run = make(pretrained, steps=2, ledger=tmp_path / "ledger.jsonl")
    train(run)
    run.save(tmp_path / "checkpoint")
    run.close()
    run.ledger.close()
    model, _, again = make(Writer(lambda model, x: None), steps=4, ledger=tmp_path / "ledger.jsonl")
    again.load(tmp_path / "checkpoint")
    assert train(again) == 2 and model.stat.tolist() == [2.0] * 4


def test_weights_may_be_changed_after_the_step(make: Any) -> None:
    model, optimizer, run = make(Writer(lambda model, x: None), lot_size=30, batch_size=10, steps=3)
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)
    assert run.step == 3 and run.abandoned == 0


def test_a_tied_weight_is_put_back_under_both_names(make: Any, train: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.write = True

        def forward(self, x: Tensor) -> Tensor:
            if self.write:
                self.first.weight = nn.Parameter(unseen(x)[:4].clone(), False)
            return self.second(self.first(x))  # type: ignore[no-any-return]

    model = Tied()
    before = state(model)
    _, _, run = make(model, lot_size=60)
    with pytest.raises(RuntimeError, match=r"first\.weight"):
        train(run)
    assert_untouched(model, before)
    assert model.first.weight is model.second.weight
    model.write = False
    assert train(run) == 4


def test_a_run_that_diverged_is_not_taken_for_a_write(make: Any, train: Any) -> None:
    model, _, run = make(Writer(lambda model, x: None), steps=2)
    with torch.no_grad():
        model.line.weight.fill_(float("nan"))
    assert train(run) == 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float64, torch.complex128])
@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("copied", [True, False])
def test_one_changed_value_is_seen_in_every_type(dtype: torch.dtype, size: int, copied: bool) -> None:
    tensor = torch.zeros(2, size, dtype=dtype).T
    held = Snapshot(tensor, copied=copied)
    assert held.same(tensor)
    tensor.data[size - 1, 1] = 1
    assert not held.same(tensor)
    assert held.put_back() is copied
    assert held.same(tensor) is copied or bool((tensor == 0).all())
    held.renew()
    assert held.same(tensor) and not held.same(tensor.clone()) and not held.same(None)


def test_a_failed_first_batch_does_not_bring_back_the_sum_of_a_lot_that_was_left(make: Any, silence: Any) -> None:
    model, optimizer, run = make(lot_size=60, batch_size=20, trial=False)
    for number, (x, y) in enumerate(run.lot(), start=1):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number == 2:
            break
    for number, (x, _) in enumerate(run.lot(), start=1):
        if number == 1:
            with pytest.raises(RuntimeError, match="backward"):
                optimizer.step()
            continue
        (model(x) * 0).sum().backward()  # the lot itself brings nothing
        optimizer.step()
    assert run.step == 1
    assert all(bool((parameter.grad == 0).all()) for parameter in model.parameters())


REPEATED: dict[str, Callable[[Tensor], Tensor]] = {
    "index": lambda rows: rows[torch.zeros(len(rows), dtype=torch.long)],
    "index_select": lambda rows: rows.index_select(0, torch.zeros(len(rows), dtype=torch.long)),
    "one twice": lambda rows: rows[torch.arange(len(rows)).clamp(min=1)],
}


@pytest.mark.parametrize("how", REPEATED)
def test_a_metric_has_each_example_once(make: Any, how: str) -> None:
    model, _, run = make(lot_size=60, metrics={"m": tacit.Metric(bound=1.0)})
    for x, y in run.lot():
        loss = F.cross_entropy(model(x), y, reduction="none")
        with pytest.raises(ValueError, match="several values of one example"):
            run.observe(m=REPEATED[how](loss))
        break


def test_a_metric_may_have_the_examples_in_any_order(make: Any, silence: Any) -> None:
    model, optimizer, run = make(lot_size=60, metrics={"m": tacit.Metric(bound=100.0)})
    for x, y in run.lot():
        loss = F.cross_entropy(model(x), y, reduction="none")
        expected = float(loss.detach().mean())
        loss.sum().backward()
        run.observe(m=loss[torch.randperm(len(loss))])
        optimizer.step()
    assert run.metrics["m"] == pytest.approx(expected, rel=1e-5)


def test_a_metric_of_an_earlier_batch_is_refused(make: Any) -> None:
    model, optimizer, run = make(lot_size=60, batch_size=30, metrics={"m": tacit.Metric(bound=1.0)}, trial=False)
    kept: list[Tensor] = []
    for x, y in run.lot():
        loss = F.cross_entropy(model(x), y, reduction="none")
        loss.sum().backward()
        if kept:
            with pytest.raises(ValueError, match="earlier batch"):
                run.observe(m=kept[0])
        kept.append(loss)
        run.observe(m=loss)
        optimizer.step()
