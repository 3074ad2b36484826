"""Several processes on this machine, each running the same script, over gloo.

One process imports everything and is then forked for each that is wanted: importing torch again and again would take
longer than all the tests. A process that ended well waits for the others before it goes: otherwise one still connecting
to it would find it gone, and the test would depend on which is faster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

_MOTHER = """
import json, os, sys, traceback, datetime, torch, torch.distributed as dist, torch.nn.functional as F, tacit
import tacit.training, tacit.accounting
import torch._dynamo  # fully_shard would import it in every process
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from pathlib import Path
from torch import nn
torch.set_num_threads(1)
for line in sys.stdin:
    job = json.loads(line)
    if job is None:
        break
    children = []
    nobody_left, running = os.pipe()  # reading ends when no process has the other end open any more
    for rank in range(job["world"]):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            told = os.open(job["told"] + str(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(told, 1), os.dup2(told, 2)
            names = {**globals(), "rank": rank, "world": job["world"], "out": Path(job["out"]), **job["settings"]}
            exec(job["code"], names)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os.close(running)
            if code == 0:
                os.read(nobody_left, 1)
            os._exit(code)
    os.close(running)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
    os.close(nobody_left)
os._exit(0)
"""

_START = """
if world > 1:
    store = dist.FileStore(str(out / f"store-{attempt}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=100))
parallel = tacit.Parallel(noise=noise) if world > 1 else None
torch.manual_seed(7)
x = torch.randn(200, 5, dtype=torch.float64)
y = (x.sum(1) > 0).long()
torch.manual_seed(rank)  # the model of each process begins otherwise
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
data = torch.utils.data.TensorDataset(x, y)
def save(**tensors):
    torch.save(tensors, out / f"result-{rank}.pt")
"""

Results = list[dict[str, Any]]


@pytest.fixture(scope="session")
def mother() -> Iterator[subprocess.Popen[str]]:
    place = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-c", _MOTHER], env=place, stdin=pipe, stdout=pipe, text=True)
    yield started
    # Told to end, and not by an end of its input: a process that some other test forked may have that open for longer.
    assert started.stdin is not None
    started.stdin.write("null\n")
    started.stdin.flush()
    started.wait(timeout=60)
    started.stdin.close()
    assert started.stdout is not None
    started.stdout.close()


@pytest.fixture
def processes(tmp_path: Path, mother: subprocess.Popen[str]) -> Callable[..., Results]:
    """``run(code, world)``: what each process saved, after all have ended well (or as ``codes`` says)."""
    attempts = iter(range(100))

    def run(code: str, world: int = 2, *, codes: list[int] | None = None, **settings: Any) -> Results:
        assert mother.stdin is not None and mother.stdout is not None
        saved = [tmp_path / f"result-{rank}.pt" for rank in range(world)]
        for path in saved:
            path.unlink(missing_ok=True)
        job = {
            "world": world,
            "out": str(tmp_path),
            "told": str(tmp_path / "told-"),
            "code": _START + textwrap.dedent(code),
            "settings": {"noise": "first", "attempt": next(attempts), **settings},
        }
        mother.stdin.write(json.dumps(job) + "\n")
        mother.stdin.flush()
        ended = json.loads(mother.stdout.readline())
        told = "\n".join((tmp_path / f"told-{rank}").read_text() for rank in range(world))
        assert ended == (codes or [0] * world), told
        return [torch.load(path, weights_only=True) if path.exists() else {} for path in saved]

    return run
