"""Every `tacit` command in a block of the documentation has options that the command takes, and those that it needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tacit.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:[a-z]+\$ +|\$ )?\s*(tacit .*)$")


def commands(page: Path) -> Iterator[str]:
    """Commands of a page, with the lines that continue them; comments and what the shell does with output left out."""
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in "" if language == "python" else re.sub(r"\\\n\s*", " ", block).splitlines():
            if found := _COMMAND.match(line):
                yield re.split(r"\s+#|\s&(?:\s|$)|\s[|>;]\s?", found.group(1))[0]


FOUND = [(page.relative_to(ROOT).as_posix(), command) for page in PAGES for command in commands(page)]


def test_commands_are_found() -> None:
    assert len(FOUND) > 50 and any("collaborate keys" in command for _, command in FOUND)


@pytest.mark.parametrize(("page", "command"), FOUND, ids=[f"{page}-{number}" for number, (page, _) in enumerate(FOUND)])
def test_documented_commands_have_options_that_exist(page: str, command: str) -> None:
    words, at = shlex.split(command)[1:], typer.main.get_command(app)
    while isinstance(getattr(at, "commands", None), dict) and words and not words[0].startswith("-"):
        group: Any = at
        if words[0] not in group.commands:
            if group.name == "data":  # `tacit data NAME`
                break
            raise AssertionError(f"{page}: {command!r}: there is no command {words[0]!r}")
        at = group.commands[words.pop(0)]
    options = {name: param for param in at.params for name in (*param.opts, *param.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
    assert given <= options.keys(), f"{page}: {command!r}: {sorted(given - options.keys())} do not exist"
    whole = not any("…" in word or word in ("...", "[OPTIONS]") for word in words)
    needed = [param for param in at.params if param.required and param.param_type_name == "option"]
    lacking = [param.opts[0] for param in needed if not given & set(param.opts)]
    assert not (whole and words and lacking), f"{page}: {command!r} lacks {lacking}"
