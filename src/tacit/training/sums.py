"""The clipped gradients of a lot as they are added up, and their release to the optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.gradients import Engine
from tacit.ledger import GaussianSum, Receipt
from tacit.mechanisms import Clipping
from tacit.randomness import Source
from tacit.training.pieces import local


class GradientSums:
    """One sum for each parameter, in memory that is kept from lot to lot.

    A batch is summed in float32 or better, and the sums of several batches are added in float64: rounding at every
    batch would otherwise grow with their number, and one record more shifts what is in each of them.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self._sums = {
            name: torch.zeros_like(local(parameter), dtype=torch.promote_types(parameter.dtype, torch.float32))
            for name, parameter in parameters.items()
        }
        self._gradients = {name: torch.empty_like(parameter) for name, parameter in parameters.items()}
        self._wide: dict[str, Tensor] = {}
        self._batches = 0
        self.source: Source | None = None
        """Where the noise comes from, if not from the run's own source."""

    def clear(self) -> None:
        """Begin a lot: the next batch takes the place of what the sums hold."""
        self._batches = 0

    def add(self, engine: Engine, clipping: Clipping) -> None:
        """Add the current batch, every record clipped."""
        if self._batches == 1:
            for name, total in self._sums.items():
                if name not in self._wide:
                    self._wide[name] = torch.empty_like(total, dtype=torch.float64)
                self._wide[name].copy_(total)
        self._fill(engine, clipping)
        self._batches += 1
        if self._batches > 1:
            for name, total in self._sums.items():
                self._wide[name] += total

    def _fill(self, engine: Engine, clipping: Clipping) -> None:
        engine.clipped_sum(clipping, out=self._sums, overwrite=True)

    def release(self, receipt: Receipt, clipping: Clipping, source: Source, *, lot_size: float) -> None:
        """Add the recorded noise and give each parameter its mean gradient; ``lot_size`` is the expected one."""
        if not self._batches:
            raise RuntimeError("no batch was added to the sums of this lot; there is nothing to release.")
        if self._batches > 1:
            for name, total in self._sums.items():
                total.copy_(self._wide[name])
        self._add_noise_(receipt, clipping, source)
        for name, parameter in self._parameters.items():
            # Memory that is kept: after zero_grad() a new gradient would be new pages at every step.
            gradient = local(self._gradients[name])
            if gradient.dtype == self._sums[name].dtype:
                torch.div(self._sums[name], lot_size, out=gradient)
            else:
                gradient.copy_(self._sums[name].div_(lot_size))
            parameter.grad = self._gradients[name]

    def _add_noise_(self, receipt: Receipt, clipping: Clipping, source: Source) -> None:
        clipping.release_(receipt, self._sums, source)

    def noise(self, receipt: Receipt, clipping: Clipping, *, lot_size: float) -> dict[Tensor, float]:
        """The standard deviation of the noise on each parameter's mean gradient: public."""
        stds = {query.group: query.noise_std for query in receipt.step.queries if isinstance(query, GaussianSum)}
        return {
            self._parameters[name]: vector.scale * stds[group.name] / lot_size
            for group in clipping.groups
            for vector in group.vectors
            for name in vector.names
        }
