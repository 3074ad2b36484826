"""Train a small classifier with Accelerate."""

import accelerate
import torch
import torch.nn.functional as F
from torch import nn


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
    for _ in range(epochs):
        for features, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(features), labels))
            optimizer.step()
    return float((model(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    print(main("runs/accelerate"))
