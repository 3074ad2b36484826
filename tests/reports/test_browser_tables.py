"""The report of a boosted table in a real browser: shapes, groups, the fold of accountants and a signed sign-off."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reports.test_browser import CHROMIUM, browse
from tables.conftest import SCHEMA, people, write_csv
from tacit.cli import main

PROBE = (
    "<script>addEventListener('load', () => { const wide = [...document.querySelectorAll('body *')]"
    ".filter(one => !one.closest('.wide') && one.getBoundingClientRect().right > innerWidth + 1)"
    ".map(one => one.tagName + '.' + one.className);"
    "const seen = one => one.checkVisibility() && one.getBoundingClientRect().height > 0;"
    "const folded = [...document.querySelectorAll('details table')].filter(seen).length;"
    "const shapes = [...document.querySelectorAll('svg[role=img], svg')].filter(seen).length;"
    "document.title = JSON.stringify({wide, folded, shapes, width: document.documentElement.scrollWidth}); })</script>"
)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_the_report_of_a_boosted_table_shows_shapes_groups_and_who_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.schema.json").write_text(json.dumps(SCHEMA))
    write_csv(tmp_path / "people.csv", people(2500))
    words = ["train", "people.csv", "--model", "boosted", "--epsilon", "3", "--by", "town", "--out", "run"]
    signed = 'who = "A. <b>Officer"\npurpose = "test"\ndate = 2026-11-18\njustification = "agreed"\n'
    for asked in (words, ["report", "run"]):
        with pytest.raises(SystemExit) as stop:
            main(asked)
        assert not stop.value.code
        Path("run/signoff.toml").write_text(signed)
    page = tmp_path / "run" / "report.html"
    measured = tmp_path / "measured.html"
    inside = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8"))
    measured.write_text(inside.replace("</body>", PROBE + "</body>"), "utf-8")
    options = ["--window-size=1280,2000", "--virtual-time-budget=3000", "--dump-dom"]
    console, asked_for, built = browse(measured, tmp_path, *options)
    assert (console, asked_for) == ("", set())
    title = re.search(r"<title>(.*?)</title>", built)
    assert title is not None
    found = json.loads(title[1])
    assert found["wide"] == [] and found["width"] == 1280
    assert found["folded"] == 0 and "The numbers, by four accountants" in built  # there, and behind a fold
    assert found["shapes"] >= 3 + len(SCHEMA["columns"]) - 1  # three charts of privacy, one for each column
    for text in ("age", "school", "A. &lt;b&gt;Officer", "agreed", "town"):
        assert text in built
    assert re.search(r"<td>A</td>", built), "no error for each group"
