"""Add up the clipped gradients of a lot, and release them to the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tacit.block_keys import BlockKeys
from tacit.gradients import Engine
from tacit.gradients.factors.complex_parts import real
from tacit.gradients.kernels.loops import divide
from tacit.gradients.precision import released_in
from tacit.ledger import GaussianSum, Receipt
from tacit.mechanisms import Clipping, CorrelatedNoise
from tacit.mechanisms.correlated import released_std
from tacit.mechanisms.noise_ahead import NoiseAhead
from tacit.randomness import Source
from tacit.training.dtensor_local import as_part_of, local
from tacit.training.first_rows import FirstRows
from tacit.training.updates import call_gradient_hooks


class GradientSums:
    """One sum for each parameter during a lot; the release turns it into the gradient.

    A batch is summed in float32 or better and the sums of several batches are added in float64, so that rounding does
    not grow with the lot (docs/finite-precision.md). The sum over a very large lot, by its expected size, is also
    released in float64.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self._dtypes = {name: torch.promote_types(real(p).dtype, torch.float32) for name, p in parameters.items()}
        self._sums: dict[str, Tensor] = {}
        self._batches = 0
        self.source: Source | None = None
        """The source of the noise, if it is not the run's own."""
        self._ahead: NoiseAhead | None = None

    def clear(self) -> None:
        """Begin a lot."""
        self._sums, self._batches = {}, 0
        if self._ahead is not None:
            self._ahead.discard()

    def draw_ahead(self, receipt: Receipt, source: Source, *, lot_size: float) -> None:
        """Draw the noise of the lot while the device still computes gradients, where it has pinned memory.

        Called after the step was recorded and before anything waits for the device. The draw depends on public sizes
        alone; `release` uses it, and nothing else does.
        """
        devices = {parameter.device for parameter in self._parameters.values()}
        dtypes = {released_in(dtype, lot_size) for dtype in self._dtypes.values()}
        queries = [query for query in receipt.step.queries if isinstance(query, GaussianSum)]
        plain = source.share == 1 and source.join_ is None and all(query.lattice is None for query in queries)
        if not plain or len(devices) != 1 or len(dtypes) != 1 or not NoiseAhead.suits(next(iter(devices))):
            return
        (dtype,) = dtypes
        if self._ahead is None or self._ahead.dtype is not dtype:
            count = sum(real(parameter).numel() for parameter in self._parameters.values())
            self._ahead = NoiseAhead(count, dtype, next(iter(devices)))
        self._ahead.draw(source)
        source.drawn = self._ahead.take

    def add(self, engine: Engine, clipping: Clipping | FirstRows) -> None:
        """Add the current batch, every record clipped."""
        if not self._batches:
            self._sums = {
                name: torch.empty_like(real(local(parameter)), dtype=self._dtypes[name])
                for name, parameter in self._parameters.items()
            }
            engine.clipped_sum(clipping, out=self._sums, overwrite=True)
        else:
            self._sums = {name: total.double() for name, total in self._sums.items()}
            for name, total in engine.clipped_sums(clipping):
                self._sums[name] += total
        self._batches += 1

    def release(self, receipt: Receipt, clipping: Clipping, source: Source, *, lot_size: float) -> None:
        """Add the recorded noise and give each parameter its mean gradient; ``lot_size`` is the expected one."""
        if not self._batches:
            raise RuntimeError("no batch was added to the sums of this lot; there is nothing to release.")
        # The type that a sum is released in is public: it does not depend on how many batches there were.
        sums = {name: _as(self._sums.pop(name), released_in(kind, lot_size)) for name, kind in self._dtypes.items()}
        try:
            self._add_noise_(sums, receipt, clipping, source)
        finally:
            source.drawn = None
            if self._ahead is not None:
                self._ahead.release()
        divide(list(sums.values()), lot_size)
        for name, parameter in self._parameters.items():
            mean = _as(sums.pop(name), real(parameter).dtype)
            parameter.grad = as_part_of(parameter, torch.view_as_complex(mean) if parameter.is_complex() else mean)
            call_gradient_hooks(name, parameter)

    def _add_noise_(self, sums: Mapping[str, Tensor], receipt: Receipt, clipping: Clipping, source: Source) -> None:
        clipping.release_(receipt, sums, source)

    def noise(self, receipt: Receipt, clipping: Clipping, *, lot_size: float) -> dict[Tensor, float]:
        """The standard deviation of the noise on each parameter's mean gradient: public."""
        stds = {query.group: self._std(query) for query in receipt.step.queries if isinstance(query, GaussianSum)}
        return {
            self._parameters[name]: vector.scale * stds[group.name] / lot_size
            for group in clipping.groups
            for vector in group.vectors
            for name in vector.names
        }

    def _std(self, query: GaussianSum) -> float:
        return query.noise_std


class CorrelatedSums(GradientSums):
    """Sums that get noise which is correlated between steps (`tacit.mechanisms.correlated`)."""

    def __init__(
        self, parameters: Mapping[str, Tensor], keys: Callable[[], BlockKeys], position: Callable[[], int]
    ) -> None:
        """``keys`` gives the secrets of the block, ``position`` how many of its lots were drawn, with this one."""
        super().__init__(parameters)
        self._noise, self._position = CorrelatedNoise(keys), position

    def draw_ahead(self, receipt: Receipt, source: Source, *, lot_size: float) -> None:
        """Draw nothing: `release` makes this noise."""

    def _add_noise_(self, sums: Mapping[str, Tensor], receipt: Receipt, clipping: Clipping, source: Source) -> None:
        clipping.release_correlated_(receipt, sums, self._noise, receipt.step, self._position() - 1)

    def _std(self, query: GaussianSum) -> float:
        return released_std(query, self._position() - 1) if query.noise == "correlated" else query.noise_std


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)
