"""Messages between a participant and the parameter server. Plain arrays: any transport can carry them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]

_INDEX_BYTES = 4  # how a position travels: 32 bits are enough for every model here


@dataclass(frozen=True, kw_only=True)
class Download:
    """Values of global parameters at ``indices``, in rising order; None for all of them."""

    indices: Positions | None
    values: Vector

    @property
    def size(self) -> int:
        """Bytes: four for a value, and four for its position unless all are sent."""
        return _size(self.values, self.indices is None)


@dataclass(frozen=True, kw_only=True)
class Upload:
    """An upload: the ``values`` that ``participant`` adds to the parameters at ``indices``, None for all of them.

    A participant numbers its uploads 0, 1, 2, ...
    """

    participant: str
    sequence: int
    indices: Positions | None
    values: Vector

    @property
    def size(self) -> int:
        """Bytes: four for a value, and four for its position unless the upload is of the whole model."""
        return _size(self.values, self.indices is None)


def _size(values: Vector, whole: bool) -> int:
    return int(values.nbytes) + (0 if whole else _INDEX_BYTES * values.size)


def portion(fraction: float, size: int) -> int:
    """Return how many of ``size`` parameters are a ``fraction`` of them: rounded down, at least one."""
    return max(int(fraction * size * (1 + 1e-12)), 1)


def check_fraction(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}; it must be in (0, 1].")
