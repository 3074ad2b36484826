"""The fragments of docs/journey.md, from a laptop to a cluster, do what the page says."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "journey.md"
LINE = "run = tacit.make_private(model, optimizer, people, **plan)\n"


def fragment(name: str) -> str:
    (found,) = re.findall(rf"<!-- journey: {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    return str(found)


@pytest.mark.parametrize("stage", ["laptop", "server", "cluster"])
def test_each_stage_changes_a_line_or_two_and_costs_the_same(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    laptop = fragment("laptop")
    assert laptop.count(LINE) == 1
    code = laptop if stage == "laptop" else laptop.replace(LINE, fragment(stage))
    monkeypatch.chdir(tmp_path)
    Path("runs/people").mkdir(parents=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))  # what torchrun sets
    try:
        exec(compile(code, str(PAGE), "exec"), {})
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert capsys.readouterr().out.strip() == "(ε = 2.00, δ = 1e-05) example-level, add/remove, Poisson, pld"
    assert (tmp_path / "runs/people/ledger.jsonl").exists() == (stage == "server")


def test_links_of_the_page_lead_somewhere() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"\]\(([\w./-]+\.md)\)", text):
        assert (PAGE.parent / name).exists(), name
    for name in re.findall(r"`((?:tests|examples)/[\w./-]+)`", text):
        assert (PAGE.parents[1] / name).exists(), name
    headings = {
        re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-") for line in text.splitlines() if line[:3] == "## "
    }
    for anchor in re.findall(r"\]\(#([\w-]+)\)", text):
        assert anchor in headings, anchor
