"""Memory for large models: of the server beyond gRPC's for the messages, of a participant beyond its training."""

from __future__ import annotations

import importlib.util
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("grpc", reason="the extra collab (grpcio) is not installed")

from torch import nn

from tacit.collaboration import Download, FlatParameters, Largest, Participant, SelectedUploads
from tacit.collaboration.network import Agreement, Membership, Store, make_keys
from tacit.collaboration.network.membership import Shard
from tacit.collaboration.network.outbox import Outbox
from tacit.collaboration.network.store import rules_for
from tacit.randomness import SecureSource

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "collaboration.py"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))  # processes that are started import it by its name
    spec = importlib.util.spec_from_file_location("collaboration", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "collaboration", module)
    spec.loader.exec_module(module)
    return module


class Wire:
    """A link to a server that has zeros and keeps nothing."""

    address = "nowhere"

    def turn(self) -> int:
        return 0

    def pull(self, fraction: float, *, size: int, into: np.ndarray) -> Download:
        into[:] = 0
        return Download(indices=None, values=into)

    def push(self, token: int, body: bytes) -> None:
        self.length = len(body)


@pytest.mark.parametrize(("upload", "length", "most"), [(1.0, 4, 1.3), (0.1, 0.8, 1.8)])
def test_an_exchange_needs_memory_for_little_more_than_one_model(
    tmp_path: Path, upload: float, length: float, most: float
) -> None:
    """Beside the parameters themselves: those before the epoch, which become the change and are then sent."""
    model = nn.Linear(1000, 1000, bias=False)
    flat = FlatParameters(model)
    size = flat.vector.size

    step = np.random.default_rng(0).normal(size=size).astype(np.float32)

    def train() -> None:
        np.add(flat.vector, step, out=flat.vector)

    person = Participant(
        "ann", flat, train, SelectedUploads(Largest(fraction=upload), bound=10.0, source=SecureSource())
    )
    terms = Agreement(
        collaboration="c" * 32, model="own", layout="x", parameters=size, start=0, stop=size, bound=10.0, upload=upload,
        protocol="asynchronous", pool=0,
    )  # fmt: skip
    wire = Wire()
    shard = Shard(link=wire, agreement=terms, due=0)  # type: ignore[arg-type]
    outbox = Outbox(tmp_path, participant="ann", collaboration="c" * 32)
    membership = Membership(person, [shard], outbox)
    membership.exchange()
    tracemalloc.start()
    try:
        membership.exchange()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        membership.close()
    assert wire.length == pytest.approx(length * size, abs=100)
    assert peak < most * 4 * size, peak / (4 * size)


@pytest.mark.slow
def test_a_participant_needs_less_than_two_models_and_a_half_beyond_training_alone(load: ModuleType) -> None:
    assert load.participant_memory(0.1)["more"] < 2.5


@pytest.mark.slow
def test_uploads_to_a_large_model_need_less_than_twice_the_model_beyond_a_bare_sink(
    tmp_path: Path, load: ModuleType
) -> None:
    """Eight clients over mutual TLS upload a tenth of 10 million parameters at once, four times each."""
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
