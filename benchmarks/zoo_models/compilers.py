"""Models that use checkpoints, `torch.compile`, `torch.jit`, `torch.export` and `torch.func`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo_models.cases import Case
from zoo_models.plain import classify, mlp, rows
from zoo_models.special import special


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 16), mlp(16, 16), nn.Linear(16, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


special("checkpoint")(lambda: Case(Checkpointed(False), rows, classify))
special("checkpoint-reentrant")(lambda: Case(Checkpointed(True), rows, classify))


@special("compiled")
def compiled() -> Case:
    """`torch.compile` before the engine is attached."""
    return Case(torch.compile(mlp(), backend="aot_eager"), rows, classify)


@special("compiled-part")
def compiled_part() -> Case:
    model = nn.Sequential(nn.Linear(8, 8), mlp())
    model[1].compile(backend="aot_eager")
    return Case(model, rows, classify)


@special("traced")
def traced() -> Case:
    return Case(torch.jit.trace(mlp(), torch.randn(2, 8)), rows, classify)


@special("traced-part")
def traced_part() -> Case:
    return Case(nn.Sequential(torch.jit.trace(mlp(8, 8), torch.randn(2, 8)), nn.Linear(8, 3)), rows, classify)


@special("scripted")
def scripted() -> Case:
    return Case(torch.jit.script(mlp()), rows, classify)


@special("exported")
def exported() -> Case:
    size = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(mlp(), (torch.randn(4, 8),), dynamic_shapes=({0: size},))

    class Exported(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = program.module()

        def forward(self, x: Tensor) -> Tensor:
            return self.graph(x)

        def train(self, mode: bool = True) -> Exported:
            self.training = mode  # an exported program has no other mode
            return self

    return Case(Exported(), rows, classify)


@special("functional-call")
def functional_call() -> Case:
    """A hypernetwork: the weights of the second network come from the first, one set for each example."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hyper, self.last = nn.Linear(8, 8 * 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.hyper(x).view(-1, 6, 8)
            return self.last(torch.bmm(weight, x[:, :, None]).squeeze(2).relu())

    return Case(Model(), rows, classify)


@special("vmap-ensemble")
def ensemble() -> Case:
    """An ensemble with stacked weights, run by `torch.func.vmap` over its members."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 8) * 0.3), nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(F.linear, in_dims=(None, 0, 0))(x, self.weight, self.bias).mean(0)

    return Case(Model(), rows, classify)
