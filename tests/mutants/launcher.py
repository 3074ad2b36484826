"""Started by `mutants.running`: imports everything, then forks, patches and runs pytest, once for each name."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from typing import Any

import hypothesis  # noqa: F401  imported here so that no fork has to
import pytest
import scipy.stats  # noqa: F401
import torch

from mutants.catalogue import MUTANTS
from mutants.running import CONTROL


class Watch:
    """A plugin that notes what failed and how many passed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed += 1


def work(name: str, most: int) -> dict[str, Any]:
    chosen = MUTANTS.values() if name == CONTROL else [MUTANTS[name]]
    nodes = list(dict.fromkeys(test for mutant in chosen for test in mutant.caught_by))
    watch, output, trouble = Watch(), io.StringIO(), ""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        if name != CONTROL:
            MUTANTS[name].apply(patch)
            patch.setenv("TACIT_MUTANT", name)  # for tests that train in processes of their own
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/t", "-m", "not slow", "-k", "not mutant"]
        options += [] if name == CONTROL else [f"--maxfail={most}"]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = int(pytest.main([*options, *nodes], plugins=[watch]))
    if code not in (0, 1, 2) or not (watch.failed or watch.passed):
        trouble = f"pytest ended with {code}: {output.getvalue()[-1500:]}"
    return {"mutant": name, "failed": watch.failed, "passed": watch.passed, "trouble": trouble}


def main() -> None:
    torch.set_num_threads(1)
    most, *names = sys.argv[1:]
    for name in names:
        child = os.fork()
        if not child:
            try:
                facts = work(name, int(most))
            except BaseException:
                facts = {"mutant": name, "failed": [], "passed": 0, "trouble": traceback.format_exc()}
            print(json.dumps(facts), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
