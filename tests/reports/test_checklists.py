"""The report answers published checklists, and says so where it does not."""

from __future__ import annotations

from pathlib import Path

from tacit.reports import checklists, report
from tacit.reports.findings import Run, find


def test_every_question_is_in_the_report_with_its_answer(trained: Path, tmp_path: Path) -> None:
    run = Run.load(trained)
    found = checklists.answers(run, find(run))
    page = report(trained, output=tmp_path / "report.html").read_text("utf-8")
    assert {source for source, _, _ in found} == {"NIST SP 800-226", "EDPB opinion 28/2024"}
    assert all(answer for _, _, answer in found)
    assert all(page.count(f"<td>{question}</td>") == 1 for _, question, _ in found)
    assert sum(checklists.NOT_COVERED in answer for _, _, answer in found) == 4
