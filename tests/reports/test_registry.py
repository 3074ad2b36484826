"""The entry of the registry of deployments, and the privacy block of a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tacit.cli import main
from tacit.ledger import Ledger
from tacit.reports import registry
from tacit.reports.findings import Run, find

TOLD = """
name = "Digits"
data_curators = ["An office"]
intended_use = "Reading digits"
data_product_region = "Everywhere"
description = "A classifier of handwritten digits."
publication_date = "2026-11-18"
registry_authors = ["A. Person"]
data_domain = "Images of digits"
release_type = "One release"
data_source_type = "Static"
justification = "Agreed in the office"
sources = "none"
"""


def ask(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    return said.out


def test_an_entry_says_what_the_ledger_says_and_marks_the_rest(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(ask(["report", str(trained), "--registry", "--json"], capsys))
    entry = yaml.safe_load(found["registry"])
    ledger = Ledger.load(trained / "ledger.jsonl")
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] >= found["epsilon"]
    assert ledger.digest in entry["deployment"]["administrative"]["notes"]
    assert entry["tier"] == 3 and entry["status"] == "Draft"
    assert "deployment.basic.description" in found["blanks"]
    assert "deployment.privacy_loss.privacy_unit" not in found["blanks"]


def test_the_missing_facts_are_listed_as_fields_of_the_file_that_gives_them(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ask(["report", str(trained), "--registry", "--out", str(tmp_path / "entry.yaml")], capsys)
    listed = said.split("with --about FILE.toml: ")[1].strip().split(", ")
    assert "justification" in listed and set(listed) <= set(registry.PEOPLE_KNOW)


def test_an_entry_that_was_told_everything_has_no_blanks(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about, out = tmp_path / "about.toml", tmp_path / "entry.yaml"
    about.write_text(TOLD)
    arguments = ["report", str(trained), "--registry", "--about", str(about), "--out", str(out), "--json"]
    assert json.loads(ask(arguments, capsys))["blanks"] == []
    entry = yaml.safe_load(out.read_text("utf-8"))
    assert entry["url_slug"] == "digits" and registry.BLANK not in out.read_text("utf-8")
    registry.check(entry)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tier": 4}, "tier"),
        ({"surprise": 1}, "surprise"),
        ({"status": 3}, "status"),
        ({"deployment": {}}, "basic"),
        ({"deployment": {"basic": {}}}, "name"),
    ],
)
def test_an_entry_that_the_schema_forbids_is_refused(trained: Path, change: dict[str, Any], word: str) -> None:
    run = Run.load(trained)
    entry = registry.entry(run, find(run), {})
    registry.check(entry)
    with pytest.raises(ValueError, match=word):
        registry.check(entry | change)


def test_a_date_that_is_none_and_an_unknown_field_are_refused(trained: Path, tmp_path: Path) -> None:
    run = Run.load(trained)
    with pytest.raises(ValueError, match="YYYY-MM-DD"):
        registry.check(registry.entry(run, find(run), {"publication_date": "1.1.2026"}))
    about = tmp_path / "about.toml"
    about.write_text('colour = "red"')
    with pytest.raises(ValueError, match="colour"):
        registry.read_told(about)


def test_the_model_card_block_has_the_digest_of_the_ledger(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(["report", str(trained), "--metadata"], capsys)
    assert text.startswith("---\n") and text.rstrip().endswith("---")
    block = yaml.safe_load(text.strip().strip("-"))["privacy"]
    assert block["ledger_digest"] == Ledger.load(trained / "ledger.jsonl").digest
    assert {"epsilon", "delta", "unit", "adjacency", "sampling"} <= set(block)
