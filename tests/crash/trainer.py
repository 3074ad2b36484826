"""A training run that can be killed anywhere; started by `test_kill`, which sends one JSON order a line.

Everything is imported once; each order is carried out by a fork, so that a run begins at once. An order says when to
die: {"calls": n} at the n-th call of a function of the library, {"hook": name, "count": n} at the n-th time a hook is
reached, {} not at all. What is released is written to a file, synchronously, before anyone else can use it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import Ledger, journal
from tacit.mechanisms import groups
from tacit.training import checkpoint

LIBRARY = str(Path(tacit.__file__).parent)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_calls(calls: int) -> None:
    """SIGKILL at a function call of the library: anywhere in the run, whatever the machine's speed."""
    left = calls

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            left -= 1
            if left <= 0:
                die()

    sys.setprofile(count)


class Hooks:
    """Named places at which the run may be told to die."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.name, self.left = order.get("hook"), order.get("count", 0)

    def reach(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left <= 0:
                die()


def install(hooks: Hooks, folder: Path, run: Any) -> None:
    releases = os.open(folder / "releases.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    add, record, put, sync = groups.add_noise_, Ledger.record, journal._put, journal._sync

    def spy(sums: Any, source: Any) -> None:
        hooks.reach("recorded, not yet released")
        before = [total.clone() for total, *_ in sums]
        add(sums, source)
        noise = [float(v) for (total, *_), old in zip(sums, before) for v in (total - old).flatten()]
        os.write(releases, (json.dumps({"step": run.step, "noise": noise}) + "\n").encode())
        hooks.reach("released, not yet used")

    def recorded(self: Any, step: Any, **how: Any) -> Any:
        hooks.reach("about to record")
        receipt = record(self, step, **how)
        hooks.reach("recorded, nobody drawn")
        return receipt

    def written(fd: int, data: bytes, offset: int) -> None:
        hooks.reach("in the journal, before a write")
        if hooks.name == "in the journal, half a write" and hooks.left == 1:
            put(fd, data[: len(data) // 2], offset)
        hooks.reach("in the journal, half a write")
        put(fd, data, offset)
        hooks.reach("in the journal, before the disk has it")

    def synced(fd: int) -> None:
        sync(fd)
        hooks.reach("in the journal, after the disk has it")

    groups.add_noise_ = spy  # type: ignore[assignment]
    Ledger.record = recorded  # type: ignore[method-assign]
    journal._put, journal._sync = written, synced
    flush = checkpoint.sync

    def saving(path: Path) -> None:
        hooks.reach("saving a checkpoint")
        flush(path)

    checkpoint.sync = saving


def train(folder: Path, steps: int, order: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(300) % 3
    x = 2 * torch.eye(4)[y] + 0.5 * torch.randn(300, 4, generator=generator)
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    if "bytes" in order:  # the kernel then refuses to let any file grow beyond: a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["bytes"], order["bytes"]))
    if "calls" in order:
        die_after_calls(order["calls"])
    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(x, y),
        lot_size=30,
        steps=steps,
        clipping=tacit.Adaptive(initial=0.5),
        noise_multiplier=0.8,
        ledger=folder / "ledger.jsonl",
    )
    if (folder / "point").exists() or (folder / "point.old").exists():
        run.load(folder / "point")
    install(Hooks(order), folder, run)
    for a, b in run.batches():
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.step % 5 == 0:
            run.save(folder / "point")
    accuracy = float((model(x).argmax(1) == y).float().mean())
    (folder / "result.json").write_text(json.dumps({"steps": run.step, "accuracy": accuracy}))


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports half of PyTorch
    if mutant := os.environ.get("TACIT_MUTANT"):
        from mutants.catalogue import MUTANTS

        MUTANTS[mutant].apply(pytest.MonkeyPatch())
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code = 1
            try:
                train(folder, steps, json.loads(line))
                code = 0
            except OSError as error:
                (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
                code = 3
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
