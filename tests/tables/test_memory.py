"""Memory: the rows of a table are read in pieces, so that ten times the rows need hardly more of it."""

from __future__ import annotations

import subprocess
import sys

ROWS, GROWTH = 300_000, 64
"""The rows of the large table, and the megabytes that its training may take beyond those of a small one."""

SCRIPT = """
import resource, sys
import numpy as np
from pathlib import Path
from tacit.ledger import Budget, Header, Ledger
from tacit.tables.columns import Number
from tacit.tables.reading import read
from tacit.tables.schema import Schema
from tacit.tables.training import train_table

names = ("a", "b", "c", "d", "y")
bins = {name: () if name == "y" else (2, 5, 7) for name in names}
schema = Schema(columns={name: Number(low=0, high=9, bins=bins[name]) for name in names}, target="y")

def trained(rows, file):
    draw = np.random.default_rng(0)
    with file.open("w") as lines:
        lines.write(",".join(names) + "\\n")
        for _ in range(rows // 10_000):
            np.savetxt(lines, draw.integers(0, 10, (10_000, len(names))), fmt="%d", delimiter=",")
    budget, ledger = Budget(epsilon=3, delta=1e-6), Ledger(Header())
    outcome = train_table(lambda: read(file, names), schema, budget=budget, ledger=ledger, model="boosted")
    assert outcome.records > 0.7 * rows
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

file = Path(sys.argv[1]) / "t.csv"
small = trained(10_000, file)
print(small, trained(int(sys.argv[2]), file))
"""


def test_300_000_rows_need_hardly_more_memory_than_10_000(tmp_path: object) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(ROWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    small, large = map(int, done.stdout.split())
    assert large - small < GROWTH, f"{small} MB for 10,000 rows, {large} MB for {ROWS}"
