"""``tacit report``: files, JSON, and mistakes that leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.accounting import account
from tacit.cli import main
from tacit.ledger import GaussianSum, Header, Ledger, Poisson, Step


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts of two points; the claim is computed as ever."""
    monkeypatch.setattr("tacit.reports.findings._points", lambda composition, most: 2)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    query = GaussianSum(group="gradients", clip_norm=1.0, noise_std=2.0)
    with Ledger.open(directory / "ledger.jsonl", Header(purpose="a test")) as ledger:
        for _ in range(20):
            ledger.record(Step(Poisson(rate=0.01, records=10_000), (query,)))
    facts = {"format": 1, "dataset": {"name": "digits"}, "result": {"test_accuracy": 0.9, "delta": 1e-6}}
    (directory / "run.json").write_text(json.dumps(facts))
    return directory


def test_json_and_where_the_report_is(capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    code, out, err = run(capsys, "report", str(finished), "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts == {
        "report": str(finished / "report.html"),
        "epsilon": account(Ledger.load(finished / "ledger.jsonl"), delta=1e-6).epsilon,
        "delta": 1e-6,
        "secure_randomness": True,
    }
    assert "90.00 %" in (finished / "report.html").read_text("utf-8")


def test_lines_for_people(capsys: pytest.CaptureFixture[str], finished: Path, tmp_path: Path) -> None:
    _, out, _ = run(capsys, "report", str(finished), "--out", str(tmp_path / "x.html"), "--delta", "1e-5")
    claim, where = out.splitlines()
    assert claim.startswith("example-level (ε ≤ 0.") and "δ = 1e-05" in claim
    assert where == f"report: {tmp_path / 'x.html'}"
    assert not (finished / "report.html").exists()


def test_markdown_is_printed_or_written(capsys: pytest.CaptureFixture[str], finished: Path, tmp_path: Path) -> None:
    _, printed, _ = run(capsys, "report", str(finished), "--markdown")
    assert printed.startswith("## Privacy: digits\n")
    _, out, _ = run(capsys, "report", str(finished), "--markdown", "--json")
    assert json.loads(out)["markdown"] + "\n" == printed
    run(capsys, "report", str(finished), "--markdown", "--out", str(tmp_path / "card.md"))
    assert (tmp_path / "card.md").read_text("utf-8") + "\n" == printed
    assert not (finished / "report.html").exists()


def test_a_bare_ledger(capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    _, out, _ = run(capsys, "report", str(finished / "ledger.jsonl"), "--json")
    facts = json.loads(out)
    assert facts["report"] == str(finished / "ledger.report.html")
    assert facts["delta"] == 1e-5


def test_an_older_report_is_replaced(capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    (finished / "report.html").write_text("old")
    run(capsys, "report", str(finished))
    assert (finished / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", None, ["run.json", "directory of a run, or a ledger file"]),
        ("run.json", b"{", ["run.json", "not a JSON file"]),
        ("run.json", b"\xff\xfe", ["run.json", "not a JSON file"]),
        ("run.json", b"[" * 100_000, ["run.json", "not a JSON file"]),
        ("run.json", b'{"format": 1, "x": NaN}', ["run.json", "NaN is not a number"]),
        ("run.json", b"[1]", ["run.json", "format"]),
        ("run.json", b'{"format": 2}', ["run.json has format 2", "reads format 1"]),
        ("run.json", b'{"format": 1, "result": {"delta": 3}}', ["delta is 3.0", "--delta"]),
        ("ledger.jsonl", None, ["ledger.jsonl", "no such file"]),
        ("ledger.jsonl", b"", ["ledger.jsonl, line 1", "not the header"]),
        ("ledger.jsonl", b"{}\n", ["ledger.jsonl, line 1", "not the header"]),
    ],
)
def test_broken_files_are_one_sentence_and_no_report(
    capsys: pytest.CaptureFixture[str], finished: Path, name: str, content: bytes | None, words: list[str]
) -> None:
    if content is None:
        (finished / name).unlink()
    else:
        (finished / name).write_bytes(content)
    before = sorted(path.name for path in finished.iterdir())
    for arguments in ([], ["--markdown", "--out", str(finished / "card.md")]):
        code, out, err = run(capsys, "report", str(finished), *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("tacit: ") and err.count("\n") == 1
        for word in words:
            assert word in err
        assert sorted(path.name for path in finished.iterdir()) == before


def test_a_changed_ledger_is_refused(capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    path = finished / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"noise_std":2.0', b'"noise_std":9.0'))
    code, _, err = run(capsys, "report", str(finished))
    assert code == 2
    assert "does not match its hash" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], ["missing", "no such file"]),
        (["run", "--out", "run/ledger.jsonl"], ["run/ledger.jsonl", "the run needs that file"]),
        (["run", "--out", "run/run.json", "--markdown"], ["run/run.json", "the run needs that file"]),
        (["run", "--out", "run"], ["run", "directory"]),
        (["run", "--out", "nowhere/x.html"], ["nowhere/x.html", "No such file or directory"]),
        (["run", "--delta", "0"], ["delta is 0.0", "(0, 1)"]),
        (["run", "--delta", "x"], ["'x' is not a number"]),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str],
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in finished.iterdir()}
    code, out, err = run(capsys, "report", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert {path: path.read_bytes() for path in finished.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_full_disk_leaves_the_old_report(
    capsys: pytest.CaptureFixture[str], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished / "report.html").write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = run(capsys, "report", str(finished))
    assert code == 2
    assert "No space left on device" in err
    assert (finished / "report.html").read_text() == "old"
    assert sorted(path.name for path in finished.iterdir()) == ["ledger.jsonl", "report.html", "run.json"]


def test_help_shows_examples_and_loads_nothing_heavy(finished: Path) -> None:
    code = (
        "import sys; from tacit.cli import main\n"
        "try: main(['report', *sys.argv[1:]])\n"
        "except SystemExit: print('torch' in sys.modules, 'scipy' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True).stdout
    assert "tacit report runs/mnist" in shown
    assert shown.endswith("False False\n")
    made = subprocess.run(
        [sys.executable, "-c", code, str(finished)], capture_output=True, text=True, check=True
    ).stdout
    assert made.endswith("False True\n")  # a report needs no torch
