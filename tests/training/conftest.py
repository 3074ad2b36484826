"""What the tests of the run share: small problems, a plain loop, and noise that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.mechanisms import lattice
from tacit.training import PrivateRun, drawing


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def data() -> TensorDataset:
    """Sixty examples of three classes that a line can tell apart."""
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(60) % 3
    centres = 2 * torch.eye(4)[:3]
    return TensorDataset(centres[y] + 0.5 * torch.randn(60, 4, generator=generator), y)


@dataclass
class Noise:
    """The noise of each release, in order: what it was added to, its standard deviation, and the values."""

    added: list[tuple[Tensor, float, Tensor]] = field(default_factory=list)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(3))
    scale: float = 1.0

    def __call__(self, sums: Any, source: Any) -> None:
        for total, std in sums:
            values = self.scale * std * torch.randn(total.shape, generator=self.generator, dtype=total.dtype)
            self.added.append((total.clone(), std, values))
            total.add_(values)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Noise:
    """All noise is drawn from a generator that the test can read, and lots keep the order of the data set."""
    monkeypatch.setattr(drawing, "random_order", lambda records, source: np.arange(records))
    known = Noise()
    monkeypatch.setattr(lattice, "add_gaussian_", known)
    return known


@pytest.fixture
def silence(noise: Noise) -> Noise:
    """No noise at all; what would have been added is still listed."""
    noise.scale = 0.0
    return noise


@pytest.fixture
def make(data: TensorDataset) -> Callable[..., tuple[nn.Module, torch.optim.Optimizer, PrivateRun]]:
    """A run with small settings, any of which can be changed."""

    def build(
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        dataset: Any = None,
        **settings: Any,
    ) -> tuple[nn.Module, torch.optim.Optimizer, PrivateRun]:
        model = nn.Linear(4, 3) if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
        chosen = {"lot_size": 12, "clipping": tacit.Flat(1.0), **settings}
        if "steps" not in chosen and "epochs" not in chosen:
            chosen["steps"] = 4
        if not {"budget", "noise_multiplier", "noise"} & set(chosen):
            chosen["noise_multiplier"] = 1.0
        run = tacit.make_private(model, optimizer, data if dataset is None else dataset, **chosen)
        return model, optimizer, run

    return build


@pytest.fixture
def train() -> Callable[..., int]:
    """The loop of the design: returns the number of batches seen, without those of the trial."""

    def loop(run: PrivateRun, objective: Callable[..., Tensor] | None = None) -> int:
        count = 0
        for batch in run.batches():
            parts = batch if isinstance(batch, tuple | list) else (batch,)
            loss = F.cross_entropy(run.model(parts[0]), parts[1]) if objective is None else objective(*parts)
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            count += not run.in_trial
        return count

    return loop


@pytest.fixture
def lots() -> Callable[[PrivateRun], list[Any]]:
    """A list that fills with the lots as they are drawn."""

    def watch(run: PrivateRun) -> list[Any]:
        seen: list[Any] = []
        draw = run.sampler.draw

        def spy(receipt: Any) -> Any:
            seen.append(draw(receipt))
            return seen[-1]

        run.sampler.draw = spy  # type: ignore[method-assign]
        return seen

    return watch


@pytest.fixture
def each() -> Callable[..., list[dict[str, Tensor]]]:
    """Gradients one example at a time, the slow and obvious way."""

    def gradients(
        model: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    ) -> list[dict[str, Tensor]]:
        found = []
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for i in range(len(x)):
            copies = {name: p.detach().clone().requires_grad_() for name, p in named.items()}
            out = torch.func.functional_call(model, copies, (x[i : i + 1],))
            grads = torch.autograd.grad(loss(out, y[i : i + 1]), list(copies.values()), allow_unused=True)
            found.append(
                {
                    name: torch.zeros_like(p) if g is None else g
                    for (name, p), g in zip(copies.items(), grads, strict=True)
                }
            )
        return found

    return gradients
