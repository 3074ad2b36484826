"""The clipped gradients of a lot as they are added up, and their release to the optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.gradients import Engine
from tacit.gradients.precision import released_in
from tacit.ledger import GaussianSum, Receipt
from tacit.mechanisms import Clipping
from tacit.randomness import Source
from tacit.training.pieces import local


class GradientSums:
    """One sum for each parameter, in memory that is kept from lot to lot.

    A batch is summed in float32 or better and the sums of several batches are added in float64, so that rounding does
    not grow with the lot (docs/finite-precision.md). The sum over a very large lot, by its expected size, is also
    released in float64.
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
            self._widen()
        engine.clipped_sum(clipping, out=self._sums, overwrite=True)
        self._batches += 1
        if self._batches > 1:
            for name, total in self._sums.items():
                self._wide[name] += total

    def release(self, receipt: Receipt, clipping: Clipping, source: Source, *, lot_size: float) -> None:
        """Add the recorded noise and give each parameter its mean gradient; ``lot_size`` is the expected one."""
        if not self._batches:
            raise RuntimeError("no batch was added to the sums of this lot; there is nothing to release.")
        sums = {name: self._in(released_in(total.dtype, lot_size), name) for name, total in self._sums.items()}
        self._add_noise_(sums, receipt, clipping, source)
        for name, parameter in self._parameters.items():
            # Memory that is kept: after zero_grad() a new gradient would be new pages at every step.
            gradient = local(self._gradients[name])
            if gradient.dtype == sums[name].dtype:
                torch.div(sums[name], lot_size, out=gradient)
            else:
                gradient.copy_(sums[name].div_(lot_size))
            parameter.grad = self._gradients[name]

    def _add_noise_(self, sums: Mapping[str, Tensor], receipt: Receipt, clipping: Clipping, source: Source) -> None:
        clipping.release_(receipt, sums, source)

    @property
    def _is_wide(self) -> bool:
        """Whether the sums of this lot are held in float64: those of one batch are not."""
        return self._batches > 1

    def _widen(self) -> None:
        """Go on in float64 from what the sums hold."""
        for name, total in self._sums.items():
            if name not in self._wide:
                self._wide[name] = torch.empty_like(total, dtype=torch.float64)
            self._wide[name].copy_(total)

    def _in(self, dtype: torch.dtype, name: str) -> Tensor:
        """The finished sum of a parameter in the type it is released in, which is public."""
        total = self._sums[name]
        if dtype != total.dtype:
            return self._wide[name] if self._is_wide else total.to(dtype)
        return total.copy_(self._wide[name]) if self._is_wide else total

    def noise(self, receipt: Receipt, clipping: Clipping, *, lot_size: float) -> dict[Tensor, float]:
        """The standard deviation of the noise on each parameter's mean gradient: public."""
        stds = {query.group: query.noise_std for query in receipt.step.queries if isinstance(query, GaussianSum)}
        return {
            self._parameters[name]: vector.scale * stds[group.name] / lot_size
            for group in clipping.groups
            for vector in group.vectors
            for name in vector.names
        }
