"""What all apps share: the network, and the records of one hospital. Replace both by your own."""

import torch
from flwr.app import Context
from torch import nn

from tacit.data import load


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def records(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The part of the digits that this node holds; a real hospital would read its own file here."""
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    digits = load("digits")
    return digits.train[number::of].float() / 255, digits.train_labels[number::of]
