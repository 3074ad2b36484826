"""What is done to a batch between `run.batches()` and the model: followed as in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import tacit
import tacit.gradients

Change = Callable[[nn.Module, Tensor, Tensor], Tensor]


def _loop(change: Change, lot_size: int = 16) -> None:
    """A private loop in which `change` gives the changed images, or the loss itself."""
    data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 5, (64,)))
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = tacit.make_private(
        model, optimizer, data, lot_size=lot_size, steps=3, clipping=tacit.Flat(1.0), noise_multiplier=1.0
    )
    for x, y in run.batches():
        found = change(model, x, y)
        loss = found if found.ndim == 0 else F.cross_entropy(model(found), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 3
    run.close()


def _per_record_crops(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    wide = F.pad(x, (1, 1, 1, 1))
    starts = torch.randint(0, 3, (len(x),)).tolist()
    crops = [wide[i, :, s : s + 8, s : s + 8] for i, s in enumerate(starts)]
    return torch.stack(crops) if crops else x


def _in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    for i in range(len(x)):
        x[i] = x[i].flip(2) - x[i].mean()
    chosen = torch.rand(len(x)) < 0.5
    x[chosen] = x[chosen].flip(3)
    return x


def _rotated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    turns = torch.eye(2, 3).repeat(len(x), 1, 1) + 0.1 * torch.randn(len(x), 2, 3)
    grid = F.affine_grid(turns, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False) if len(x) else x


def _looked_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Everything that people print and log."""
    y.tolist(), y.numpy(), x.numpy().shape, float(x.sum()), {int(v) for v in y}, y.unique(), torch.bincount(y), len(x)
    assert isinstance(x, Tensor)
    assert repr(y)
    with torch.no_grad():
        (model(x).argmax(1) == y).float().sum().item()
    return x


GOOD: dict[str, Change] = {
    "unchanged": lambda m, x, y: x,
    "scaled by constants": lambda m, x, y: (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.ones(3, 1, 1),
    "each by its own mean": lambda m, x, y: (x - x.mean((1, 2, 3), keepdim=True)) / (1 + x.std((2, 3), keepdim=True)),
    "flipped": lambda m, x, y: torch.where((torch.rand(len(x)) < 0.5)[:, None, None, None], x.flip(3), x),
    "cropped": lambda m, x, y: F.pad(x, (2, 2, 2, 2))[:, :, 1:9, 2:10],
    "cropped one by one": _per_record_crops,
    "changed in place": _in_place,
    "rotated": _rotated,
    "one by one": lambda m, x, y: torch.stack([row.flip(2) for row in x]) if len(x) else x,
    "noisy": lambda m, x, y: x + 0.1 * torch.randn_like(x),
    "by way of numpy": lambda m, x, y: torch.from_numpy(x.numpy()[:, :, :, ::-1].copy()),
    "in another order": lambda m, x, y: (lambda k: F.cross_entropy(m(x[k]), y[k]))(torch.randperm(len(x))),
    "labels as numbers": lambda m, x, y: F.binary_cross_entropy_with_logits(m(x)[:, 0], (y == 2).float()),
    "weighted by class": lambda m, x, y: (F.cross_entropy(m(x), y, reduction="none") * torch.ones(5)[y]).mean(),
    "looked at": _looked_at,
}


@pytest.mark.parametrize("change", GOOD)
def test_ordinary_loops_run(change: str) -> None:
    _loop(GOOD[change])


@pytest.mark.parametrize("change", ["unchanged", "cropped one by one", "one by one", "changed in place"])
def test_lots_of_one_record_and_empty_lots_run(change: str) -> None:
    for _ in range(4):
        _loop(GOOD[change], lot_size=1)


BAD: dict[str, Change] = {
    "the batch's mean": lambda m, x, y: x - x.mean(0),
    "the batch's scale": lambda m, x, y: x / x.std(),
    "mixup": lambda m, x, y: 0.7 * x + 0.3 * x[torch.randperm(len(x))],
    "a neighbour": lambda m, x, y: x + x.roll(1, 0),
    "the first example": lambda m, x, y: x - x[0],
    "each other": lambda m, x, y: torch.stack([row + x[0] for row in x]),
    "another example's place": lambda m, x, y: torch.stack([x[0]] * len(x)) + x,
    "class counts": lambda m, x, y: (
        F.cross_entropy(m(x), y, reduction="none") / torch.bincount(y, minlength=5)[y]
    ).mean(),
    "one loss": lambda m, x, y: F.cross_entropy(m(x), y, reduction="none")[3],
}


@pytest.mark.parametrize("change", BAD)
def test_mixing_before_the_model_is_refused(change: str) -> None:
    with pytest.raises(ValueError, match="no per-example gradients"):
        _loop(BAD[change], lot_size=32)


def test_batches_of_other_shapes_are_followed_too() -> None:
    """Dictionaries, and tensors that have no row for each example."""

    def collate(rows: list[Any]) -> dict[str, Any]:
        x, y = torch.utils.data.default_collate(rows)
        return {"x": x, "y": y, "scale": torch.ones(3), "name": "batch"}

    data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = tacit.make_private(
        model, optimizer, data, lot_size=20, steps=2, clipping=tacit.Flat(1.0), noise_multiplier=1.0, collate_fn=collate
    )
    batches = run.batches()
    batch = next(batches)
    assert batch["name"] == "batch"
    assert type(batch["scale"]) is Tensor
    with pytest.raises(ValueError, match="no per-example gradients"):
        F.cross_entropy(model(batch["x"] - batch["x"].mean(0)), batch["y"]).backward()
    batches.close()
    run.close()


def test_copies_of_a_batch_belong_to_the_same_records() -> None:
    """Two augmented copies in one batch: each record's gradient is that of both, clipped once."""
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    model = nn.Linear(4, 3)
    with tacit.gradients.record(model) as tape:
        rows, labels = tape.trace((x, y), 12)
        F.cross_entropy(model(torch.cat([rows, -rows])), torch.cat([labels, labels])).backward()
    for i in range(12):
        both = F.cross_entropy(model(torch.stack([x[i], -x[i]])), y[[i, i]])
        grads = torch.autograd.grad(both, list(model.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        assert float(tape.norms()[i]) == pytest.approx(float(norm), rel=1e-5)
