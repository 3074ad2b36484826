"""Noise that is correlated between the steps of a block: C^-1 z for a strategy C and fresh noise z.

Formal guarantee. For every coordinate, the noise added at step t of a block is sum_i d_i z_(t-i), with d the inverse
coefficients of the recorded strategy (for ``"tree"``: the difference of two prefix sums' nodes) and z independent
N(0, 1) values times the recorded standard deviation. So the releases of a block are together one Gaussian mechanism,
and `tacit.accounting.correlated` has what it costs. Noise is used for one release only: a step that was drawn and not
released is passed over, its noise with it, and a position that was released is refused.

Secret state. The fresh noise of past steps is in the noise of later ones. It is made again from the keys of the block
(`tacit.block_keys`): in every step for ``"banded-inverse"``, ``"sparse-inverse"``, ``"square-root"`` and ``"tree"``,
which keep nothing else. With ``"banded"`` and ``"buffered"`` every value depends on all steps before, through a
recursion whose state is as many sums of past noise as there are bands or buffers; these are kept in memory, and made
again from the keys once where a run is resumed. No smaller state will do: the noise to come is a linear function of the
past noise of that rank. Keys or sums, together with the released gradients, give the exact gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from tacit.block_keys import BlockKeys
from tacit.keyed_noise import KeyedSource, Mixture, Past, Recursion
from tacit.ledger.correlation import inverse_coefficients, lags, nodes_after
from tacit.ledger.events import CyclicPoisson, GaussianSum, Query
from tacit.mechanisms.allocation import Allocation, Sensitivity
from tacit.mechanisms.noise import Noisy, add_mixture_
from tacit.mechanisms.noise_ahead import PIECE


@dataclass(frozen=True)
class Correlated:
    """Correlated noise, shared among the groups as ``share`` says; its noise multiplier is that of the fresh noise."""

    share: Allocation
    strategy: str
    parameters: tuple[float, ...] = ()

    @property
    def noise_multiplier(self) -> float | None:
        """The noise multiplier of a whole step, if the share has one: fresh noise over clip norm."""
        return getattr(self.share, "noise_multiplier", None)

    def stds(self, groups: Sequence[Sensitivity]) -> tuple[float, ...]:
        return self.share.stds(groups)

    def after(self, queries: Sequence[Query]) -> Correlated:
        return replace(self, share=self.share.after(queries))

    def events(self, queries: Sequence[GaussianSum]) -> tuple[GaussianSum, ...]:
        """Return the queries as they are recorded with this noise."""
        return tuple(
            replace(query, noise="correlated", strategy=self.strategy, parameters=self.parameters) for query in queries
        )


class CorrelatedNoise:
    """Adds the noise of one step after another, block after block; ``keys`` returns the current block's secrets."""

    def __init__(self, keys: Callable[[], BlockKeys]) -> None:
        self._keys = keys
        self._block: BlockKeys | None = None
        self._state: _State | None = None
        self._position = 0

    def add_(self, sums: Noisy, query: GaussianSum, sampling: CyclicPoisson, position: int) -> None:
        """Add the noise of step ``position`` of the block, for pairs (sum, standard deviation of the fresh noise)."""
        sizes, keys = tuple(total.numel() for total, _ in sums), self._keys()
        if keys.name != sampling.block:
            raise RuntimeError(f"the ledger has block {sampling.block!r} but the keys are those of {keys.name!r}.")
        if keys is not self._block or self._state is None:
            if keys is self._block:
                raise RuntimeError("the noise of an earlier step was not completed; resume from a checkpoint.")
            self._begin(query, keys, sizes, position)
        state, self._state = self._state, None  # if this fails half-way, no step goes on with the rest
        assert state is not None
        if position < self._position or sizes != state.sizes:
            raise RuntimeError(
                f"step {position} of the block, with {sum(sizes)} values, cannot follow step {self._position - 1} with "
                f"{sum(state.sizes)}; its noise was used, or the model changed. Make a new run."
            )
        for passed in range(self._position, position):
            state.skip(passed)
        state.add_(sums, position)
        self._position, self._state = position + 1, state

    def _begin(self, query: GaussianSum, keys: BlockKeys, sizes: tuple[int, ...], position: int) -> None:
        strategy, parameters = str(query.strategy), query.parameters or ()
        self._block, self._position = keys, 0
        self._state = _STATES[strategy](keys, sizes, strategy, parameters)
        if isinstance(self._state, _Tree):
            self._state.released = position


def released_std(query: GaussianSum, position: int) -> float:
    """Return the standard deviation of the noise in the release of step ``position`` of a block: public."""
    strategy, parameters = str(query.strategy), query.parameters or ()
    if strategy == "tree":
        nodes = len(set(nodes_after(position + 1)) ^ set(nodes_after(position)))
        return query.noise_std * math.sqrt(nodes)
    inverse = inverse_coefficients(strategy, parameters, position + 1)
    return query.noise_std * math.sqrt(float(inverse @ inverse))


class _State(Protocol):
    """The memory of past steps, for sums of ``sizes`` values."""

    sizes: tuple[int, ...]

    def add_(self, sums: Noisy, position: int) -> None:
        """Add the noise of a step."""

    def skip(self, position: int) -> None:
        """Skip a step that releases nothing."""


class _MovingAverage:
    """Keeps only the keys, and makes again the fresh noise of all steps that have a coefficient."""

    def __init__(self, keys: BlockKeys, sizes: tuple[int, ...], strategy: str, parameters: tuple[float, ...]) -> None:
        self.sizes, self._keys = sizes, keys
        self._strategy, self._parameters = strategy, parameters

    def add_(self, sums: Noisy, position: int) -> None:
        weights = lags(self._strategy, self._parameters, position + 1)
        parts = [(self._keys.stream(position - lag, position - lag), weight) for lag, weight in weights]
        add_mixture_(sums, Mixture(parts))

    def skip(self, position: int) -> None:
        pass


class _Tree:
    """Keeps only the keys, and makes the nodes that the prefix sum gained and lost since the last release."""

    def __init__(self, keys: BlockKeys, sizes: tuple[int, ...], strategy: str, parameters: tuple[float, ...]) -> None:
        self.sizes, self._keys = sizes, keys
        self.released = 0
        """The steps in the last prefix sum that was released."""

    def add_(self, sums: Noisy, position: int) -> None:
        before, now = set(nodes_after(self.released)), set(nodes_after(position + 1))
        parts = [(self._node(*node), 1.0 if node in now else -1.0) for node in sorted(before ^ now)]
        add_mixture_(sums, Mixture(parts))
        self.released = position + 1

    def skip(self, position: int) -> None:
        pass

    def _node(self, first: int, level: int) -> KeyedSource:
        """Return the noise of a node; the tree's nodes are numbered from left to right."""
        return self._keys.stream(2 * first + (1 << level) - 1, first + (1 << level) - 1)


class _Recursion:
    """Sums of past noise in memory, one row for each band or buffer, a matrix for each piece of a sum."""

    def __init__(self, keys: BlockKeys, sizes: tuple[int, ...], strategy: str, parameters: tuple[float, ...]) -> None:
        self.sizes, self._keys = sizes, keys
        numbers = np.array(parameters, dtype=np.float32)
        half = len(numbers) // 2
        self._banded = strategy == "banded"
        self._weights, self._decays = (numbers[1:], numbers[:0]) if self._banded else (numbers[:half], numbers[half:])
        pieces = [min(PIECE, size - first) for size in sizes for first in range(0, size, PIECE)]
        self._rows = [torch.zeros(len(self._weights), piece, dtype=torch.float32, device="cpu") for piece in pieces]

    def add_(self, sums: Noisy, position: int) -> None:
        add_mixture_(sums, self._noise(position))

    def skip(self, position: int) -> None:
        noise = self._noise(position)
        for rows in self._rows:
            noise.normal_(torch.empty(rows.shape[1], dtype=torch.float32, device="cpu"))

    def _noise(self, position: int) -> Mixture | Recursion:
        source, count = self._keys.stream(position, position), len(self._weights)
        if not count:
            return Mixture([(source, 1.0)])
        weights, oldest = self._weights, position % count
        if self._banded:  # row r has the noise of the last step whose number is r modulo the rows
            weights = np.ascontiguousarray(weights[[(position - 1 - row) % count for row in range(count)]])
        return Recursion(source, [Past(rows, weights, self._decays, oldest) for rows in self._rows], PIECE)


_STATES: dict[str, Callable[[BlockKeys, tuple[int, ...], str, tuple[float, ...]], _State]] = {
    "banded": _Recursion,
    "banded-inverse": _MovingAverage,
    "buffered": _Recursion,
    "sparse-inverse": _MovingAverage,
    "square-root": _MovingAverage,
    "tree": _Tree,
}
