"""Train a small classifier with Accelerate, privately."""

import accelerate
import torch
import torch.nn.functional as F
from torch import nn

import tacit


def main(directory, epochs=3):
    torch.manual_seed(0)
    y = torch.arange(1200) % 3
    x = 2 * torch.eye(8)[y] + 0.7 * torch.randn(1200, 8)
    people = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(people, batch_size=120, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    budget = tacit.Budget(3.0, 1e-5)
    run = tacit.make_private(model, optimizer, loader, lot_size=120, epochs=epochs, clipping=1.0, budget=budget)
    for epoch in run.epochs():
        for features, labels in epoch:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(features), labels))
            optimizer.step()
    run.close()
    return float((model(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    print(main("runs/accelerate"))
