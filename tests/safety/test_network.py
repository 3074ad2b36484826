"""No network: neither when anything is imported nor when a model is trained, accounted for and reported on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tacit

WATCH = """
import sys
touched = []

def watch(event, arguments):
    if event.startswith("socket.") or event in ("urllib.Request", "http.client.connect", "ftplib.connect"):
        touched.append(event)
        raise RuntimeError(f"the network was touched: {event} {arguments}")

sys.addaudithook(watch)
"""
IMPORT = """
import importlib.util, pkgutil
import tacit
needs = {"tacit.flower": "flwr", "tacit.flare": "nvflare"}
left_out = ["__main__", *(room for room, package in needs.items() if not importlib.util.find_spec(package))]
for module in pkgutil.walk_packages(tacit.__path__, "tacit.", onerror=lambda name: None):
    if not any(name in module.name for name in left_out):
        importlib.import_module(module.name)
"""
TRAIN = """
import pathlib, sys
import torch
import torch.nn.functional as F
import tacit
folder = pathlib.Path(sys.argv[1])
model = torch.nn.Linear(4, 2)
data = torch.utils.data.TensorDataset(torch.randn(50, 4), torch.arange(50) % 2)
run = tacit.make_private(
    model, torch.optim.SGD(model.parameters(), lr=0.1), data, lot_size=10, steps=3, clipping=tacit.Flat(1.0),
    budget=tacit.Budget(2.0, 1e-5), ledger=folder / "ledger.jsonl",
)
for x, y in run.batches():
    F.cross_entropy(model(x), y).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.save(folder / "point")
run.guarantee()
run.close()
run.ledger.close()
from tacit.reports import report
report(folder / "ledger.jsonl")
from tacit.cli import main
for command in (["account", str(folder / "ledger.jsonl"), "--delta", "1e-5"], ["data"],
                ["audit", "--attack", "canaries", "--canaries", "20"]):
    try:
        main(command)
    except SystemExit as stop:
        assert not stop.code, (command, stop.code)
"""
END = "\nassert not touched, touched\nprint('nothing was touched')\n"


def quiet(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tacit.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WATCH + code + END, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_watch_sees_a_socket() -> None:
    for code in ("import socket; socket.socket()", "import socket; socket.getaddrinfo('localhost', 80)"):
        done = quiet(code)
        assert done.returncode and "the network was touched" in done.stderr


def test_imports_touch_no_network() -> None:
    done = quiet(IMPORT)
    assert done.returncode == 0, done.stderr
    assert "nothing was touched" in done.stdout


def test_training_accounting_and_reports_touch_no_network(tmp_path: Path) -> None:
    done = quiet(TRAIN, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "nothing was touched" in done.stdout
