"""Ten million rows are trained on in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

_ROWS = 10_000_000
_TRAIN = """
import resource, sys
from tacit.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["boosted", "linear"])
def test_ten_million_rows_need_less_than_500_megabytes(model: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write("age,hours,town,score,weight,size,y\n")
        for _ in range(_ROWS // 500_000):
            age, hours, town = (
                draw.integers(18, 90, 500_000),
                draw.integers(0, 60, 500_000),
                draw.integers(0, 5, 500_000),
            )
            others = draw.integers(0, 1000, (3, 500_000))
            y = (age + hours + draw.integers(0, 40, 500_000) > 100).astype(int)
            np.savetxt(file, np.column_stack([age, hours, town, *others, y]), fmt="%d", delimiter=",")
    words = ["train", str(path), "--target", "y", "--classes", "0,1", "--epsilon", "1", "--model", model]
    command = [sys.executable, "-c", _TRAIN, *words, "--out", str(tmp_path / "run")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(answer.stdout.split()[-1]) < 500 * 1024
