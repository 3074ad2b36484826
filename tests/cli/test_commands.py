"""The command line: JSON, sentences for mistakes, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tacit.cli import main
from tacit.ledger import GaussianSum, Header, Ledger, Poisson, Step

PLAN = ["--sampling-rate", "0.01", "--noise-multiplier", "4", "--steps", "10000"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_account_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "account", *PLAN, "--delta", "1e-5", "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert 0.94686 <= facts["epsilon"] <= 0.9475
    assert 0.9 < facts["epsilon_lower"] <= 0.946868
    assert (facts["delta"], facts["accountant"]) == (1e-5, "pld")
    assert (facts["sampling"], facts["adjacency"]) == ("Poisson", "add/remove")


def test_account_gives_delta_for_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "account", *PLAN, "--epsilon", "0.946867", "--json")
    assert json.loads(out)["delta"] == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(("name", "value"), [("moments", 1.2586), ("rdp", 1.0354), ("strong", 9.34)])
def test_account_by_other_accountants(capsys: pytest.CaptureFixture[str], name: str, value: float) -> None:
    _, out, _ = run(capsys, "account", *PLAN, "--delta", "1e-5", "--accountant", name, "--json")
    facts = json.loads(out)
    assert facts["epsilon"] == pytest.approx(value, abs=0.01)
    assert facts["epsilon_lower"] is None


def test_account_a_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    query = GaussianSum(group="gradients", clip_norm=2.0, noise_std=8.0)
    with Ledger.open(path, Header(purpose="test")) as ledger:
        for _ in range(50):
            ledger.record(Step(Poisson(rate=0.01, records=100), (query,)))
    before = path.read_bytes()
    _, out, _ = run(capsys, "account", str(path), "--delta", "1e-5", "--json")
    arguments = ["--sampling-rate", "0.01", "--noise-multiplier", "4", "--steps", "50", "--delta", "1e-5"]
    _, planned, _ = run(capsys, "account", *arguments, "--json")
    assert json.loads(out)["epsilon"] == json.loads(planned)["epsilon"]
    assert path.read_bytes() == before


def test_account_gives_a_receipt_that_detects_rollback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    step, other = (
        Step(Poisson(rate=0.01), (GaussianSum(group="gradients", clip_norm=1.0, noise_std=noise),)) for noise in (4, 1)
    )
    with Ledger.open(path) as ledger:
        ledger.record(step)
        older = path.read_bytes()
        ledger.record(step)
        _, out, _ = run(capsys, "account", str(path), "--delta", "1e-5", "--json")
        facts = json.loads(out)
        assert (facts["steps"], facts["digest"], facts["notes"]) == (2, ledger.digest, [])
        assert "expected_steps" not in facts
        receipt = facts["digest"]
        code, out, _ = run(capsys, "account", str(path), "--expect", receipt)
        assert (code, out) == (0, f"receipt: 2 steps, digest {receipt}\nexpected: found after 2 steps, the newest.\n")
        ledger.record(other)
    _, out, _ = run(capsys, "account", str(path), "--expect", receipt.upper(), "--delta", "1e-5")
    assert f"receipt: 3 steps, digest {ledger.digest}\n" in out
    assert out.endswith("expected: found after 2 steps; 1 were recorded since.\n")
    _, out, _ = run(capsys, "account", str(path), "--expect", receipt, "--json")
    assert json.loads(out) == {"steps": 3, "digest": ledger.digest, "notes": [], "expected_steps": 2}
    path.write_bytes(older)
    code, out, err = run(capsys, "account", str(path), "--expect", receipt, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert f"never had the digest {receipt}: it has 1 steps now" in err and "Restore" in err
    for wrong in ("x" * 64, receipt[:-1], ""):
        code, _, err = run(capsys, "account", str(path), "--expect", wrong)
        assert (code, "64 hexadecimal digits" in err) == (2, True)
    code, _, err = run(capsys, "account", *PLAN, "--delta", "1e-5", "--expect", receipt)
    assert (code, "give the ledger file" in err) == (2, True)


def test_account_prints_the_notes_that_opening_for_writing_logs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        ledger.record(Step(Poisson(rate=0.01), (GaussianSum(group="gradients", clip_norm=1.0, noise_std=4.0),)))
    path.write_bytes(path.read_bytes() + b'{"kind":"st')
    _, out, _ = run(capsys, "account", str(path), "--delta", "1e-5")
    note = "line 5 is torn and is left out; nothing was released for it"
    assert out.endswith(f"\nnote: {note}.\n")
    _, out, _ = run(capsys, "account", str(path), "--delta", "1e-5", "--json")
    assert json.loads(out)["notes"] == [note]
    Ledger.open(path).close()
    assert note in caplog.text


def test_lines_for_people_are_rounded_up(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "account", *PLAN, "--delta", "1e-5")
    assert out.startswith("(ε = 0.947, δ = 1e-05) example-level, add/remove, Poisson, pld\n")


def test_plan_solves_for_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--records", "60000", "--lot-size", "600", "--epochs", "40", "--delta", "1e-5", "--json"]
    _, out, _ = run(capsys, *given, "--epsilon", "2")
    facts = json.loads(out)
    assert facts["steps"] == 4000
    assert facts["sampling_rate"] == 0.01
    assert 1.99 <= facts["epsilon"] <= 2
    _, out, _ = run(capsys, *given, "--noise-multiplier", str(facts["noise_multiplier"]))
    assert json.loads(out)["epsilon"] == pytest.approx(facts["epsilon"])


def test_a_plan_says_what_an_attacker_can_do_and_what_is_ill_advised(capsys: pytest.CaptureFixture[str]) -> None:
    good = ["plan", "--records", "60000", "--lot-size", "600", "--epochs", "40", "--epsilon", "2", "--delta", "1e-6"]
    _, out, _ = run(capsys, *good)
    assert "who accuses 1 % of the innocent finds at most" in out and "advice" not in out
    assert json.loads(run(capsys, *good, "--json")[1])["advice"] == []
    bad = ["plan", "--records", "600", "--lot-size", "60", "--epochs", "40", "--epsilon", "20", "--delta", "1e-2"]
    _, out, _ = run(capsys, *bad)
    assert "delta is 0.01 with 600 records" in out and "epsilon is 20, above 10" in out
    facts = json.loads(run(capsys, *bad, "--json")[1])
    assert len(facts["advice"]) == 2 and 0.5 < facts["attack_power"] <= 1


def test_plans_with_discrete_noise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "account", *PLAN, "--noise", "discrete", "--delta", "1e-5", "--json")
    facts = json.loads(out)
    assert 0.94686 <= facts["epsilon"] <= 0.9475
    assert (facts["epsilon_lower"], facts["accountant"]) == (None, "pld")
    solved = [
        "--records",
        "60000",
        "--lot-size",
        "600",
        "--epochs",
        "10",
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--json",
    ]
    multipliers = [
        json.loads(run(capsys, "plan", *solved, "--noise", noise)[1])["noise_multiplier"]
        for noise in ("gaussian", "discrete")
    ]
    assert multipliers[1] == pytest.approx(multipliers[0], rel=1e-3)
    code, _, err = run(capsys, "plan", *solved, "--noise", "uniform")
    assert (code, "noise is 'uniform'" in err) == (2, True)
    code, _, err = run(capsys, "account", str(tmp_path / "ledger"), "--noise", "discrete", "--delta", "1e-5")
    assert (code, "--noise is for plans" in err) == (2, True)


def test_plot_draws_every_accountant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    code, out, _ = run(capsys, "account", *PLAN, "--delta", "1e-5", "--plot", str(path), "--json")
    assert code == 0
    assert json.loads(out)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["account", *PLAN], ["--delta"]),
        (["account", "--delta", "1e-5"], ["--sampling-rate", "missing"]),
        (["account", *PLAN, "--delta", "1"], ["delta is 1.0", "(0, 1)"]),
        (["account", *PLAN, "--delta", "nan"], ["delta is nan", "(0, 1)"]),
        (["account", *PLAN, "--epsilon", "-1"], ["epsilon is -1.0", "at least 0"]),
        (["account", *PLAN, "--delta", "x"], ["--delta", "'x' is not a number"]),
        (["account", *PLAN[:5], "1.5", "--delta", "1e-5"], ["--steps", "'1.5' is not a whole number"]),
        (["account", *PLAN[:5], "0", "--delta", "1e-5"], ["--steps is 0", "1 to"]),
        (["account", *PLAN[:5], "9" * 30, "--delta", "1e-5"], ["--steps is 999", "1 to"]),
        (["account", "--sampling-rate", "1.5", *PLAN[2:], "--delta", "1e-5"], ["sampling rate is 1.5", "(0, 1]"]),
        (["account", "--sampling-rate", "0", *PLAN[2:], "--delta", "1e-5"], ["sampling rate is 0.0", "(0, 1]"]),
        (["account", *PLAN[:3], "-1", *PLAN[4:], "--delta", "1e-5"], ["-1.0", "above 0"]),
        (["account", *PLAN[:3], "inf", *PLAN[4:], "--delta", "1e-5"], ["inf", "finite"]),
        (["account", *PLAN, "--delta", "1e-5", "--accountant", "gdp"], ["'gdp'", "pld, rdp, moments, strong"]),
        (["account", *PLAN, "--delta", "1e-5", "--adjacency", "x"], ["'x'", "replace-one"]),
        (["account", *PLAN, "--delta", "1e-5", "--plot", "curve.txt"], ["curve.txt", ".png"]),
        (["account", "no-such-file", "--delta", "1e-5"], ["no-such-file"]),
        (["account", "x.jsonl", *PLAN, "--delta", "1e-5"], ["--sampling-rate", "plans"]),
        (["account", "--colour"], ["--colour"]),
        (["plan", "--records", "100"], ["left out"]),
        (["plan", "--records", "0", "--lot-size", "1"], ["left out"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for word in words:
        assert word in err
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="delta is 2"):
        main(["--debug", "account", *PLAN, "--delta", "2"])


@pytest.mark.parametrize(("given", "wanted"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, wanted: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert os.environ["OMP_WAIT_POLICY"] == wanted


def test_a_mistake_that_quotes_a_damaged_file_stays_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"kind": "' + "[" * 100_000 + '"}\n')
    code, _, err = run(capsys, "account", str(path), "--delta", "1e-5")
    assert (code, len(err) < 1100) == (2, True)
    long = "x" * 50_000
    code, _, err = run(capsys, "account", f"{long}.jsonl", "--delta", "1e-5")
    assert (code, len(err) < 1100, err.count("…")) == (2, True, 1)


def test_plan_and_account_know_correlated_noise(capsys: pytest.CaptureFixture[str]) -> None:
    noise = ("--noise", "banded-toeplitz", "--bands", "4", "--accountant", "rdp", "--delta", "1e-5", "--json")
    size = ("--records", "6000", "--lot-size", "60", "--epochs", "4", "--epsilon", "2")
    code, out, _ = run(capsys, "plan", *size, *noise)
    assert code == 0
    planned = json.loads(out)
    assert planned["sampling"] == "cyclic Poisson"
    level = repr(planned["noise_multiplier"])
    code, out, _ = run(
        capsys, "account", "--sampling-rate", "0.01", "--steps", "400", "--noise-multiplier", level, *noise
    )
    assert code == 0
    assert json.loads(out)["epsilon"] == pytest.approx(planned["epsilon"], rel=1e-6)
    code, _, err = run(capsys, "plan", *size, "--delta", "1e-5", "--bands", "4")
    assert code == 2
    assert "--bands is 4" in err
