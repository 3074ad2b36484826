"""``tacit train``: what it prints, what it leaves, what it refuses; Ctrl-C and a resumed run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit.data
from tacit.accounting import account
from tacit.cli import main
from tacit.ledger import Ledger

pytest.importorskip("sklearn", reason="the digits are inside scikit-learn")
QUICK = ["digits", "--epochs", "2"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_a_run_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, *QUICK, "--epsilon", "3", "--delta", "1e-6", "--out", "run", "--json")
    facts = json.loads(out)
    assert code == 0
    assert {"test_accuracy", "epsilon", "delta", "steps", "noise_multiplier", "seconds", "out"} <= set(facts)
    assert (facts["dataset"], facts["delta"], facts["out"]) == ("digits", 1e-6, "run")
    assert 2.9 < facts["epsilon"] <= 3.0
    assert facts["test_accuracy"] > 0.5
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"ledger.jsonl", "model.json", "model.safetensors", "privacy.json", "report.html", "run.json"}
    assert account(Ledger.load("run/ledger.jsonl"), delta=1e-6).epsilon == facts["epsilon"]


def test_a_run_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *QUICK)
    assert code == 0
    assert "%  (public test set, 360 images of digits)" in out and "(ε = 2.00, δ = 1e-05) example-level" in out
    assert "runs/digits/report.html" in out
    assert "spent, 0.0" in err and "(private)" in err and "(public)" in err
    code, out, _ = run(capsys, *QUICK, "--json")
    assert json.loads(out)["out"] == "runs/digits-2"


def test_options_change_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--lot-size", "100", "--clip", "0.5", "--model", "mlp:16", "--recipe", "pca", "--accountant", "rdp"]
    code, out, _ = run(capsys, *QUICK, *options, "--out", "run", "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 29  # two passes over 1,437 records
    recipe = json.loads(Path("run/run.json").read_text())["recipe"]
    assert (recipe["name"], recipe["lot_size"], recipe["epochs"]) == ("pca", 100, 2.0)
    assert recipe["clipping"] == {"kind": "Flat", "clip_norm": 0.5}
    assert recipe["model"] == {"kind": "Mlp", "hidden": [16], "activation": "tanh"}


def test_norms_are_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = run(capsys, *QUICK, "--norms", "--out", "run")
    assert code == 0
    assert "Released privately, with noise, as group norms/histogram" in Path("run/report.html").read_text()
    assert account(Ledger.load("run/ledger.jsonl"), delta=1e-5).epsilon <= 2.0


def test_without_a_name_and_without_mnist_it_is_the_digits_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tacit.data.load

    def load(name: str, **settings: Any) -> Any:
        if name == "mnist":
            raise ValueError("mnist is nowhere.")
        return real(name, **settings)

    monkeypatch.setattr(tacit.data, "load", load)
    code, out, err = run(capsys, "--epochs", "1", "--json")
    assert (code, json.loads(out)["dataset"]) == (0, "digits")
    assert "so this trains on scikit-learn's small digits: mnist is nowhere." in err
    code, out, err = run(capsys, "mnist")
    assert (code, out, err) == (2, "", "tacit: mnist is nowhere.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "--recipe", "magic"], "recipe is 'magic'; choose one of best, "),
        (["nowhere"], "nowhere"),
        (["nowhere.csv"], "nowhere.csv"),
        (["digits", "--epsilon", "0"], "epsilon is 0.0"),
        (["digits", "--epsilon", "-1"], "epsilon is -1.0"),
        (["digits", "--epsilon", "nan"], "epsilon is nan"),
        (["digits", "--epsilon", "two"], "'two' is not a number"),
        (["digits", "--delta", "1"], "delta is 1.0"),
        (["digits", "--epochs", "0"], "epochs is 0.0"),
        (["digits", "--lot-size", "0"], "lot_size is 0"),
        (["digits", "--lot-size", "2000"], "lot_size is 2000; it must be at most the number of records, 1437"),
        (["digits", "--clip", "-1"], "clip norm is -1.0"),
        (["digits", "--model", "brain"], "model is 'brain'"),
        (["digits", "--model", "mlp:0"], "model is 'mlp:0'"),
        (["digits", "--accountant", "mine"], "mine"),
        (["digits", "--recipe", "abadi", "--epsilon", "0.1"], "epsilon is 0.1"),
        (["digits", "--recipe", "abadi", "--epsilon", "0.25"], "pays for"),
        (["digits", "--resume"], "--resume needs --out"),
        (["digits", "--resume", "--out", "nothing"], "no run to resume in nothing"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, out, err = run(capsys, *arguments)
    (line,) = err.strip().splitlines()  # no progress bar before it, no traceback after it
    assert (code, out) == (2, "")
    assert line.startswith("tacit: ") and words in line
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    code, _, err = run(capsys, *QUICK, "--out", "mine")
    assert code == 2 and "mine holds other files; choose another directory." in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_seed_is_said_to_be_not_private(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, *QUICK, "--seed", "3")
    assert "NOT PRIVATE: seeded randomness" in out
    assert "(NOT private)" in err


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tacit.cli", "train", "digits", "--epochs", "40", "--out", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(tacit.data.__file__).parents[2])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        deadline = time.monotonic() + 120
        while steps(tmp_path / "run/ledger.jsonl") < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    said = err.decode()
    assert (process.returncode, out) == (130, b"")
    assert "Traceback" not in said
    line = next(line for line in said.splitlines() if line.startswith("stopped; nothing is lost"))
    words = shlex.split(line.split("Resume with: ")[1])
    assert words == ["tacit", "train", "digits", "--epochs", "40", "--out", "run", "--resume"]
    before = steps(tmp_path / "run/ledger.jsonl")
    planned = json.loads((tmp_path / "run/run.json").read_text())["plan"]["steps"]
    assert before < planned
    done = subprocess.run(
        [sys.executable, "-m", "tacit.cli", *words[1:], "--json"], capture_output=True, check=True, env=environment
    )
    facts = json.loads(done.stdout)
    assert facts["steps"] == steps(tmp_path / "run/ledger.jsonl") == planned  # nothing twice, nothing left out
    assert facts["epsilon"] <= 2.0


def steps(ledger: Path) -> int:
    return len(Ledger.load(ledger)) if ledger.exists() and ledger.stat().st_size else 0
