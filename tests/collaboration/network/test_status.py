"""The status page: what it says, to whom, and that a browser shows it as it changes."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collaboration.network.helpers import SIZE, agreement, begin
from tacit.collaboration.network import Service, codec
from tacit.collaboration.network.status import Access, StatusPage

NASTY = "<img src=x onerror=alert(1)> ε = 8.00 & more"


def push(service: Service, sequence: int) -> None:
    values = np.full(4, 0.25, dtype=np.float32)
    service.push("ann", codec.pack_token(0) + codec.pack_upload(sequence, np.arange(4), values, size=SIZE))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Service, StatusPage]]:
    service = Service(begin(tmp_path / "server", agreement()))
    shown = StatusPage(service, None, Access(port=0))
    shown.start()
    yield service, shown
    shown.stop()
    service.close()


def get(page: StatusPage, path: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_the_facts(page: tuple[Service, StatusPage]) -> None:
    service, shown = page
    push(service, 0)
    service.report("ann", NASTY.encode())
    status, headers, body = get(shown, "/status.json")
    assert status == 200 and headers["content-type"] == "application/json"
    facts = json.loads(body)
    assert facts["uploads"] == 1 and facts["bytes_up"] == 20 + 32 and facts["accuracy"] == []
    assert [(person["name"], person["uploads"]) for person in facts["participants"]] == [
        ("ann", 1),
        ("bob", 0),
        ("carl", 0),
    ]
    assert facts["participants"][0]["statement"] == NASTY
    status, headers, body = get(shown, "/")
    assert status == 200 and b"status.json" in body and "default-src 'none'" in headers["content-security-policy"]
    assert not re.search(rb"https?://", body)  # nothing is fetched from elsewhere
    assert get(shown, "/etc/passwd")[0] == 404


def test_other_sites_cannot_read_it(page: tuple[Service, StatusPage]) -> None:
    _, shown = page
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1", 200), ("localhost:99", 200)):
        assert get(shown, "/status.json", host)[0] == status


@pytest.mark.slow
def test_a_browser_shows_it_and_keeps_it_up_to_date(
    page: tuple[Service, StatusPage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium on this machine")
    service, shown = page
    push(service, 0)
    service.report("ann", NASTY.encode())
    overview: Callable[[], Any] = service.overview
    looks = 0

    def watched() -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            push(service, 1)  # while the page is open
        return overview()

    monkeypatch.setattr(service, "overview", watched)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [browser, *flags, "--virtual-time-budget=6000", "--dump-dom", shown.address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert looks >= 4
    dom = done.stdout
    assert '<dd id="uploads">2</dd>' in dom
    assert "&lt;img src=x onerror=alert(1)&gt; ε = 8.00 &amp; more" in dom and "<img" not in dom
    assert dom.count("<tr>") == 4
    assert "mlp, 40 parameters, asynchronous" in dom
