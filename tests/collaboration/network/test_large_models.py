"""A model of 10 million parameters: what the server needs for uploads beyond what gRPC needs for the messages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="the extra collab (grpcio) is not installed")

from tacit.collaboration.network import Store, make_keys
from tacit.collaboration.network.store import rules_for

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "collaboration.py"


@pytest.mark.slow
def test_uploads_to_a_large_model_need_less_than_twice_the_model_beyond_a_bare_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight clients over mutual TLS upload a tenth of 10 million parameters at once, four times each."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))  # processes that are started import it by its name
    spec = importlib.util.spec_from_file_location("collaboration", BENCHMARK)
    assert spec is not None and spec.loader is not None
    load = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "collaboration", load)
    spec.loader.exec_module(load)
    size = load.LARGE
    names = [f"client{number}" for number in range(size.clients)]
    make_keys(tmp_path / "keys", servers=["127.0.0.1"], participants=names)
    terms = load.agreed(size)
    initial = np.zeros(size.parameters, dtype=np.float32)
    store = Store.create(tmp_path / "state", terms, initial, rules_for(terms, participants=size.clients))
    for name in names:
        store.admit(name)
    store.close()
    grown = {kind: load.under_load(tmp_path, kind, size)["megabytes"] for kind in ("upload", "sink of an upload")}
    assert grown["upload"] - grown["sink of an upload"] < 2 * 4 * size.parameters / 2**20, grown
