"""The filter for NVIDIA FLARE: what it sends, what it charges, when it stops; also in FLARE's own simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg

from tacit.accounting import account
from tacit.flare import GaussianUpdates
from tacit.ledger import Ledger


class Site:
    """The little of FLARE's context that the filter asks for."""

    def get_identity_name(self) -> str:
        return "north"


def result(scale: float = 100.0, kind: str = DataKind.WEIGHT_DIFF) -> Any:
    data = {"b": np.full(50, scale, dtype=np.float64), "a": np.full((4, 5), scale, dtype=np.float32)}
    return DXO(kind, data, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 17}).to_shareable()


def make(tmp_path: Path, rounds: int = 3, **changes: Any) -> GaussianUpdates:
    terms = {"epsilon": 2000.0, "delta": 1e-5, "clip_norm": 1.0, "ledger": str(tmp_path / "{site}.jsonl"), **changes}
    return GaussianUpdates(rounds=rounds, **terms)


def test_changes_are_clipped_noisy_and_charged_until_the_budget_is_spent(tmp_path: Path) -> None:
    one = make(tmp_path)
    for _ in range(3):
        sent = from_shareable(one.process(result(), Site()))
        flat = np.concatenate([sent.data["a"].ravel(), sent.data["b"]])
        assert 0.5 < np.linalg.norm(flat) < 3.0 and len(set(flat.tolist())) == 70
        assert sent.data["a"].shape == (4, 5) and sent.data["b"].dtype == np.float64
        assert MetaKey.NUM_STEPS_CURRENT_ROUND not in sent.meta
    book = Ledger.load(tmp_path / "north.jsonl")
    spent = account(book, delta=1e-5)
    assert len(book) == 3 and 1500 < spent.epsilon <= 2000.0 and spent.adjacency == "replace-one"
    for again in (one, make(tmp_path)):  # also after a restart
        last = from_shareable(again.process(result(), Site()))
        assert not any(np.any(value) for value in last.data.values())
        again._book.close()  # type: ignore[union-attr]
    assert len(Ledger.load(tmp_path / "north.jsonl")) == 3


def test_the_filter_sends_finite_values_for_a_non_finite_update(tmp_path: Path) -> None:
    sent = from_shareable(make(tmp_path).process(result(np.nan), Site()))
    assert all(np.isfinite(value).all() for value in sent.data.values())


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.METRICS])
def test_other_results_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="only changes of weights"):
        make(tmp_path).process(result(kind=kind), Site())
    assert not (tmp_path / "north.jsonl").exists()


class Ones(Executor):
    """A client whose change is always one."""

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        return DXO(DataKind.WEIGHT_DIFF, {"w": np.ones((2, 3), dtype=np.float32)}).to_shareable()


class Averages(FedAvg):
    """A server that begins with zeros."""

    def load_model(self) -> FLModel:
        return FLModel(params={"w": np.zeros((2, 3), dtype=np.float32)})


@pytest.mark.slow
def test_it_runs_in_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType

    monkeypatch.chdir(tmp_path)
    job = FedJob(name="private", min_clients=2)
    job.to_server(Averages(num_clients=2, num_rounds=3))
    job.to_clients(Ones())
    job.to_clients(make(tmp_path, rounds=2), filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.simulator_run(str(tmp_path / "space"), n_clients=2, threads=1)
    for site in ("site-1", "site-2"):
        book = Ledger.load(tmp_path / f"{site}.jsonl")
        assert len(book) == 2  # of three rounds: the budget was for two
        assert account(book, delta=1e-5).epsilon <= 2000.0
