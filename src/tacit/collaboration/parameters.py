"""The parameters of a model as one vector."""

from __future__ import annotations

import torch
from torch import nn

from tacit.collaboration.messages import Vector


class FlatParameters:
    """The trainable parameters of ``model``, in the order of ``named_parameters``, in one piece of memory.

    The parameters of the model become views of ``vector``: what is written to the one is read from the other, and
    nothing is ever copied. Buffers, such as running statistics, are no parameters and stay with their model.
    """

    def __init__(self, model: nn.Module) -> None:
        held = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not held:
            raise ValueError(f"the model ({type(model).__name__}) has no trainable parameters to share.")
        for name, parameter in held:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise ValueError(
                    f"parameter {name} is {parameter.dtype} on {parameter.device}; shared ones are float32 on the cpu."
                )
        flat = torch.cat([parameter.detach().reshape(-1) for _, parameter in held])
        start = 0
        for _, parameter in held:
            parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self.layout = tuple((name, tuple(parameter.shape)) for name, parameter in held)
        self.vector: Vector = flat.numpy()
