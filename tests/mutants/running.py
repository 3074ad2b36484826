"""Runs ordinary tests against mutants: one process imports everything once, and a fork of it becomes each mutant."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONTROL = "control"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of the tests that were run on a mutant."""

    failed: tuple[str, ...]
    passed: int
    trouble: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.failed) and not self.trouble


def run(names: Iterable[str], *, most: int = 3) -> dict[str, Result]:
    """The tests that are to catch each mutant, run on it; `CONTROL` runs those of all mutants on the library as it is.

    ``most`` failures are enough for a mutant; the control run goes to the end.
    """
    command = [sys.executable, "-m", "mutants.launcher", str(most), *names]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Result] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"mutant"'):
            facts: dict[str, Any] = json.loads(line)
            found[facts["mutant"]] = Result(
                failed=tuple(facts["failed"]), passed=facts["passed"], trouble=facts["trouble"]
            )
    if done.returncode:
        raise RuntimeError(f"the launcher of the mutants failed: {done.stderr[-2000:]}")
    return found


def short(test: str) -> str:
    """The name of a test without its parameters."""
    return re.sub(r"\[.*", "", test)
