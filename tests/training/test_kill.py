"""A training run killed with SIGKILL again and again, and resumed: no charge is lost, no noise comes twice."""

from __future__ import annotations

import json
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

folder, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(7)
y = torch.arange(300) % 3
x = 2 * torch.eye(4)[y] + 0.5 * torch.randn(300, 4, generator=generator)
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
real = run._optimizer_step

def spy():
    gradient = [float(v) for p in model.parameters() for v in p.grad.flatten()]
    releases.write((json.dumps({"step": run.step, "gradient": gradient}) + "\\n").encode())
    real()

run._optimizer_step = spy
os.write(1, b"o")
for a, b in run.batches():
    F.cross_entropy(model(a), b).backward()
    optimizer.step()
    optimizer.zero_grad()
    if run.step % 5 == 0:
        run.save(folder + "/point")
accuracy = float((model(x).argmax(1) == y).float().mean())
print(json.dumps({"steps": run.step, "accuracy": accuracy}))
"""


def killed_and_resumed(folder: Path, kills: int, steps: int) -> None:
    chance = random.Random(kills)
    done = 0
    command = [sys.executable, "-c", TRAINER, str(folder), str(steps)]
    while done < kills:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"o", "the run did not start"
        time.sleep(0.15 * chance.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        rest = process.stdout.read()
        process.stdout.close()
        done += 1
        assert len(tacit.Ledger.load(folder / "ledger.jsonl")) >= count(folder)
        if rest:  # it was faster than the kill: begin the run of another model on the same ledger
            for name in ("point", "point.old", "point.new"):
                if (folder / name).exists():
                    (folder / name).rename(folder / f"{name} {done}")
    final = subprocess.run(command, capture_output=True, check=True, text=True)
    result = json.loads(final.stdout.removeprefix("o"))
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
    killed_and_resumed(tmp_path, kills=10, steps=60)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, kills=50, steps=300)
