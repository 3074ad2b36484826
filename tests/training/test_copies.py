"""No object that a user can keep holds an exact value of a record, however the run ended."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit import gradients
from tacit.training import PrivateBatchNorm
from tacit.tuning import median_gradient_norm
from tacit.tuning.histogram import gradient_norms

RECORDS = torch.randn(40, 4, generator=torch.Generator().manual_seed(11))
"""Planted: no eps and no momentum in the normalisation, so that its statistics of a record are the record's bits."""


def planted_in(content: bytes) -> int:
    """How many records have at least three of their four values in ``content``."""
    return sum(sum(value.numpy().tobytes() in content for value in record) > 2 for record in RECORDS)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def reachable(value: Any, besides: tuple[Tensor, ...] = ()) -> bytes:
    """The bytes of every tensor that can be reached from ``value``, without ``besides``."""
    seen = {id(each) for each in besides}
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or type(each) in (types.ModuleType, types.FrameType) or isinstance(each, type):
            continue
        seen.add(id(each))
        if issubclass(type(each), Tensor):
            found.append(each.detach().as_subclass(Tensor).contiguous().numpy().tobytes())
        # Of a function what it closes over, and not the globals of its module, where this test has the records.
        waiting += each.__closure__ or () if type(each) is types.FunctionType else gc.get_referents(each)
    return b"".join(found)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = PrivateBatchNorm(4, eps=0.0, momentum=0.0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))  # type: ignore[no-any-return]


class Session:
    """A run on the planted records, all of them in every lot, and the objects beside it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.data = TensorDataset(RECORDS.clone(), torch.arange(40) % 3)
        chosen = {"lot_size": 40, "steps": 2, "batch_size": 16, "noise_multiplier": 1.0} | settings
        self.run = tacit.make_private(
            self.model, self.optimizer, self.data, clipping=tacit.Flat(1.0), ledger=folder / "ledger.jsonl", **chosen
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.kept: list[Any] = []

    def train(self, batches: Iterator[Any] | None = None, change: Callable[[Tensor], Tensor] = lambda out: out) -> None:
        for x, y in self.run.batches() if batches is None else batches:
            F.cross_entropy(change(self.model(x)), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def half(self) -> Iterator[Any]:
        """Work on two batches of the first lot, and stop before the step of the second."""
        batches = self.run.batches()
        x, y = next(batches)
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        x, y = next(batches)
        F.cross_entropy(self.model(x), y).backward()
        return batches


def finish(session: Session) -> None:
    session.train()


def finish_and_close(session: Session) -> None:
    session.train()
    session.run.close()


def interrupt(session: Session) -> None:
    session.kept.append(session.half())  # Ctrl-C in a notebook: the traceback keeps the loop's iterator


def interrupt_and_close(session: Session) -> None:
    session.kept.append(session.half())
    session.run.close()


def break_out(session: Session) -> None:
    session.half().close()  # type: ignore[attr-defined]


def break_out_and_close(session: Session) -> None:
    break_out(session)
    session.run.close()


def fail_in_the_model_and_close(session: Session) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    batches = session.half()
    session.optimizer.step()
    hook = session.model.linear.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        session.model(next(batches)[0])
    hook.remove()
    session.run.close()


def fail_in_the_loop(session: Session) -> None:
    def fail(out: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        session.train(change=fail)


def be_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="per-example"):
        session.train(change=lambda out: out - out.mean(0))


def be_interrupted_in_the_model(session: Session) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = session.model.linear.register_forward_hook(stop)
    batches = session.run.batches()
    x, _ = next(batches)
    with pytest.raises(KeyboardInterrupt):
        session.model(x)
    handle.remove()
    session.kept.append(batches)


def fail_in_the_step(session: Session) -> None:
    def fail(*_: Any) -> None:
        raise OSError

    handle = session.optimizer.register_step_pre_hook(fail)
    with pytest.raises(OSError):
        session.train()
    handle.remove()


def look_again_in_training_mode(session: Session) -> None:
    session.train()
    session.model(session.data.tensors[0])


def look_again_and_close(session: Session) -> None:
    look_again_in_training_mode(session)
    session.run.close()


def overrun_the_budget(session: Session) -> None:
    session.run.close()
    session.run.ledger.close()
    session.__init__(session.folder, steps=2, budget=tacit.Budget(epsilon=5.0, delta=1e-5))  # type: ignore[misc]
    session.train()
    assert session.run.step < 2


def save_and_resume(session: Session) -> None:
    session.train(session.run.lot())
    session.run.save(session.folder / "checkpoint", scheduler=session.scheduler)
    session.half().close()  # type: ignore[attr-defined]
    session.run.load(session.folder / "checkpoint", scheduler=session.scheduler)


def close_and_measure_norms(session: Session) -> None:
    session.run.close()
    gradient_norms(session.model, *session.data.tensors)
    ledger = tacit.Ledger()
    median_gradient_norm(session.model, session.data, ledger=ledger, low=0.1, high=10.0, noise_multiplier=1.0)


ENDS: list[Callable[[Session], None]] = [
    finish,
    finish_and_close,
    interrupt,
    interrupt_and_close,
    break_out,
    break_out_and_close,
    fail_in_the_model_and_close,
    fail_in_the_loop,
    be_refused,
    be_interrupted_in_the_model,
    fail_in_the_step,
    look_again_in_training_mode,
    look_again_and_close,
    overrun_the_budget,
    save_and_resume,
    close_and_measure_norms,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_nothing_that_a_user_can_save_or_copy_holds_a_record(end: Callable[[Session], None], tmp_path: Path) -> None:
    session = Session(tmp_path)
    end(session)
    held = {
        "model": session.model,
        "layer": session.model.norm,
        "optimizer": session.optimizer,
        "scheduler": session.scheduler,
        "average": session.average,
        "engine": session.run.engine,
        "metrics": session.run.metrics,
        "guarantee": session.run.guarantee(1e-5),
        "statement": session.run.statement(1e-5),
        "events": session.run.ledger.entries,
        "model's state": session.model.state_dict(),
        "optimizer's state": session.optimizer.state_dict(),
    }
    for name, value in held.items():
        assert not planted_in(pickle.dumps(value)), f"{name}, pickled"
        assert not planted_in(saved(value)), f"{name}, saved"
        assert not planted_in(saved(copy.copy(value))), f"{name}, copied"
        assert not planted_in(reachable(copy.deepcopy(value))), f"{name}, copied deeply"
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert not planted_in(file.read_bytes()), file.name
    for attempt in (pickle.dumps, saved, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"run\.save"):
            attempt(session.run)


@pytest.mark.parametrize("end", [end for end in ENDS if "close" in end.__name__], ids=lambda end: end.__name__)
def test_a_closed_run_leaves_no_record_in_the_memory_of_model_and_optimizer(
    end: Callable[[Session], None], tmp_path: Path
) -> None:
    session = Session(tmp_path)
    end(session)
    assert not planted_in(
        reachable([session.model, session.optimizer, session.run.engine], besides=session.data.tensors)
    )


def test_the_search_finds_planted_records() -> None:
    assert planted_in(saved({"a": RECORDS.clone()})) == planted_in(reachable([{"a": RECORDS.t()}])) == len(RECORDS)


def test_statistics_of_a_batch_are_kept_only_while_the_run_waits_for_them() -> None:
    model = Model()
    for expected in (False, True):
        if expected:
            model.norm.expect()
        with gradients.record(model, reduction="sum"):
            model(RECORDS).sum().backward()
        assert len(model.norm.collect(len(RECORDS))) == (len(RECORDS) if expected else 0)


def test_a_copy_of_the_model_made_in_the_loop_is_an_ordinary_model(tmp_path: Path) -> None:
    session = Session(tmp_path)
    batches = session.half()
    twin = copy.deepcopy(session.model)
    twin.eval()
    F.cross_entropy(twin(RECORDS), torch.arange(40) % 3).backward()
    assert all(p.grad is not None for p in twin.parameters())
    other = tacit.make_private(
        twin,
        torch.optim.SGD(twin.parameters(), lr=0.1),
        session.data,
        lot_size=10,
        steps=1,
        clipping=tacit.Flat(1.0),
        noise_multiplier=1.0,
    )
    other.close()
    batches.close()  # type: ignore[attr-defined]
