"""Any arguments at all: an answer, or one sentence and exit code 2; never a traceback, and no file changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tacit.cli import main
from tacit.ledger import GaussianSum, Ledger, Poisson, Step

ODD = ["", " ", "-", "--", "nan", "inf", "-inf", "-1", "0", "-0.0", "1e-400", "1e400", "1e-300", "9" * 40, "0x10",
       "1_000", "١", "½", "\u202e", "'; ls", "../..", "/dev/null", "/", "no-such-file", "x" * 3000]  # fmt: skip
NUMBERS = ["0.01", "0.5", "1", "2", "4", "100", "1e-5"]
values = st.sampled_from([*ODD, *NUMBERS]) | st.text(max_size=6)

COMMANDS: dict[str, list[str]] = {
    "account": ["--sampling-rate", "--noise-multiplier", "--steps", "--delta", "--epsilon", "--accountant",
                "--adjacency"],
    "plan": ["--records", "--lot-size", "--epochs", "--steps", "--epsilon", "--delta", "--noise-multiplier",
             "--accountant", "--adjacency"],
    "report": ["--out", "--delta", "--markdown"],
    "audit": ["--attack", "--noise-multiplier", "--sampling-rate", "--delta", "--confidence", "--runs", "--canaries",
              "--clip"],
    "predict": ["--out"],
    "reproduce": ["--out", "--seeds"],
    "train": ["--recipe", "--epsilon", "--delta", "--epochs", "--lot-size", "--clip", "--model", "--accountant"],
    "data": [],
    "collaborate": ["--participants"],
}  # fmt: skip
GOOD = {
    "account": ["--sampling-rate", "0.01", "--noise-multiplier", "4", "--steps", "10", "--delta", "1e-5"],
    "plan": ["--records", "1000", "--lot-size", "10", "--epochs", "1", "--epsilon", "1", "--delta", "1e-5"],
    "audit": ["--attack", "canaries", "--canaries", "20", "--confidence", "0.9"],
    "train": ["digits", "--out", "/dev/null/run"],  # a place that cannot be: nothing is ever trained here
}


@st.composite
def calls(draw: st.DrawFn) -> list[str]:
    """A command with some options odd; most of the rest in order, so that the oddity is reached."""
    command = draw(st.sampled_from(list(COMMANDS)))
    whole = command == "train" or draw(st.integers(0, 3))  # "train" with less than that would train
    arguments = list(GOOD.get(command, [])) if whole else []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.integers(0, 5))
        if kind == 0 or not COMMANDS[command]:
            arguments.append(draw(values))
        else:
            arguments += [draw(st.sampled_from(COMMANDS[command])), draw(values)]
    if draw(st.booleans()):
        arguments.append("--json")
    few = ["--runs", "20", "--canaries", "20"] if command == "audit" else []
    return [command, *few, *arguments]


def run(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=calls())
def test_many_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(arguments, capsys, tmp_path, monkeypatch)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=calls())
@example(arguments=["account", *GOOD["account"], "--noise-multiplier", "1e-300"])
@example(arguments=["account", *GOOD["account"], "--steps", "9" * 40])
@example(arguments=["plan", *GOOD["plan"], "--epsilon", "1e-300"])
@example(arguments=["audit", *GOOD["audit"], "--clip", "1e-300"])
@example(arguments=["audit", *GOOD["audit"], "--noise-multiplier", "1e30"])
def test_any_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(arguments, capsys, tmp_path, monkeypatch)


def check(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "none"))
    ledger = tmp_path / "ledger.jsonl"
    if not ledger.exists():
        with Ledger.open(ledger) as book:
            book.record(Step(Poisson(rate=0.1), (GaussianSum(group="g", clip_norm=1.0, noise_std=1.0),)))
    before = ledger.read_bytes()
    code, out, err = run(capsys, arguments)
    assert code in (0, 2), (arguments, err)
    assert "Traceback" not in err
    if code == 2:
        assert err.strip() and len(err.strip().splitlines()) <= 3
    elif "--json" in arguments and "--help" not in arguments:
        assert isinstance(json.loads(out), dict | list)
    assert ledger.read_bytes() == before
