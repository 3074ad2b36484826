"""What privacy costs: one private optimizer step against the same step without privacy.

    python benchmarks/gradients.py                      # every workload and mode, Markdown on stdout
    python benchmarks/gradients.py --only W1 W4 --modes tacit --repeats 20
    python benchmarks/gradients.py --write              # also into docs/benchmarks.md

A private step is forward, backward, clipping, noise and the SGD update; `tacit` is timed as it is used, with the draw
of the lot and the ledger, and once more without these ("batch at hand"), as the peers are. A peer and the ordinary
step, or ours and the ordinary step, run in one process in random order; the figure is the ratio of median CPU times
(user + system). Memory is the peak in use while setting up and taking a step, above model and data, each mode in a
process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import functools
import gc
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLIP, SIGMA, RATE = 1.0, 1.0, 0.05
Step = Callable[[], None]


# -- workloads -------------------------------------------------------------------------------------------------------


def mlp(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 1000), nn.ReLU(), nn.Linear(1000, 10))


def cifar_cnn(frozen: bool) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 36, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10),
    )  # fmt: skip
    if frozen:
        for layer in model[:6]:
            layer.requires_grad_(False)
    return model


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, lora: bool) -> None:
        super().__init__()
        wrap: Callable[[nn.Linear], nn.Module] = LoRA if lora else (lambda layer: layer)
        self.heads = heads
        self.q, self.k, self.v, self.o = (wrap(nn.Linear(width, width)) for _ in range(4))
        self.up, self.down = wrap(nn.Linear(width, 4 * width)), wrap(nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.o(h)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, lora: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 128)
        self.blocks = nn.Sequential(*(Block(128, 4, lora) for _ in range(2)))
        self.head = nn.Linear(128, 10)
        if lora:
            self.requires_grad_(False)
            for block in self.blocks:
                for layer in (block.q, block.k, block.v, block.o, block.up, block.down):
                    layer.down.requires_grad_(True)
                    layer.up.requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn = kind(128, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.skip = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(8, outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.skip(x))


def resnet(width: int = 32) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        for i in range(2):
            outputs = width * 2**stage
            layers.append(Residual(inputs, outputs, 2 if stage and not i else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


@dataclass(frozen=True)
class Workload:
    title: str
    target: float
    batch: int
    shape: tuple[int, ...]
    build: Callable[[], nn.Module]
    repeats: int = 15
    tokens: bool = False


WORKLOADS: Mapping[str, Workload] = {
    "W1": Workload("MLP 60-1000-10", 1.5, 600, (60,), lambda: mlp(60), 60),
    "W2": Workload("MLP 784-1000-10", 1.15, 600, (784,), lambda: mlp(784), 40),
    "W2b": Workload("MLP 784-1000-10", 1.12, 2048, (784,), lambda: mlp(784), 20),
    "W3a": Workload("CIFAR CNN, convolutions frozen", 1.0, 2000, (3, 24, 24), lambda: cifar_cnn(True), 7),
    "W3b": Workload("CIFAR CNN", 1.7, 256, (3, 24, 24), lambda: cifar_cnn(False), 9),
    "W4": Workload("small MNIST CNN", 1.35, 512, (1, 28, 28), mnist_cnn, 25),
    "W5": Workload("transformer, 2 layers, d 128, sequence 128", 1.25, 64, (128,), Transformer, 9, True),
    "W5L": Workload("same, LoRA adapters only", 1.05, 64, (128,), lambda: Transformer(True), 9, True),
    "W6": Workload("LSTM, d 128, sequence 64", 1.9, 64, (64, 128), lambda: Recurrent(nn.LSTM), 25),
    "W6g": Workload("GRU, d 128, sequence 64", 1.9, 64, (64, 128), lambda: Recurrent(nn.GRU), 25),
    "W7": Workload("ResNet-18 shape, GroupNorm, width 32", 1.7, 64, (3, 32, 32), resnet, 7),
}


def data(w: Workload) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randint(0, 10_000, (w.batch, *w.shape)) if w.tokens else torch.randn(w.batch, *w.shape)
    return x, torch.randint(0, 10, (w.batch,))


# -- modes -----------------------------------------------------------------------------------------------------------


def fill_noise(t: Tensor, std: float) -> Tensor:
    """The noise of the modes written by hand here."""
    return t.normal_(0, std)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def base(w: Workload) -> Step:
    model, (x, y) = w.build(), data(w)
    optimizer = torch.optim.SGD(trainable(model).values(), RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


class Stopwatch:
    """CPU seconds that steps spent on what is not to be timed."""

    left_out = 0.0
    since = 0.0


def leave_out(run: Any) -> None:
    """Do not time a run from the record of a lot to its rows; what is then done with these is timed again."""
    record, hold = run.team.record, run._weights.hold

    def begin(*args: Any) -> Any:
        Stopwatch.since = time.process_time()
        return record(*args)

    def end() -> None:
        Stopwatch.left_out += time.process_time() - Stopwatch.since
        hold()

    run.team.record, run._weights.hold = begin, end


def tacit(w: Workload, *, at_hand: bool = False) -> Step:
    """The library as it is used: ledger, sampler, secure noise and the rounding of released values included.

    ``at_hand``: drawing the lot, recording it in the ledger and fetching its rows are left out; the peers are given
    their batch too.
    """
    import tacit as library

    model, (x, y) = w.build(), data(w)
    optimizer = torch.optim.SGD(trainable(model).values(), RATE)
    run = library.make_private(
        model, optimizer, torch.utils.data.TensorDataset(x, y), lot_size=w.batch, batch_size=w.batch, steps=10**9,
        clipping=library.Flat(CLIP), noise_multiplier=SIGMA, trial=False,
    )  # fmt: skip
    batches = run.batches()
    if at_hand:
        leave_out(run)

    def step() -> None:
        bx, by = next(batches)
        F.cross_entropy(model(bx), by).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def vmap(w: Workload) -> Step:
    model, (x, y) = w.build(), data(w)
    fixed = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    params = list(trainable(model).values())
    optimizer = torch.optim.SGD(params, RATE)

    def loss(values: Any, xi: Tensor, yi: Tensor) -> Tensor:
        out = torch.func.functional_call(model, {**values, **fixed}, (xi.unsqueeze(0),))
        return F.cross_entropy(out, yi.unsqueeze(0))

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step() -> None:
        each = grads({n: p.detach() for n, p in trainable(model).items()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factor = (CLIP / norms.clamp_min(1e-12)).clamp_max(1)
        for p, g in zip(params, each.values()):
            total = torch.einsum("b,b...->...", factor, g)
            p.grad = (total + fill_noise(torch.empty_like(total), SIGMA * CLIP)) / w.batch
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus(mode: str) -> Callable[[Workload], Step]:
    def make(w: Workload) -> Step:
        from opacus import PrivacyEngine
        from opacus.layers import DPGRU, DPLSTM
        from torch.utils.data import DataLoader, TensorDataset

        swap = {nn.LSTM: DPLSTM, nn.GRU: DPGRU}
        build = w.build
        model = build()
        if isinstance(model, Recurrent):
            model = Recurrent(swap[type(model.rnn)])
        x, y = data(w)
        optimizer = torch.optim.SGD(list(trainable(model).values()), RATE)
        criterion = nn.CrossEntropyLoss()
        made = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, criterion=criterion,
            data_loader=DataLoader(TensorDataset(x, y), w.batch),
            noise_multiplier=SIGMA, max_grad_norm=CLIP, poisson_sampling=False, grad_sample_mode=mode,
        )  # fmt: skip
        private, optimizer = made[0], made[1]
        loss_of: Any = made[2] if mode == "ghost" else criterion

        def step() -> None:
            optimizer.zero_grad()
            loss_of(private(x), y).backward()
            optimizer.step()

        return step

    return make


MODES: Mapping[str, Callable[[Workload], Step]] = {
    "base": base,
    "tacit": tacit,
    "tacit, batch at hand": functools.partial(tacit, at_hand=True),
    "opacus hooks": opacus("hooks"),
    "opacus functorch": opacus("functorch"),
    "opacus ew": opacus("ew"),
    "opacus ghost": opacus("ghost"),
    "vmap": vmap,
}


OURS = ("base", "tacit", "tacit, batch at hand")


# -- measuring -------------------------------------------------------------------------------------------------------


def timed(step: Step, inner: int) -> float:
    start, left_out = time.process_time(), Stopwatch.left_out
    for _ in range(inner):
        step()
    return (time.process_time() - start - (Stopwatch.left_out - left_out)) / inner


def measure(key: str, modes: list[str], repeats: int | None) -> dict[str, float | str]:
    """Median CPU milliseconds of a step in each mode, or why the mode cannot run."""
    w = WORKLOADS[key]
    torch.manual_seed(0)
    steps: dict[str, Step] = {}
    found: dict[str, float | str] = {}
    for mode in modes:
        try:
            step = MODES[mode](w)
            step()
            steps[mode] = step
        except Exception as error:  # a peer that cannot run a workload is a result, shown in the table
            found[mode] = type(error).__name__
    quick = timed(steps["base"], 1)
    inner = max(1, min(20, math.ceil(0.05 / max(quick, 1e-4))))
    times: dict[str, list[float]] = {mode: [] for mode in steps}
    for _ in range(repeats or w.repeats):
        for mode in random.sample(list(steps), len(steps)):
            slow = mode not in OURS
            if slow and (len(times[mode]) >= 3 or sum(times[mode]) > 4):
                continue
            times[mode].append(timed(steps[mode], 1 if slow else inner))
    for mode, values in times.items():
        found[mode] = statistics.median(values) * 1e3
    return found


def peak_memory(key: str, mode: str) -> float:
    """Peak resident memory in MB of setting up and taking a step, above model and data; median of up to three.

    A step is taken beforehand and thrown away, so that libraries loaded on first use are not counted for those modes
    alone that had not loaded them yet.
    """

    def status(field: str) -> float:
        line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(field))
        return int(line.split()[1]) / 1024

    w = WORKLOADS[key]
    batch = data(w) if mode == "tacit, batch at hand" else ()  # a copy of the rows; the peers are given the data itself
    tensors = [*w.build().parameters(), *data(w), *batch]
    own = sum(t.numel() * t.element_size() for t in tensors) / 2**20
    del tensors, batch
    start, found = time.monotonic(), []
    MODES[mode](w)()
    while len(found) < 3 and (not found or time.monotonic() - start < 20):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        MODES[mode](w)()
        found.append(status("VmHWM") - before - own)
    return statistics.median(found)


EACH_FOR_ITSELF = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_TRIM_THRESHOLD_": str(1 << 16)}
"""Memory that is freed is gone at once: the peak is then what was in use, and not what the C library had kept."""


def in_process(*arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else None


def ratio(times: dict[str, float | str] | None, mode: str) -> float | str:
    """A step of the mode by the ordinary one beside it, or why there is none."""
    if times is None:
        return "failed"
    base, step = times["base"], times[mode]
    return step if isinstance(step, str) or isinstance(base, str) else step / base


def medians(several: list[dict[str, float | str] | None]) -> dict[str, float | str] | None:
    """Of processes that measured the same modes: the ordinary step, and steps that have the median of their ratios.

    Where a process has its memory and threads is luck, which moves short steps by a tenth.
    """
    found = [times for times in several if times is not None]
    if not found or any(isinstance(value, str) for times in found for value in times.values()):
        return found[0] if found else None
    base = statistics.median(float(times["base"]) for times in found)
    return {m: base * statistics.median(float(t[m]) / float(t["base"]) for t in found) for m in found[0]}


def table(keys: list[str], modes: list[str], repeats: int | None, memory: bool, processes: int) -> str:
    others = [m for m in modes if m != "base"]
    lines = [
        "| workload | batch | base ms (MB) | target | " + " | ".join(others) + " |",
        "|---|---|---|---|" + "---|" * len(others),
    ]
    for key in keys:
        w = WORKLOADS[key]
        often = ["--repeats", str(repeats)] if repeats else []
        own = [m for m in modes if m in OURS]
        times = medians([in_process("--child", key, "--modes", *own, *often) for _ in range(processes)])
        ratios = {m: ratio(times, m) for m in others if m in OURS} if times else {}
        for peer in (m for m in others if m not in OURS):
            ratios[peer] = ratio(in_process("--child", key, "--modes", "base", peer, *often), peer)
        if times is None:
            lines.append(f"| {key} {w.title} | {w.batch} | failed | | " + " | ".join("" for _ in others) + " |")
            continue
        peaks = {
            m: in_process("--memory-of", key, m, environment=EACH_FOR_ITSELF)
            if memory and not isinstance(ratios.get(m), str)
            else None
            for m in modes
        }

        def cell(mode: str, text: str, peaks: dict[str, Any] = peaks) -> str:
            return text + (f" ({peaks[mode]:.0f})" if peaks[mode] is not None else "")

        row = [cell(m, found if isinstance(found := ratios[m], str) else f"{found:.2f}") for m in others]
        plain = cell("base", f"{times['base']:.1f}")
        lines.append(f"| {key} {w.title} | {w.batch} | {plain} | {w.target} | " + " | ".join(row) + " |")
        print(lines[-1], file=sys.stderr, flush=True)  # so that a long run can be followed
    return "\n".join(lines)


def document(body: str, threads: int) -> str:
    try:
        from importlib.metadata import version

        peer = f", opacus {version('opacus')}"
    except ImportError:
        peer = ""
    processor = next(
        (s.split(":")[1].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if s.startswith("model name")),
        platform.processor(),
    )
    return (
        "## Per-example gradients\n\n"
        "CPU time of one private step (forward, backward, clipping, noise, SGD) ÷ the same step without privacy; "
        "medians, interleaved with that step in one process; peers in processes of their own, as a private run keeps "
        "freed memory, by which others would gain. `tacit` is as it is used, with the draw of the lot, the ledger and "
        "the rounding of what is released; *batch at hand* leaves out the draw and the ledger, which the steps of the "
        "peers, and the targets, do not have either. In brackets: peak memory in use in MB (what is freed being "
        "given back at once) while setting up and taking a step, above model and data (batch at hand: and the batch, "
        "whose rows the peers do not copy).\n\n"
        f"{datetime.date.today().isoformat()}; {processor}, {threads} thread(s); Python {platform.python_version()}, "
        f"torch {torch.__version__}{peer}.\n\n{body}\n"
    )


def write(section: str, path: Path) -> None:
    """Replace this section of the file, leaving the others alone."""
    old = path.read_text() if path.exists() else "# Benchmarks\n"
    heading = section.splitlines()[0]
    before, found, rest = old.partition(heading)
    after = rest.partition("\n## ")
    tail = "\n## " + after[2] if found and after[1] else ""
    path.parent.mkdir(exist_ok=True)
    path.write_text(before.rstrip() + "\n\n" + section.rstrip() + "\n" + tail)


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="that measure our steps one after the other; medians")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("TACIT_BENCH_THREADS", options.threads)))
    modes = ["base", *(m for m in options.modes if m != "base")]
    if options.child:
        print(json.dumps(measure(options.child, modes, options.repeats)))
    elif options.memory_of:
        print(json.dumps(peak_memory(*options.memory_of)))
    else:
        os.environ["TACIT_BENCH_THREADS"] = str(options.threads)
        body = table(options.only, modes, options.repeats, not options.no_memory, options.processes)
        section = document(body, options.threads)
        print(section)
        if options.write:
            write(section, Path(__file__).parents[1] / "docs" / "benchmarks.md")


if __name__ == "__main__":
    main()
