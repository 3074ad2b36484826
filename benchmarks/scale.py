"""How a private step grows: with the data set, the lot, the parameters, the steps taken and the processes.

    python benchmarks/scale.py            prints the tables
    python benchmarks/scale.py --write    and puts them into docs/scale.md
    python benchmarks/scale.py --quick    smaller sizes only, to see that it works

Times are CPU seconds of one process on one thread, medians over several steps; with two processes also wall-clock time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import tacit
from tacit.ledger import GaussianSum, Ledger, Poisson, Step

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scale.md"
BEGIN, END = "<!-- scale:begin -->", "<!-- scale:end -->"


class Synthetic(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """As many records as wanted, each made when it is asked for."""

    def __init__(self, records: int, features: int) -> None:
        self._records = records
        self._row, self._label = torch.randn(features), torch.tensor(1)

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._row, self._label


def network(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def private_step(model: nn.Module, data: Any, lot: int, **settings: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(
        model, optimizer, data, lot_size=lot, steps=10**9, clipping=tacit.Flat(1.0), noise_multiplier=1.0,
        batch_size=min(2 * lot, 4096), **settings,
    )  # fmt: skip
    batches = run.batches()

    def step() -> None:
        before = run.step
        while run.step == before:
            x, y = next(batches)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def ordinary_step(model: nn.Module, x: Tensor, y: Tensor, processes: int = 1) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        if processes > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Any, repeats: int, clock: Any = time.process_time) -> float:
    step()
    taken = []
    for _ in range(repeats):
        start = clock()
        step()
        taken.append(clock() - start)
    return statistics.median(taken)


def over_records(quick: bool) -> list[str]:
    table = ["| records | ms a step |", "|---|---|"]
    for records in (10**4, 10**6) if quick else (10**4, 10**5, 10**6, 10**7, 10**8):
        step = private_step(network(60, 100), Synthetic(records, 60), 256)
        table.append(f"| {records:,} | {1e3 * seconds(step, 21):.1f} |")
    return ["Over the number of records (lot 256, a map-style data set, 7,110 parameters):\n", *table]


def over_lots(quick: bool) -> list[str]:
    table = ["| lot | ms a step | µs a record |", "|---|---|---|"]
    for lot in (64, 256) if quick else (64, 256, 1024, 4096, 16384):
        data = torch.utils.data.TensorDataset(torch.randn(4 * lot, 60), torch.zeros(4 * lot, dtype=torch.long))
        taken = seconds(private_step(network(60, 1000), data, lot), 11)
        table.append(f"| {lot:,} | {1e3 * taken:.1f} | {1e6 * taken / lot:.1f} |")
    return ["Over the lot (60-1000-10, 71,010 parameters):\n", *table]


def over_parameters(quick: bool) -> list[str]:
    table = ["| parameters | private ms | ordinary ms | ratio |", "|---|---|---|---|"]
    for hidden in (140, 1260) if quick else (140, 1260, 12600, 126000, 1260000):
        model = network(68, hidden)
        count = sum(parameter.numel() for parameter in model.parameters())
        x, y = torch.randn(256, 68), torch.zeros(256, dtype=torch.long)
        repeats = 5 if hidden > 10**5 else 11
        ordinary = seconds(ordinary_step(network(68, hidden), x, y), repeats)
        private = seconds(
            private_step(model, torch.utils.data.TensorDataset(x.repeat(4, 1), y.repeat(4)), 256), repeats
        )
        table.append(f"| {count:,} | {1e3 * private:.1f} | {1e3 * ordinary:.1f} | {private / ordinary:.2f} |")
    return ["Over the parameters (one hidden layer, lot 256):\n", *table]


def over_steps(quick: bool) -> list[str]:
    table = ["| steps | bytes of the ledger | µs a step to write |", "|---|---|---|"]
    step = Step(Poisson(rate=0.01), (GaussianSum(group="gradient", clip_norm=1.0, noise_std=2.0),))
    with tempfile.TemporaryDirectory() as folder:
        path, taken = Path(folder) / "ledger.jsonl", 0
        with Ledger.open(path) as ledger:
            for steps in (100, 300) if quick else (100, 3000):
                start = time.perf_counter()
                for _ in range(steps - taken):
                    ledger.record(step)
                each = 1e6 * (time.perf_counter() - start) / (steps - taken)
                taken = steps
                table.append(f"| {steps:,} | {path.stat().st_size:,} | {each:.0f} |")
    memory, most = Ledger(), 10**4 if quick else 10**6
    for _ in range(most):
        memory.record(step)
    table.append(f"| {most:,} | {memory._contents.size:,} | in memory: the bytes its file would have |")
    return ["Over the steps taken (equal steps, each flushed to the disk):\n", *table]


def child(rank: int, world: int, store: str, hidden: int, lot: int) -> None:
    """One process of the measurement with several; the first prints its times."""
    if world > 1:
        dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    torch.manual_seed(0)
    model, data = network(784, hidden), torch.utils.data.TensorDataset(torch.randn(8192, 784), torch.zeros(8192).long())
    private = private_step(model, data, lot, parallel=tacit.Parallel() if world > 1 else None)
    mine = lot // world
    ordinary = ordinary_step(network(784, hidden), torch.randn(mine, 784), torch.zeros(mine).long(), world)
    pairs = [(seconds(ordinary, 1, time.perf_counter), seconds(private, 1, time.perf_counter)) for _ in range(15)]
    buffer = torch.randn(sum(p.numel() for p in model.parameters()))
    reduce = seconds(lambda: dist.all_reduce(buffer), 15, time.perf_counter) if world > 1 else 0.0
    if rank == 0:
        medians = [statistics.median(each) for each in zip(*pairs, strict=True)]
        print(json.dumps({"ordinary": medians[0], "private": medians[1], "reduce": reduce, "size": buffer.numel()}))


def measured(world: int, hidden: int, lot: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--child", json.dumps([rank, world, f"{folder}/store", hidden, lot])],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        answers = [each.communicate(timeout=600)[0] for each in started]
    found: dict[str, float] = json.loads(answers[0].strip().splitlines()[-1])
    return found


def over_processes(quick: bool) -> list[str]:
    hidden, lot = (100, 256) if quick else (1000, 2048)
    one, two = measured(1, hidden, lot), measured(2, hidden, lot)
    table = ["| processes | ordinary ms | private ms | ratio |", "|---|---|---|---|"]
    for world, found in ((1, one), (2, two)):
        ordinary, private = 1e3 * found["ordinary"], 1e3 * found["private"]
        table.append(f"| {world} | {ordinary:.1f} | {private:.1f} | {private / ordinary:.2f} |")
    size = two["size"]
    lines = [f"Over the processes (784-{hidden}-10, lot {lot}, wall clock, one thread each, gloo):\n", *table, ""]
    return lines + estimate(one, two, size, lot)


def estimate(one: dict[str, float], two: dict[str, float], size: float, lot: int) -> list[str]:
    """For W processes with ``lot`` records each: compute as measured, communication as a ring over 10 Gbit/s."""
    fixed = max(two["private"] - one["private"] / 2 - two["reduce"], 0.0)
    ring, latency = 4 * size / 1.25e9, 50e-6
    table = ["| processes | lot | sent by each, MB a step | messages' delay ms | ms a step | against 1 process |"]
    table.append("|---|---|---|---|---|---|")
    for world in (8, 64, 256, 1024):
        volume = 2 * (world - 1) / world
        delay = 2 * (world - 1) * latency
        told = 8e-6 * world * lot / 1250 + 4 * world.bit_length() * latency  # the lot's indices, to everybody
        total = one["private"] + volume * ring + delay + told + fixed
        table.append(
            f"| {world:,} | {world * lot:,} | {4e-6 * volume * size:.1f} | {1e3 * delay:.1f} | {1e3 * total:.1f} | "
            f"{total / one['private']:.2f} |"
        )
    head = (
        f"On paper, from these constants: {lot} records for each process, {one['private'] * 1e3:.1f} ms for them "
        f"alone, {1e3 * fixed:.1f} ms of talk a step measured with two, a ring over 10 Gbit/s with 50 µs a "
        "message. Memory of each process does not change with their number; the first one also holds the indices of "
        "the lot.\n"
    )
    return [head, *table]


def main() -> None:
    parser = argparse.ArgumentParser(description="How a private step grows.")
    parser.add_argument("--write", action="store_true", help="replace the section in docs/scale.md")
    parser.add_argument("--quick", action="store_true", help="smaller sizes only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.child:
        child(*json.loads(arguments.child))
        return
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    parts = [[f"{today}; {model}, {os.cpu_count()} cores; {versions}.\n"]]
    for part in (over_records, over_lots, over_parameters, over_steps, over_processes):
        parts.append(part(arguments.quick))
        print("\n".join(parts[-1]), "\n", flush=True)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN, 1)
        body = "\n\n".join("\n".join(part) for part in parts)
        PAGE.write_text(f"{before}{BEGIN}\n{body}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
