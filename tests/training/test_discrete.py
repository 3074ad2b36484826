"""Runs with discrete noise: everything released lies on its lattice, is recorded so, and the budget is kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import GaussianSum
from tacit.mechanisms import Adaptive, DimensionAdjusted, Discrete, Explicit, Flat, Joint, PerLayer, lattice
from tacit.training import AdamBC, Metric, PrivateBatchNorm

BUDGET = tacit.Budget(3.0, 1e-5)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), PrivateBatchNorm(8), nn.Tanh(), nn.Linear(8, 3))


def start(data: TensorDataset, net: nn.Module | None = None, **changes: Any) -> tacit.PrivateRun:
    net = net or model()
    optimizer = changes.pop("optimizer", None) or torch.optim.SGD(net.parameters(), lr=0.1)
    settings: dict[str, Any] = {"lot_size": 16, "steps": 5, "clipping": Flat(1.0), "noise": "discrete"}
    return tacit.make_private(net, optimizer, data, **settings | changes)


def loop(run: tacit.PrivateRun, steps: int | None = None) -> None:
    for x, y in run.batches():
        output = run.model(x)
        F.cross_entropy(output, y).backward()
        run.observe(loss=F.cross_entropy(output.detach(), y, reduction="none"))
        run.optimizer.step()
        run.optimizer.zero_grad()
        if steps is not None and run.step == steps:
            return


@pytest.mark.parametrize(
    "clipping",
    [Flat(1.0), PerLayer(total=1.0), Joint({"0.*": 0.3, "1.*": 1.0, "3.*": 7.0}, 1.0), Adaptive(initial=0.5)],
    ids=lambda clipping: type(clipping).__name__,
)
def test_every_release_of_a_run_is_discrete(
    data: TensorDataset, clipping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients, metrics, statistics and counts: no floating-point noise at all."""

    def none(pairs: Any, source: Any) -> None:
        assert not pairs, "floating-point noise in a discrete run"

    monkeypatch.setattr(lattice, "add_gaussian_", none)
    run = start(data, clipping=clipping, budget=BUDGET, metrics={"loss": Metric(bound=3.0)})
    loop(run)
    assert run.step == 5
    groups = set()
    for step, _ in run.ledger.entries:
        for query in step.queries:
            assert isinstance(query, GaussianSum)
            assert query.noise == "discrete"
            assert query.lattice is not None
            assert query.lattice <= query.clip_norm * 2.0**-14
            groups.add(query.group.split("/")[0])
    assert {"metrics", "statistics"} < groups
    found = run.guarantee()
    assert found.accountant == "pld"
    assert 2.9 < found.epsilon <= 3.0
    assert "Discrete noise is exact" in found.describe()


def test_gradients_are_whole_steps_of_the_lattice_divided_by_the_public_lot_size(data: TensorDataset) -> None:
    net = nn.Linear(4, 3).double()
    double = TensorDataset(data.tensors[0].double(), data.tensors[1])
    seen: list[Tensor] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.extend(parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None)
            return super().step(closure)

    run = start(double, net, optimizer=Spy(net.parameters(), lr=0.1), noise_multiplier=1.0)
    for x, y in run.batches():
        F.cross_entropy(net(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    (query,) = run.ledger.entries[0][0].queries
    assert isinstance(query, GaussianSum)
    assert len(seen) == 10
    for gradient in seen:
        whole = gradient * 16 / query.lattice
        assert torch.equal(whole, whole.round())
    values = torch.cat([gradient.flatten() for gradient in seen]) * 16 / query.noise_std
    assert 0.3 < values.std().item() < 3


def test_the_noise_multiplier_is_the_one_asked_for_rounding_included(data: TensorDataset) -> None:
    for noise in ("discrete", Discrete(DimensionAdjusted(1.3), lattice=2.0**-8)):
        chosen = {"noise_multiplier": 1.3} if noise == "discrete" else {}
        run = start(data, noise=noise, clipping=PerLayer(total=1.0), **chosen)
        assert run.noise_multiplier == pytest.approx(1.3, rel=1e-12)
        for query in run.next_step().queries:
            assert isinstance(query, GaussianSum)
            if query.group.startswith("gradients"):
                assert query.clip_norm > 1 / math.sqrt(3)


def test_the_budget_is_solved_for_and_all_steps_fit(data: TensorDataset) -> None:
    for changes in ({}, {"accountant": "rdp"}, {"sampling": "fixed-size"}, {"lot_size": lambda step: 10 + step}):
        run = start(data, nn.Linear(4, 3), budget=BUDGET, steps=20, **changes)
        for x, y in run.batches():
            F.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        assert run.step == 20
        assert 2.8 < run.guarantee().epsilon <= 3.0


@pytest.mark.parametrize("adam", [False, True])
def test_fit_with_discrete_noise(data: TensorDataset, adam: bool) -> None:
    net = nn.Linear(4, 3)
    optimizer = AdamBC(net.parameters(), lr=0.02, floor=0.01) if adam else torch.optim.SGD(net.parameters(), lr=0.5)
    run = tacit.fit(
        net,
        data,
        optimizer=optimizer,
        lot_size=30,
        steps=60,
        clipping=Flat(1.0),
        noise="discrete",
        accountant="rdp",
        noise_multiplier=0.1,
    )
    assert run.step == 60
    x, y = data.tensors
    assert (net(x).argmax(dim=1) == y).float().mean() > 0.9
    text = run.statement(1e-5)
    assert "Arithmetic: the noise is discrete Gaussian, drawn exactly" in text
    assert "discrete Gaussian on a lattice of step 1.526e-05" in text


def test_a_resumed_run_goes_on_with_discrete_noise(data: TensorDataset, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first = start(data, budget=BUDGET, ledger=ledger, steps=6, metrics={"loss": Metric(bound=3.0)})
    loop(first, steps=3)
    first.save(tmp_path / "checkpoint")
    expected = first.next_step()
    first.close()
    first.ledger.close()
    again = start(data, budget=BUDGET, ledger=ledger, steps=6, metrics={"loss": Metric(bound=3.0)})
    again.load(tmp_path / "checkpoint")
    assert again.next_step() == expected
    loop(again)
    assert again.step == 6
    assert all(query.noise == "discrete" for step, _ in again.ledger.entries for query in step.queries)
    assert again.guarantee().epsilon <= 3.0


def test_a_lattice_coarser_than_the_noise_is_refused_before_anything_is_charged(data: TensorDataset) -> None:
    ledger = tacit.Ledger()
    with pytest.raises(ValueError, match="lattice step of 'gradients' is 64"):
        start(data, nn.Linear(4, 3), noise=Discrete(Explicit({"gradients": 9.0}), lattice=64.0), ledger=ledger)
    assert len(ledger) == 0
