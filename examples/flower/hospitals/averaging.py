"""The server is trusted to add the noise, and protects each hospital as a whole: user-level private averaging.

Three hospitals are too few to hide in: ε is what it is. Phones come in millions.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import Context
from torch import nn

import tacit
from hospitals.task import network, records
from tacit.flower import Averaging, averaging_app, update_app


def train(model: nn.Module, context: Context) -> None:
    """One epoch; what it changes is clipped and sent, and nothing else is."""
    inputs, labels = records(context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows in torch.randperm(len(inputs)).split(32):
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(inputs[rows]), labels[rows]))
        optimizer.step()


def rounds(context: Context) -> Averaging:
    config = context.run_config
    participants = int(config["participants"])
    return Averaging(
        network=network,
        folder=Path(str(config["folder"])),
        population=participants,
        lot_size=participants,
        clip_norm=1.0,
        rounds=int(config["epochs"]),
        budget=tacit.Budget(float(config["epsilon"]), 1e-5),
        least=participants,
    )


client = update_app(network, train)
server = averaging_app(rounds)
