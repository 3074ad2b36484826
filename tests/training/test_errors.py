"""Misuse: every message names the value and the fix, and a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import tacit
from tacit.mechanisms import Proportional


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"lot_size": 0}, "lot_size is 0; it must be from 1 to the number of records, 60"),
    ({"lot_size": 61}, "lot_size is 61"),
    ({"lot_size": 6.0}, "lot_size is 6.0; it must be a whole number"),
    ({"lot_size": "12"}, "lot_size is '12'"),
    ({"lot_size": 0, "epochs": 2}, "lot_size is 0; it must be from 1"),
    ({"lot_size": None, "epochs": 2}, "lot_size is None; it must be a whole number"),
    ({"lot_size": True}, "lot_size is True; it must be a whole number"),
    ({"epochs": 1, "steps": 3}, "epochs is 1 and steps is 3; give one of them"),
    ({"epochs": None, "steps": None}, "epochs is None and steps is None"),
    ({"epochs": 0.0}, "epochs is 0.0; it must be a finite number above 0"),
    ({"epochs": math.inf}, "epochs is inf"),
    ({"steps": 0}, "steps is 0; it must be a whole number, at least 1"),
    ({"steps": 2.5}, "steps is 2.5"),
    ({"steps": True}, "steps is True"),
    ({"epochs": 5, "lot_size": lambda step: 12 if step < 3 else 0}, "lot_size is 0 at step 3"),
    ({"noise_multiplier": None}, "give a budget, from which the noise is solved, or a noise_multiplier"),
    ({"noise_multiplier": None, "budget": tacit.AdaptiveBudget(1.0, 1e-5)}, "give noise_multiplier too"),
    ({"noise_multiplier": 0.0}, "noise multiplier is 0.0; it must be a finite number above 0"),
    ({"noise_multiplier": -1.0}, "noise multiplier is -1.0"),
    ({"noise": "gaussian"}, "noise is 'gaussian'; choose 'proportional', 'dimension-adjusted'"),
    ({"noise": Proportional(1.0)}, "leave noise_multiplier out"),
    (
        {"sampling": "uniform"},
        "sampling is 'uniform'; choose one of 'poisson', 'fixed-size', 'shuffled', 'allocation', 'cyclic'",
    ),
    ({"sampling": "fixed-size", "adjacency": "add/remove"}, "fixed-size sampling has no proof under add/remove"),
    ({"adjacency": "zero-out"}, "adjacency is 'zero-out'; choose 'add/remove' or 'replace-one'"),
    ({"accountant": "gdp"}, "accountant is 'gdp'; choose one of"),
    ({"batch_size": -1}, "batch_size is -1; it must be a whole number, at least 1"),
    ({"reduction": "average"}, "reduction"),
    ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ({"clipping": tacit.Groups({"weight": 1.0})}, "bias matches nothing"),
    ({"dataset": TensorDataset(torch.zeros(0, 4))}, "the data set is empty"),
    ({"dataset": Stream()}, "the data set (Stream) is a stream: it has no records by number"),
    ({"ledger": tacit.Ledger(tacit.ledger.Header(adjacency="replace-one"))}, "the ledger's adjacency is replace-one"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_make_private_says_what_is_wrong_and_changes_nothing(make: Any, settings: dict[str, Any], message: str) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    chosen = {"noise_multiplier": 1.0, **settings}
    if chosen.get("noise_multiplier", 0) is None:
        del chosen["noise_multiplier"]
        chosen.setdefault("noise", "proportional")
    with pytest.raises(ValueError) as caught:
        make(model, optimizer, chosen.pop("dataset", None), **chosen)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    untouched(model, optimizer)


def untouched(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    assert "step" not in vars(optimizer)
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert all(not p._post_accumulate_grad_hooks and not p._backward_hooks for p in model.parameters())
    F.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_parameters_and_optimizer_must_agree(make: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"does not hold 1\.weight, 1\.bias; add them, or freeze them"):
        make(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    extra = nn.Linear(2, 2)
    both = torch.optim.SGD([*model.parameters(), *extra.parameters()], lr=0.1)
    with pytest.raises(ValueError, match="holds 2 trainable parameters that are not the model's"):
        make(model, both)
    with pytest.raises(ValueError, match="LBFGS evaluates its closure several times"):
        make(model, torch.optim.LBFGS(model.parameters()))
    frozen = nn.Linear(4, 3).requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        make(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1))
    assert not model._forward_hooks


def test_a_model_cannot_be_in_two_runs(make: Any) -> None:
    model, optimizer, first = make()
    with pytest.raises(RuntimeError, match="already being recorded"):
        make(model, optimizer)
    first.close()
    make(model, optimizer)


def test_a_forgotten_step(make: Any) -> None:
    model, optimizer, run = make(lot_size=60, batch_size=20)
    batches = run.batches()
    x, y = next(batches)
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"was not called after loss\.backward.*after every batch"):
        next(batches)
    assert run.step == 0 and len(run.ledger) == 1  # charged: the lot was drawn
    again = run.batches()
    x, y = next(again)  # and one can go on
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def test_a_step_too_many(make: Any) -> None:
    model, optimizer, run = make(lot_size=60)
    for x, y in run.lot():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        after = model.weight.detach().clone()
        with pytest.raises(RuntimeError, match="called twice for one batch"):
            optimizer.step()
    with pytest.raises(RuntimeError, match=r"outside run\.batches"):
        optimizer.step()
    assert torch.equal(model.weight, after)


def test_a_step_without_backward(make: Any) -> None:
    model, optimizer, run = make(lot_size=60)
    before = model.weight.detach().clone()
    lot = run.lot()
    x, _ = next(lot)
    with pytest.raises(RuntimeError, match="backward was not run"):
        (model(x), optimizer.step())
    assert torch.equal(model.weight, before)


def test_a_step_without_the_model(make: Any) -> None:
    _, optimizer, run = make(lot_size=60)
    lot = run.lot()
    next(lot)
    with pytest.raises(RuntimeError, match="backward was not run"):
        optimizer.step()


def test_two_lots_at_once(make: Any) -> None:
    _, _, run = make()
    lot = run.lot()
    next(lot)
    with pytest.raises(RuntimeError, match="the previous lot is still being worked on"):
        next(run.lot())
    lot.close()
    next(run.lot())


def test_a_lot_broken_off_leaves_nothing_for_the_next(make: Any, silence: Any, data: TensorDataset) -> None:
    model, optimizer, run = make(lot_size=60, batch_size=30, steps=3, clipping=tacit.Adaptive(count_noise_std=9.0))
    lot = run.lot()
    x, y = next(lot)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    lot.close()
    for x, y in run.lot():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    sums = silence.added[0][0].clone()
    assert len(run.ledger) == 2 and run.step == 1
    torch.manual_seed(0)
    reference = nn.Linear(4, 3)
    total = torch.zeros(3, 4)
    for i in range(60):
        loss = F.cross_entropy(reference(data.tensors[0][i : i + 1]), data.tensors[1][i : i + 1])
        w, b = torch.autograd.grad(loss, [reference.weight, reference.bias])
        total += w * min(1.0, 1.0 / float(torch.cat([w.flatten(), b]).norm()))
    torch.testing.assert_close(sums, total, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("when", ["reading", "loop", "optimizer", "break"])
def test_a_lot_that_fails_half_way_is_charged_counted_and_told(
    make: Any, train: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    class Broken(Exception):
        pass

    model, optimizer, run = make(lot_size=60, batch_size=30, steps=3)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise Broken

    with monkeypatch.context() as patch, contextlib.suppress(Broken):
        if when == "reading":
            patch.setattr(run._lots._drawing._reader, "read", fail)
        if when == "optimizer":
            patch.setattr(run._updates, "apply", fail)
        for x, y in run.batches():
            if when == "break":
                break
            if when == "loop":
                raise Broken
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    gc.collect()  # a generator broken off by an exception ends when nobody holds it any more
    assert (run.step, len(run.ledger), run.abandoned) == (0, 1, 1)
    assert "a lot was drawn but its step not completed; it stays charged (such lots so far: 1)" in caplog.text
    optimizer.zero_grad()
    train(run)  # the planned steps are all taken, and the lost lot is paid besides
    assert (run.step, len(run.ledger), run.abandoned) == (3, 4, 1)
    assert run.guarantee(1e-5).composition.parts[0][1] == 4


def test_close_leaves_no_trace(make: Any, train: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    names = list(model.state_dict())
    _, _, run = make(model, optimizer)
    assert list(model.state_dict()) == names and type(model) is nn.Linear
    train(run)
    run.close()
    run.close()
    assert list(model.state_dict()) == names
    untouched(model, optimizer)
    with pytest.raises(RuntimeError, match="the run was closed; make a new one"):
        next(run.lot())
    assert run.guarantee(1e-5).epsilon > 0
