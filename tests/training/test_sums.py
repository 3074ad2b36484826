"""Sums of a lot: their types, and how long they live."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.training.sums import GradientSums


class Engine:
    """Hands out the same sum for every batch."""

    def __init__(self, total: Tensor) -> None:
        self.total, self.given = total, []  # type: ignore[var-annotated]

    def clipped_sum(self, clipping: Any, *, out: dict[str, Tensor], overwrite: bool) -> None:
        assert overwrite
        self.given.append(out["w"].dtype)
        out["w"].copy_(self.total)

    def clipped_sums(self, clipping: Any) -> Any:
        yield "w", self.total


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sums_are_never_in_less_than_float32_and_several_batches_in_float64(dtype: torch.dtype) -> None:
    engine = Engine(torch.tensor([2.0**24, 1.0], dtype=torch.promote_types(dtype, torch.float32)))
    sums = GradientSums({"w": torch.zeros(2, dtype=dtype)})
    sums.add(engine, None)  # type: ignore[arg-type]
    assert engine.given == [torch.promote_types(dtype, torch.float32)]
    engine.total = torch.ones(2, dtype=engine.total.dtype)
    sums.add(engine, None)  # type: ignore[arg-type]
    assert sums._sums["w"].dtype == torch.float64
    assert sums._sums["w"].tolist() == [2.0**24 + 1, 2.0]  # which float32 does not hold


def test_no_sum_outlives_its_lot() -> None:
    """Neither after a step nor where a lot was left half-way: until then they have no noise."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(40, 3))
    run = tacit.make_private(
        model, optimizer, data, lot_size=20, batch_size=5, steps=3, clipping=tacit.Flat(1.0), noise_multiplier=1.0
    )
    for (x,) in run.lot():
        model(x).sum().backward()
        optimizer.step()
    assert not run._sums._sums
    gradients = [parameter.grad for parameter in model.parameters()]
    lot = run.lot()
    (x,) = next(lot)
    model(x).sum().backward()
    optimizer.step()
    assert run._sums._sums
    assert all(parameter.grad is before for parameter, before in zip(model.parameters(), gradients))
    lot.close()  # type: ignore[attr-defined]
    assert not run._sums._sums
    run.close()
