"""``tacit collaborate``: JSON, sentences for mistakes, progress on standard error only."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tacit.cli import main

KEYS = ("test_accuracy", "standalone_accuracy", "centralised_accuracy", "bytes_up", "bytes_down", "epsilon", "seconds")
SMALL = ["--dataset", "digits", "--participants", "3", "--epochs", "2", "--share", "0.05", "--seed", "1"]

digits = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn's digits")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["collaborate", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@digits
def test_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", *SMALL, "--json")
    facts = json.loads(out)
    assert code == 0 and set(KEYS) <= set(facts)
    assert facts["epsilon"] is None
    assert (facts["bytes_up"], facts["bytes_down"]) == (3 * 2 * 8 * 14_010, 3 * 2 * 4 * 140_106)
    assert all(0 <= facts[key] <= 1 for key in KEYS[:3])
    again = json.loads(run(capsys, "simulate", *SMALL, "--json")[1])
    assert again["history"] == facts["history"]
    _, text, _ = run(capsys, "simulate", *SMALL, "--no-baselines")
    assert "privacy        none" in text and "taken to be public" in text and "standalone     " not in text


@digits
def test_simulate_privately(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "simulate", *SMALL, "--no-baselines", "--epsilon-per-epoch", "1401", "--json")
    facts = json.loads(out)
    assert facts["epsilon"] == pytest.approx(2 * 5 / 9 * 1401)  # whole model, whole training
    assert facts["paper_epsilon_per_parameter"] == pytest.approx(0.1)
    assert facts["standalone_accuracy"] is None and facts["secure_randomness"] is False
    _, text, _ = run(capsys, "simulate", *SMALL, "--no-baselines", "--epsilon", "5")
    assert "example-level" in text and "NOT PRIVATE" in text


@digits
def test_normalise_privately(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", *SMALL, "--no-baselines", "--private-normalisation", "10"]
    facts = json.loads(run(capsys, *asked, "--epsilon", "5", "--json")[1])
    assert 4.9 < facts["epsilon"] <= 5 and any("released privately" in note for note in facts["notes"])
    code, _, err = run(capsys, *asked)
    assert code == 2 and "part of a budget; give --epsilon" in err
    code, _, err = run(capsys, *asked, "--epsilon", "5", "--mechanism", "gaussian")
    assert code == 2 and "protects examples, as dp-sgd does" in err


@digits
def test_compare_and_calibrate(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "compare", *SMALL, "--epsilons", "5", "--json")
    rows = json.loads(out)["rows"]
    assert [row["mechanism"] for row in rows] == ["sparse-vector", "gaussian", "dp-sgd"]
    assert all(4.9 < row["epsilon"] <= 5 for row in rows)
    _, out, _ = run(capsys, "calibrate", "--epochs", "1", "--records", "100", "--participants", "2", "--json")
    found = json.loads(out)
    assert found["public_dataset"] == "digits" and 0 < found["threshold"] <= found["bound"]
    _, out, _ = run(capsys, "calibrate", "--epochs", "1", "--records", "100", "--last", "250", "--json")
    assert {round(50 * t["accuracy"], 9) % 1 for t in json.loads(out)["trials"]} == {0}  # judged by 50 records
    code, _, err = run(capsys, "calibrate", "--last", "4")
    assert code == 2 and "the last 4 records were asked for; it must be from 5 to" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--upload", "2"], "upload is 2.0; it must be in (0, 1]."),
        (["--protocol", "gossip"], "protocol is 'gossip'; choose round-robin"),
        (["--selection", "smallest"], "selection is 'smallest'; choose largest"),
        (["--participants", "0"], "participants is 0"),
        (["--participants", "few"], "'few' is not a whole number."),
        (["--epsilon", "1", "--epsilon-per-epoch", "1"], "not both."),
        (["--epsilon", "1", "--mechanism", "hope"], "mechanism is 'hope'"),
        (["--dataset", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    code, out, err = run(capsys, "simulate", *arguments)
    assert code == 2 and out == ""
    assert sentence in err and err.startswith("tacit: ") and err.count("\n") == 1
