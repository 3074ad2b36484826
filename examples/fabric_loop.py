"""A Lightning Fabric loop made private: the two lines of `make_private`, and Fabric's own backward.

Run it with ``python examples/fabric_loop.py``. Fabric wraps model and optimizer; `make_private` takes either the plain
ones or the wrapped ones, before or after ``fabric.setup``. The data loader is the run's own, for it draws the lots:
``fabric.setup_dataloaders`` is not used. One process only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit


def clusters(count: int) -> tuple[Tensor, Tensor]:
    """Points around three centres."""
    y = torch.arange(count) % 3
    return 2 * torch.eye(8)[y] + 0.7 * torch.randn(count, 8), y


def main(records: int = 3000, epochs: float = 5) -> float:
    """Train, print the guarantee, and return the accuracy on points of their own."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = fabric.setup(model, optimizer)

    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(*clusters(records)),
        lot_size=200,
        epochs=epochs,
        clipping=tacit.Flat(1.0),
        budget=tacit.Budget(epsilon=2.0, delta=1e-5),
    )
    for x, y in run.batches():
        fabric.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()

    print(run.guarantee())
    run.close()
    x, y = clusters(1000)
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).float().mean())


if __name__ == "__main__":
    print(f"accuracy {main():.3f}")
