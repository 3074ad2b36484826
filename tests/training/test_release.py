"""What is released: the same for every batch size, clipped as the naive way, with the noise the ledger says."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import GaussianSum
from tacit.mechanisms import DimensionAdjusted, DimensionWeighted, Explicit, Microbatches
from tacit.training import PrivateBatchNorm

FAILURE = 1e-9


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
def test_the_batch_size_changes_neither_result_nor_ledger(
    make: Any, monkeypatch: pytest.MonkeyPatch, sampling: str
) -> None:
    # The name of a partition is random; here it must be the same in every run to compare ledgers.
    monkeypatch.setattr("tacit.sampling.epochs.secrets.token_hex", lambda size: "0" * 16)
    found = []
    for size in (1, 5, 7, 60, None):
        torch.manual_seed(2)
        model = nn.Sequential(PrivateBatchNorm(4), *mlp())
        model, optimizer, run = make(
            model,
            batch_size=size,
            seed=11,
            steps=6,
            sampling=sampling,
            clipping=tacit.Adaptive(initial=0.5),
            metrics={"loss": tacit.Metric(bound=3.0)},
        )
        most = 0
        for x, y in run.batches():
            most = max(most, len(x))
            out = model(x)
            F.cross_entropy(out, y).backward()
            run.observe(loss=F.cross_entropy(out, y, reduction="none"))
            optimizer.step()
            optimizer.zero_grad()
        assert size is None or most <= size
        found.append((model.state_dict(), run.ledger.digest, run.metrics["loss"], run.clipping_state()))
    first = found[0]
    for state, digest, loss, norm in found[1:]:
        assert digest == first[1]
        assert (loss, norm) == (pytest.approx(first[2], abs=1e-6), first[3])
        for name, value in state.items():
            torch.testing.assert_close(value, first[0][name], atol=1e-6, rtol=1e-5)


def test_the_reduction_of_the_loss_changes_nothing(make: Any, train: Any) -> None:
    found = []
    for reduce in (torch.mean, torch.sum):
        torch.manual_seed(2)
        model, _, run = make(mlp(), seed=4, batch_size=5)
        train(run, lambda x, y, r=reduce, m=model: r(F.cross_entropy(m(x), y, reduction="none")))
        found.append(model[0].weight.detach().clone())
    torch.testing.assert_close(*found)


STRATEGIES: dict[str, tuple[Any, Any]] = {
    "flat": (tacit.Flat(0.3), lambda n: {k: min(1, 0.3 / norm(n)) for k in n}),
    "per layer": (
        tacit.PerLayer(total=0.3),
        lambda n: {k: min(1, 0.3 / math.sqrt(2) / norm({j: n[j] for j in n if j[0] == k[0]})) for k in n},
    ),
    "dimension weighted": (
        DimensionWeighted(0.3),
        lambda n: {
            k: min(1, 0.3 * math.sqrt((25 if k[0] == "0" else 18) / 43) / norm({j: n[j] for j in n if j[0] == k[0]}))
            for k in n
        },
    ),
    "groups": (
        tacit.Groups({"0.*": 0.1, "2.*": 0.4}),
        lambda n: {k: min(1, (0.1 if k[0] == "0" else 0.4) / norm({j: n[j] for j in n if j[0] == k[0]})) for k in n},
    ),
    "joint": (
        tacit.Joint({"0.*": 0.5, "2.*": 2.0}, 0.3),
        lambda n: {k: min(1, 0.3 / norm({j: n[j] / (0.5 if j[0] == "0" else 2.0) for j in n})) for k in n},
    ),
    "automatic": (tacit.Automatic(0.05), lambda n: {k: 1 / (norm(n) + 0.05) for k in n}),
    "adaptive": (tacit.Adaptive(initial=0.3), lambda n: {k: min(1, 0.3 / norm(n)) for k in n}),
    "microbatches": (Microbatches(tacit.Flat(0.3)), lambda n: {k: min(1, 0.3 / norm(n)) for k in n}),
}


def norm(norms: dict[str, float]) -> float:
    return math.hypot(*norms.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_equals_the_naive_way(
    make: Any, train: Any, each: Any, lots: Any, silence: Any, data: TensorDataset, name: str
) -> None:
    strategy, weights = STRATEGIES[name]
    model = mlp()
    x, y = data.tensors
    wanted = {key: torch.zeros_like(p) for key, p in model.named_parameters()}
    gradients = each(model, x, y)
    _, _, run = make(model, clipping=strategy, steps=1, batch_size=4, lot_size=20)
    drawn = lots(run)
    train(run)
    clipped = 0
    for i in drawn[0]:
        factors = weights({key: float(g.norm()) for key, g in gradients[i].items()})
        clipped += any(factor < 1 for factor in factors.values())
        for key, g in gradients[i].items():
            wanted[key] += factors[key] * g
    assert clipped
    bound = strategy.bind(run.engine.shapes, lot_size=20)
    names = [key for group in bound.groups for vector in group.vectors for key in vector.names]
    for key, (total, _, _) in zip(names, silence.added, strict=False):
        torch.testing.assert_close(total, wanted[key], atol=1e-5, rtol=1e-4)
    assert len(silence.added) >= 4


@pytest.mark.parametrize(
    ("strategy", "allocation"),
    [
        (tacit.Flat(0.5), "proportional"),
        (tacit.PerLayer(each=0.5), "dimension-adjusted"),
        (tacit.Joint({"0.*": 0.5, "2.*": 2.0}, 0.5), "proportional"),
        (tacit.Groups({"0.*": 0.2, "2.*": 1.0}), Explicit({"gradients/0.*": 0.7, "gradients/2.*": 0.2})),
    ],
    ids=["flat", "per layer", "joint", "explicit"],
)
def test_the_noise_of_released_sums_is_the_recorded_one(make: Any, strategy: Any, allocation: Any) -> None:
    """Mean and variance of what reaches the optimizer, against the ledger, with a chance of failure of 1e-9 in all."""
    model = nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 3))
    settings = {"noise": allocation, **({"noise_multiplier": 1.5} if isinstance(allocation, str) else {})}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    _, _, run = make(model, optimizer, clipping=strategy, steps=30, **settings)
    seen: dict[str, list[np.ndarray]] = {}
    for x, _y in run.batches():
        (0 * model(x)).sum().backward()
        optimizer.step()
        if run.step > sum(map(len, seen.values())) // 4:
            for key, p in model.named_parameters():
                seen.setdefault(key, []).append(p.grad.numpy().ravel() * 12.0)
    step = run.ledger.entries[0][0]
    stds = {query.group: query.noise_std for query in step.queries}
    tests = 2 * len(seen)
    for group in strategy.bind(run.engine.shapes).groups:
        for vector in group.vectors:
            for key in vector.names:
                values = np.concatenate(seen[key]) / (vector.scale * stds[group.name])
                n = values.size
                assert abs(values.mean()) * math.sqrt(n) < stats.norm.isf(FAILURE / tests / 2)
                low, high = stats.chi2.ppf([FAILURE / tests / 2, 1 - FAILURE / tests / 2], n)
                assert low < (values**2).sum() < high
    for values in seen.values():  # no two steps get the same noise, and no two parameters
        assert all(not np.array_equal(a, b) for a, b in pairwise(values))


def test_the_ledger_lists_the_noise_that_was_added(make: Any, noise: Any) -> None:
    model = nn.Sequential(PrivateBatchNorm(4), *mlp())
    model, optimizer, run = make(
        model,
        steps=3,
        clipping=tacit.Adaptive(initial=0.5),
        noise_multiplier=0.9,
        metrics={"loss": tacit.Metric(bound=2.0), "hit": tacit.Metric(bound=1.0, noise_multiplier=4.0)},
    )
    for x, y in run.batches():
        out = model(x)
        F.cross_entropy(out, y).backward()
        run.observe(loss=F.cross_entropy(out, y, reduction="none"), hit=(out.argmax(1) == y).float())
        optimizer.step()
        optimizer.zero_grad()
    recorded = [query.noise_std for step, count in run.ledger.entries for _ in range(count) for query in step.queries]
    applied = [std for _, std, _ in noise.added]
    tensors = len(list(model.parameters()))
    assert len(run.ledger) == 3
    per_step = len(applied) // 3
    for index in range(3):
        stds = set(applied[per_step * index : per_step * (index + 1)])
        assert stds == set(recorded[5 * index : 5 * index + 5])
    assert per_step == tensors + 4  # the count, the statistics and two metrics


@pytest.mark.parametrize("allocation", ["proportional", "dimension-adjusted"])
@pytest.mark.parametrize("users", [False, True])
@pytest.mark.parametrize(
    "strategy",
    [
        tacit.Flat(2.0),
        tacit.PerLayer(each=1.0),
        tacit.Adaptive(count_noise_std=9.0),
        tacit.Groups({"0.*": 1.0, "[1-9].*": 3.0}),
    ],
    ids=["flat", "per layer", "adaptive", "groups"],
)
def test_the_composed_noise_multiplier_is_the_one_asked_for(
    make: Any, allocation: str, users: bool, strategy: Any
) -> None:
    model = nn.Sequential(PrivateBatchNorm(4), *mlp())
    owners = {"users": [i // 4 for i in range(60)], "examples_per_user": 3} if users else {}
    _, _, run = make(
        model,
        lot_size=6,
        clipping=strategy,
        noise=allocation,
        noise_multiplier=1.7,
        metrics={"a": tacit.Metric(bound=1.0), "b": tacit.Metric(bound=9.0, noise_multiplier=8.0)},
        **owners,
    )
    assert run.noise_multiplier == pytest.approx(1.7, rel=1e-9)
    run.lot().__next__()
    step = run.ledger.entries[0][0]
    assert step.noise_multiplier == pytest.approx(1.7, rel=1e-9)
    z = sum((q.clip_norm / q.noise_std) ** 2 for q in step.queries if isinstance(q, GaussianSum)) ** -0.5
    assert z == pytest.approx(1.7, rel=1e-9)


def test_dimension_adjusted_noise_is_equal_per_coordinate(make: Any) -> None:
    _, _, run = make(mlp(), clipping=tacit.PerLayer(each=1.0), noise="dimension-adjusted", noise_multiplier=1.0)
    next(run.lot())
    stds = {query.group: query.noise_std for query in run.ledger.entries[0][0].queries}
    assert stds["gradients/0"] / stds["gradients/2"] == pytest.approx(math.sqrt(18 / 25))
    assert DimensionAdjusted(1.0).noise_multiplier == 1.0


@pytest.mark.parametrize("rate", [1, 2, 5])
def test_an_empty_lot_is_a_lot(make: Any, noise: Any, rate: int) -> None:
    """Noise is released, a step is taken and charged, and every layer bears a batch with nobody in it."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv, self.out = PrivateBatchNorm(1), nn.Conv2d(1, 2, 2), nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.conv(self.norm(x.view(-1, 1, 2, 2))))
            return self.out(h.view(h.size(0), -1))

    model, optimizer, run = make(
        Viewed(),
        lot_size=rate,
        steps=40,
        metrics={"loss": tacit.Metric(bound=1.0)},
        clipping=tacit.Adaptive(count_noise_std=5.0),
    )
    empty = 0
    for x, y in run.batches():
        before = model.out.weight.detach().clone()
        out = model(x)
        F.cross_entropy(out, y).backward()
        run.observe(loss=F.cross_entropy(out, y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
        if not len(x):
            empty += 1
            assert not torch.equal(model.out.weight, before)
    assert run.step == len(run.ledger) == 40
    assert empty or rate > 1  # with 2 none of 40 lots is empty one time in 300
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_batches_of_a_lot_are_added_in_float64(silence: Any) -> None:
    """One record of 2^24 and many ones, each too small to be seen beside it in float32."""
    x = torch.ones(201, 1)
    x[0] = 2.0**24
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    run = tacit.make_private(
        model, optimizer, x, lot_size=201, batch_size=1, steps=1, noise_multiplier=1.0, clipping=tacit.Flat(1e9)
    )
    before = model.weight.detach().clone()
    for rows in run.batches():
        model(rows).sum().backward()
        optimizer.step()
        if run.step:
            assert model.weight.grad is not None
            assert float(model.weight.grad) * 201 == pytest.approx(2.0**24 + 200, rel=1e-7)
        optimizer.zero_grad()
    assert run.step == 1 and not torch.equal(model.weight, before)
