"""A record may be a microbatch: its average gradient is clipped, and the guarantee is about microbatches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tacit
from tacit.training import PrivateRun


def make(
    n: int, **settings: object
) -> tuple[nn.Module, torch.optim.Optimizer, torch.utils.data.TensorDataset, PrivateRun]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = torch.utils.data.TensorDataset(torch.randn(n, 5), torch.randint(3, (n,)))
    given = {"lot_size": n // 4, "steps": 1, "clipping": tacit.Flat(0.3), "noise_multiplier": 1e-6, **settings}
    run = tacit.make_private(model, optimizer, data, microbatch_size=4, **given)  # type: ignore[arg-type]
    return model, optimizer, data, run


@pytest.mark.parametrize("batch_size", [None, 4, 10])
def test_the_average_of_each_microbatch_is_clipped(batch_size: int | None) -> None:
    model, optimizer, data, run = make(22, batch_size=batch_size)
    run.close()
    parameters = list(model.parameters())
    expected = [torch.zeros_like(p) for p in parameters]
    x, y = data.tensors
    for start in range(0, 20, 4):  # the last two examples do not fill a microbatch
        loss = F.cross_entropy(model(x[start : start + 4]), y[start : start + 4])
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for total, gradient in zip(expected, gradients, strict=True):
            total += gradient * min(1.0, 0.3 / float(norm)) / 5
    before = [p.detach().clone() for p in parameters]
    model, optimizer, data, run = make(22, batch_size=batch_size)
    parameters = list(model.parameters())
    for bx, by in run.batches():
        F.cross_entropy(model(bx), by).backward()
        optimizer.step()
    for p, old, gradient in zip(parameters, before, expected, strict=True):
        torch.testing.assert_close(old - p.detach(), gradient, atol=1e-5, rtol=1e-4)


def test_the_unit_is_the_microbatch() -> None:
    _, _, _, run = make(40, noise_multiplier=1.0)
    assert run.ledger.header.unit == "microbatch"
    assert run.sampler.records == 10
    assert "microbatch-level" in str(run.guarantee(1e-5))


@pytest.mark.parametrize(
    ("size", "words"), [(0, "microbatch_size is 0"), (99, "only 8 examples"), (1.5, "whole number")]
)
def test_impossible_sizes_are_refused(size: object, words: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=words):
        tacit.make_private(
            model,
            optimizer,
            torch.randn(8, 2),
            lot_size=1,
            steps=1,
            clipping=tacit.Flat(1.0),
            noise_multiplier=1.0,
            microbatch_size=size,  # type: ignore[arg-type]
        )
