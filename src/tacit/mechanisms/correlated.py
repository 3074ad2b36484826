"""Noise that is correlated between the steps of a block: C^-1 z for a strategy C and fresh noise z.

Formal guarantee. For every coordinate, the noise added at step t of a block is sum_i d_i z_(t-i), with d the inverse
coefficients of the recorded strategy (for ``"tree"``: the difference of two prefix sums' nodes) and z independent
N(0, 1) values times the recorded standard deviation. So the releases of a block are together one Gaussian mechanism,
and `tacit.accounting.correlated` has what it costs. Noise is used for one release only: a step that was drawn and not
released is passed over, its noise with it, and a position that was released is refused.

Secret state. The fresh noise of past steps is in the noise of later ones. It is made again from its keys of 32 bytes
(``"banded-inverse"``, ``"square-root"``, ``"tree"``), or kept as sums of past noise in memory (``"banded"`` and
``"buffered"``, where every value depends on all steps before). Keys or sums, together with the released gradients, give
the exact gradients. They stay in the memory of the process and are never written anywhere; keys are overwritten when
they are no longer needed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tacit.ledger.correlation import inverse_coefficients, nodes_after
from tacit.ledger.events import CyclicPoisson, GaussianSum, Query
from tacit.mechanisms.allocation import Allocation, Sensitivity
from tacit.mechanisms.noise import Noisy, add_taken_
from tacit.mechanisms.noise_ahead import PIECE
from tacit.randomness import KeyedSource, Source


@dataclass(frozen=True)
class Correlated:
    """Correlated noise, shared among the groups as ``share`` says; its noise multiplier is that of the fresh noise."""

    share: Allocation
    strategy: str
    parameters: tuple[float, ...] = ()

    @property
    def noise_multiplier(self) -> float | None:
        """That of a whole step, if the share has one: fresh noise over clip norm."""
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
    """Adds the noise of one step after another, block after block."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._block: str | None = None
        self._state: _State | None = None
        self._position = 0

    def add_(self, sums: Noisy, query: GaussianSum, sampling: CyclicPoisson, position: int) -> None:
        """Add the noise of step ``position`` of the block, for pairs (sum, standard deviation of the fresh noise)."""
        size = sum(total.numel() for total, _ in sums)
        if sampling.block != self._block or self._state is None:
            if sampling.block == self._block:
                raise RuntimeError("the noise of an earlier step was not completed; resume from a checkpoint.")
            self._begin(query, sampling.block, size)
        state, self._state = self._state, None  # if this fails half-way, nobody goes on with what is left
        assert state is not None
        if position < self._position or size != state.size:
            raise RuntimeError(
                f"step {position} of the block, with {size} values, cannot follow step {self._position - 1} with "
                f"{state.size}; its noise was used, or the model changed. Make a new run."
            )
        for _ in range(position - self._position):
            state.skip()
        state.begin()
        add_taken_(sums, state.take, self._source)
        state.end()
        self._position, self._state = position + 1, state

    def _begin(self, query: GaussianSum, block: str, size: int) -> None:
        strategy, parameters = str(query.strategy), query.parameters or ()
        self._block, self._position = block, 0
        self._state = _STATES[strategy](self._source, size, strategy, parameters)


def released_std(query: GaussianSum, position: int) -> float:
    """Return the standard deviation of the noise in the release of step ``position`` of a block: public."""
    strategy, parameters = str(query.strategy), query.parameters or ()
    if strategy == "tree":
        nodes = len(set(nodes_after(position + 1)) ^ set(nodes_after(position)))
        return query.noise_std * math.sqrt(nodes)
    inverse = inverse_coefficients(strategy, parameters, position + 1)
    return query.noise_std * math.sqrt(float(inverse @ inverse))


class _State(ABC):
    """The noise of past steps, for ``size`` values; of a step it is taken in order, the same pieces every time."""

    def __init__(self, source: Source, size: int, strategy: str, parameters: tuple[float, ...]) -> None:
        self.size, self._source = size, source
        self._strategy, self._parameters = strategy, parameters
        self._taken = 0
        self._rooms: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def begin(self) -> None:
        """Begin a step."""
        self._taken = 0

    @abstractmethod
    def next(self, fresh: torch.Tensor, first: int) -> torch.Tensor:
        """Return the noise of values ``first`` and on; ``fresh`` may be overwritten and has their number and type."""

    def take(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the noise of the next ``count`` values, to be overwritten."""
        first, self._taken = self._taken, self._taken + count
        return self.next(self.room(count, dtype), first).to(device)

    def room(self, count: int, dtype: torch.dtype, number: int = 0) -> torch.Tensor:
        """Return memory for ``count`` values, kept: touching new pages costs more than the arithmetic."""
        kept = self._rooms.get((dtype, number))
        if kept is None or len(kept) < count:
            kept = self._rooms[dtype, number] = torch.empty(count, dtype=dtype, device="cpu")
        return kept[:count]

    def end(self) -> None:
        """End a step, all of whose noise was taken."""
        assert self._taken == self.size

    def skip(self) -> None:
        """Pass over a step of which nothing is released."""
        self.begin()
        for first in range(0, self.size, PIECE):
            self.take(min(PIECE, self.size - first), torch.float32, torch.device("cpu"))
        self.end()


class _MovingAverage(_State):
    """Fresh noise of the last steps, as many as have a coefficient, made again from its keys."""

    def __init__(self, source: Source, size: int, strategy: str, parameters: tuple[float, ...]) -> None:
        super().__init__(source, size, strategy, parameters)
        self._keys: list[bytearray] = []  # newest first
        self._sources: list[tuple[KeyedSource, float]] = []

    def begin(self) -> None:
        super().begin()
        self.skip()
        bands = len(self._keys)
        weights = inverse_coefficients(self._strategy, self._parameters, bands)
        self._sources = [(KeyedSource(key), float(weight)) for key, weight in zip(self._keys, weights, strict=True)]

    def next(self, fresh: torch.Tensor, first: int) -> torch.Tensor:
        (newest, _), *older = self._sources
        total = newest.normal_(self.room(len(fresh), fresh.dtype, 1))
        for source, weight in older:
            total.add_(source.normal_(fresh), alpha=weight)
        return total

    def end(self) -> None:
        super().end()
        self._sources = []

    def skip(self) -> None:
        self._keys.insert(0, bytearray(self._source.bytes(32)))
        if self._strategy == "banded-inverse" and len(self._keys) > len(self._parameters):
            _forget(self._keys.pop())


class _Tree(_State):
    """The nodes of the prefix sum so far, each by its key."""

    def __init__(self, source: Source, size: int, strategy: str, parameters: tuple[float, ...]) -> None:
        super().__init__(source, size, strategy, parameters)
        self._steps = 0
        self._keys: dict[tuple[int, int], bytearray] = {}
        self._left: dict[tuple[int, int], bytearray] = {}
        """Nodes of the last released prefix sum that later ones have no more."""
        self._new: dict[tuple[int, int], bytearray] = {}
        """Nodes that the last released prefix sum did not have."""
        self._sources: list[tuple[KeyedSource, float]] = []

    def begin(self) -> None:
        super().begin()
        self.skip()
        self._sources = [(KeyedSource(key), 1.0) for key in self._new.values()]
        self._sources += [(KeyedSource(key), -1.0) for key in self._left.values()]

    def next(self, fresh: torch.Tensor, first: int) -> torch.Tensor:
        total = self.room(len(fresh), fresh.dtype, 1).zero_()
        for source, weight in self._sources:
            total.add_(source.normal_(fresh), alpha=weight)
        return total

    def end(self) -> None:
        super().end()
        self._sources = []
        self._new.clear()
        while self._left:
            _forget(self._left.popitem()[1])

    def skip(self) -> None:
        self._steps += 1
        nodes = nodes_after(self._steps)
        for node in [node for node in self._keys if node not in nodes]:
            key = self._keys.pop(node)
            if node in self._new:  # it came and went between two releases
                _forget(self._new.pop(node))
            else:
                self._left[node] = key
        for node in nodes:
            if node not in self._keys:
                self._keys[node] = self._new[node] = bytearray(self._source.bytes(32))


class _Recursion(_State):
    """Sums of past noise in memory, one row for each band or buffer."""

    def __init__(self, source: Source, size: int, strategy: str, parameters: tuple[float, ...]) -> None:
        super().__init__(source, size, strategy, parameters)
        rows = len(parameters) - 1 if strategy == "banded" else len(parameters) // 2
        self._rows = torch.zeros(rows, size, dtype=torch.float32, device="cpu")
        self._step = 0

    def next(self, fresh: torch.Tensor, first: int) -> torch.Tensor:
        noise = self._source.normal_(fresh)
        rows = self._rows[:, first : first + len(noise)]
        if not len(rows):
            return noise
        if self._strategy == "buffered":
            half = len(rows)
            weights, decays = _single(self._parameters[:half]), _single(self._parameters[half:])
            noise.sub_(weights @ rows)
            rows.mul_(decays[:, None]).add_(noise)
        else:
            ages = [(self._step - 1 - row) % len(rows) for row in range(len(rows))]
            noise.sub_(_single([self._parameters[age + 1] for age in ages]) @ rows)
            rows[self._step % len(rows)] = noise
        return noise

    def end(self) -> None:
        super().end()
        self._step += 1


_STATES: dict[str, type[_State]] = {
    "banded": _Recursion,
    "banded-inverse": _MovingAverage,
    "buffered": _Recursion,
    "square-root": _MovingAverage,
    "tree": _Tree,
}


def _single(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _forget(key: bytearray) -> None:
    key[:] = bytes(len(key))
