"""The documentation: its pages fit together, its tutorials run, and every public name has an example."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import tacit
from tacit.cli import app
from tacit.reports import registry

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ROOMS = [path for path in sorted((DOCS / "api").glob("*.md")) if path.stem != "tacit"]
RUN_ALONE = [
    DOCS / "start.md",
    DOCS / "first-settings.md",
    DOCS / "api" / "tacit.md",
    *ROOMS,
    *sorted((DOCS / "tutorials").glob("*.md")),
]
ELSEWHERE = {"tacit.flower", "tacit.flare"}  # in environments of their own: tests/flower, tests/flare


def code(page: Path) -> str:
    """Return the Python of a page, in order."""
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))


@pytest.mark.parametrize("page", RUN_ALONE, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_the_code_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = code(page)
    if "init_process_group" in program:  # as torchrun starts one process
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
            monkeypatch.setenv(name, value)
        program = program.replace(
            'init_process_group("gloo")',
            f'init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=0, world_size=1)',
        )
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(page), "exec"), {"__name__": "__main__"})


def test_the_messages_of_troubleshooting_are_in_the_source() -> None:
    source = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # texts that go on in the next line
    messages = re.findall(r"^\| \*(.+?)\* \|", (DOCS / "troubleshooting.md").read_text("utf-8"), re.M)
    missing = [part for message in messages for part in message.split("…") if part.strip() not in joined]
    assert len(messages) > 10 and not missing


def test_the_facts_of_the_registry_example_fit_its_schema(tmp_path: Path) -> None:
    (facts,) = re.findall(r"```toml\n(.*?)```", (DOCS / "privacy-officers.md").read_text("utf-8"), re.S)
    (tmp_path / "people.toml").write_text(facts, "utf-8")
    told = registry.read_told(tmp_path / "people.toml")
    assert set(told) == set(registry.PEOPLE_KNOW)


def test_every_public_name_has_an_example() -> None:
    page = (DOCS / "api" / "tacit.md").read_text("utf-8")
    examples = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)```", page, re.M | re.S))
    assert sorted(examples) == sorted(set(tacit.__all__) - {"__version__"})
    returned = {"Ledger": "run.ledger", "Guarantee": "promise.epsilon"}  # made by a call of the example before
    for name, text in examples.items():
        assert f"tacit.{name}" in text or returned.get(name, "?") in text, name


@pytest.mark.parametrize("page", ROOMS, ids=lambda page: page.stem)
def test_every_name_of_a_room_has_an_example(page: Path) -> None:
    """An example is a use in the code of the room's page, which runs, or a doctest of the name itself."""
    rooms = re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.M)
    assert rooms
    for room in rooms:
        if room in ELSEWHERE:
            continue
        module = importlib.import_module(room)
        used = set(re.findall(r"\w+", re.sub(r"^from .*", "", code(page), flags=re.M)))
        for name in getattr(module, "__all__", ()):
            assert name in used or ">>>" in (inspect.getdoc(getattr(module, name)) or ""), f"{room}.{name}"


def test_every_public_room_is_in_the_reference() -> None:
    listed = {name for page in ROOMS for name in re.findall(r"^::: (tacit[\w.]+)$", page.read_text("utf-8"), re.M)}
    inside = {"tacit.cli", "tacit.recipes", "tacit.models", "tacit.integrations"}  # a command, and what it is made of
    rooms = {f"tacit.{path.parent.name}" for path in (ROOT / "src/tacit").glob("*/__init__.py")}
    assert {room for room in rooms if "._" not in room} - inside <= listed


def test_the_site_builds_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In this process, where torch is imported already."""
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    with contextlib.suppress(Abort), caplog.at_level(logging.WARNING, "mkdocs"):
        build(config)
    assert not caplog.messages
    site = {str(page.relative_to(tmp_path / "site")): page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    assert {"index.html", "tacit-planner.html", "glossary.html"} <= set(site)
    assert not [name for name, text in site.items() if "\n: " in text]  # lists that this Markdown does not have
    for page in ROOMS:
        for room in set(re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.M)) - ELSEWHERE:
            names = getattr(importlib.import_module(room), "__all__", ())
            assert not [name for name in names if f'id="{room}.{name}"' not in site[f"api/{page.name[:-3]}.html"]]


def shown_commands(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield the commands of a page, and whether each is whole: in a sentence, parts may be left out."""
    text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
    blocks = re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, re.S)
    lines = [(line, True) for block in blocks for line in block.split("\n")]
    lines += [(line, False) for line in re.findall(r"`(tacit [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))]
    for line, whole in lines:
        line = re.sub(r"^\w*\$\s+", "", line).split(" #")[0].strip()
        if line.startswith("tacit "):
            yield line, whole and not re.search(r"…|\.\.\.|\[", line)


def test_commands_shown_in_the_pages_are_parsed_by_the_command_line() -> None:
    tried, wrong = 0, []
    program = typer.main.get_command(app)
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for line, whole in shown_commands(page):
            command: Any = program
            words = shlex.split(line)[1:]
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {name for item in command.params for name in (*item.opts, *item.secondary_opts)} | {"--help"}
            unknown = [word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word) and word not in known]
            wrong += [f"{page.name}: {line}: {option}" for option in unknown]
            if whole and not hasattr(command, "commands") and "--help" not in words:
                try:
                    command.make_context(command.name, list(words))
                except Exception as error:  # the class is click's or typer's own copy of it
                    wrong.append(f"{page.name}: {line}: {getattr(error, 'message', error)}")
            tried += 1
    assert not wrong and tried > 100, "\n".join(wrong)


@pytest.mark.slow
def test_the_federation_of_the_tutorial_takes_place(tmp_path: Path) -> None:
    """The commands as they stand there: keys, a server, two participants, an account. The port must be free."""
    lines = [line for line, whole in shown_commands(DOCS / "tutorials" / "federation.md") if whole]
    keys, serve, north, south, account = [line for line in lines if "simulate" not in line]
    tacit_command = Path(sys.executable).with_name("tacit")

    def begin(line: str) -> subprocess.Popen[str]:
        words = [str(tacit_command), *shlex.split(line)[1:]]
        return subprocess.Popen(words, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    assert begin(keys).wait(120) == 0
    server = begin(serve)
    try:
        time.sleep(10)
        for member in [begin(north), begin(south)]:
            said, _ = member.communicate(timeout=300)
            assert member.returncode == 0, said
            assert "(ε = 3.00, δ = 1e-05)" in said
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    said, _ = begin(account).communicate(timeout=120)
    assert "(ε = 3.00, δ = 1e-05)" in said
