"""The Fabric example runs, keeps its budget and learns."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "fabric_loop.py"


def test_the_fabric_loop(capsys: Any) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed (extra 'lightning')")
    spec = importlib.util.spec_from_file_location("fabric_loop", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    assert example.main(epochs=2) > 0.9
    found = re.search(r"ε = ([\d.]+), δ = 1e-05\) example-level, add/remove, Poisson", capsys.readouterr().out)
    assert found is not None and 1.9 < float(found[1]) <= 2.0
