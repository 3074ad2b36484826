"""Train a small classifier with the Lightning Trainer, privately."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn

import tacit
from tacit.integrations.lightning import PrivateStrategy


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

    def training_step(self, batch, number):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def main(directory, epochs=3):
    torch.manual_seed(0)
    y = torch.arange(1200) % 3
    x = 2 * torch.eye(8)[y] + 0.7 * torch.randn(1200, 8)
    people = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(people, batch_size=120, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        strategy=PrivateStrategy(budget=tacit.Budget(3.0, 1e-5), clipping=1.0),
        accelerator="cpu",
        default_root_dir=directory,
        enable_progress_bar=False,
    )
    model = Classifier()
    trainer.fit(model, loader)
    return float((model.net(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    print(main("runs/lightning"))
