"""A training run killed with SIGKILL again and again, and resumed: no charge is lost, no noise comes twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tacit

TRAINER = """
import json, os, sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
import tacit
from tacit.training import checkpoint

folder, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(7)
y = torch.arange(300) % 3
x = 2 * torch.eye(4)[y] + 0.5 * torch.randn(300, 4, generator=generator)
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports half of PyTorch

def train():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    run = tacit.make_private(
        model, optimizer, TensorDataset(x, y), lot_size=30, steps=steps, clipping=tacit.Adaptive(initial=0.5),
        noise_multiplier=0.8, ledger=folder + "/ledger.jsonl",
    )
    if os.path.exists(folder + "/point") or os.path.exists(folder + "/point.old"):
        run.load(folder + "/point")
    releases = open(folder + "/releases.jsonl", "ab", buffering=0)
    real = run._updates.apply

    def spy():
        gradient = [float(v) for p in model.parameters() for v in p.grad.flatten()]
        releases.write((json.dumps({"step": run.step, "gradient": gradient}) + "\\n").encode())
        real()

    run._updates.apply = spy
    for a, b in run.batches():
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.step % 5 == 0:
            run.save(folder + "/point")
    accuracy = float((model(x).argmax(1) == y).float().mean())
    with open(folder + "/result.json", "w") as file:
        json.dump({"steps": run.step, "accuracy": accuracy}, file)

for _ in sys.stdin:  # one process a line: everything is imported already, so that it starts at once
    child = os.fork()
    if not child:
        code = 1
        try:
            train()
            code = 0
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def killed_and_resumed(folder: Path, kills: int, steps: int) -> None:
    chance, done = random.Random(kills), 0
    command = [sys.executable, "-c", TRAINER, str(folder), str(steps)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as launcher:
        assert launcher.stdin is not None and launcher.stdout is not None
        while True:
            launcher.stdin.write("go\n")
            child = int(launcher.stdout.readline())
            if done < kills:
                time.sleep(0.4 * chance.random())
                os.kill(child, signal.SIGKILL)
            code = int(launcher.stdout.readline())
            if done == kills:
                break
            assert code == -signal.SIGKILL, "the run ended before it was killed; give it more steps"
            done += 1
            if (folder / "ledger.jsonl").exists():
                assert len(tacit.Ledger.load(folder / "ledger.jsonl")) >= count(folder)
        launcher.stdin.close()
    assert code == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == steps
    assert result["accuracy"] > 0.9
    released = [json.loads(line) for line in (folder / "releases.jsonl").read_text().splitlines()]
    assert len(tacit.Ledger.load(folder / "ledger.jsonl")) >= len(released) >= steps
    gradients = [tuple(entry["gradient"]) for entry in released]
    assert len(set(gradients)) == len(gradients)
    repeated = len(released) - len({entry["step"] for entry in released})
    assert repeated > 0  # some steps were done again, each with new noise and a charge of its own


def count(folder: Path) -> int:
    """Releases that were written in full."""
    file = folder / "releases.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_killed_ten_times(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, kills=12, steps=800)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, kills=50, steps=4000)
