"""The report in a real browser: nothing on the console, nothing from the network, nothing cut off on a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tacit.reports import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("whole"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"),
]


def browse(page: Path, folder: Path, *options: str) -> tuple[str, set[str], str]:
    """Open a page; what the console said, what was asked of the network, and the page as it was built."""
    assert CHROMIUM is not None
    log = folder / "net.json"
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--log-net-log={log}",
            f"--user-data-dir={folder / 'profile'}",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    urls = re.findall(r'"url":"(https?://[^"]*)', log.read_text())
    asked = {url for url in urls if not re.search(r"\.google(apis)?\.com/", url)}  # the browser's own updates
    return console, asked, done.stdout


def test_the_test_itself_notices(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>console.error("boom")</script>')
    console, asked, _ = browse(page, tmp_path, f"--screenshot={tmp_path / 'bad.png'}")
    assert "boom" in console
    assert asked == {"http://example.invalid/x.png"}


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["0", "1"])
def test_screens(trained: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page, shot = report(trained, output=tmp_path / "report.html"), tmp_path / "shot.png"
    options = [f"--window-size={width},4000", f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={scheme}"]
    console, asked, _ = browse(page, tmp_path, *options)
    assert (console, asked) == ("", set())
    assert shot.stat().st_size > 50_000
    assert not any(path.suffix == ".png" for path in trained.iterdir())


def test_nothing_is_wider_than_a_phone(trained: Path, tmp_path: Path) -> None:
    """A frame as wide as a phone; a script of the test's own measures the page in it."""
    page = report(trained, output=tmp_path / "report.html")
    inside = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8"))
    probe = (
        "<script>addEventListener('load', () => { const wide = [...document.querySelectorAll('body *')]"
        ".filter(one => !one.closest('.wide') && one.getBoundingClientRect().right > innerWidth + 1)"
        ".map(one => one.tagName + '.' + one.className);"
        "parent.postMessage(JSON.stringify([innerWidth, document.documentElement.scrollWidth, wide]), '*'); })</script>"
    )
    (tmp_path / "inside.html").write_text(inside.replace("</body>", probe + "</body>"), "utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<pre id=out></pre><script>addEventListener('message', e => out.textContent = e.data)</script>"
        '<iframe src="inside.html" style="width:360px;height:800px;border:0"></iframe>'
    )
    _, _, built = browse(frame, tmp_path, "--window-size=800,900", "--virtual-time-budget=5000", "--dump-dom")
    measured = re.search(r"<pre[^>]*>(.*?)</pre>", built)
    assert measured is not None
    assert measured[1] == "[360,360,[]]"


def test_prints(trained: Path, tmp_path: Path) -> None:
    page, paper = report(trained, output=tmp_path / "report.html"), tmp_path / "report.pdf"
    console, asked, _ = browse(page, tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert (console, asked) == ("", set())
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 8
