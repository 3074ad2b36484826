"""Lots in the place of a Trainer's batches, and the checkpoints of a Trainer that hold a private run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

RUN = "tacit"
"""The directory of the private run inside a checkpoint."""


class LotNumbers(Dataset[int]):
    """The lots of an epoch by number, as data set and batch sampler; asking for a number draws the lot.

    ``begin`` records and draws a lot, or says that there is none. ``taken`` gives the steps that a checkpoint holds,
    once: their numbers in the epoch draw nothing, because the Trainer skips them. With ``skipped`` they are left out,
    for a Trainer that only counts them.
    """

    def __init__(
        self, count: int, begin: Callable[[], bool], taken: Callable[[], int], *, skipped: bool = False
    ) -> None:
        self._count, self._begin, self._taken, self._skipped = count, begin, taken, skipped

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        return number

    def __iter__(self) -> Iterator[list[int]]:
        taken = self._taken() % self._count
        for number in range(taken if self._skipped else 0, self._count):
            if number >= taken and not self._begin():
                return
            yield [number]


def no_batch(numbers: list[int]) -> dict[str, Tensor]:
    """Return a batch without tensors: the lot's own come from the run."""
    return {}


def checkpoint_of(wanted: str | bool | None, directory: str) -> str | None:
    """Return the checkpoint to resume from: the one given, or the last with both the Trainer's state and the run.

    A process may be killed while it writes one; the one before it is then the last.
    """
    if not wanted:
        return None
    if isinstance(wanted, str):
        return wanted
    found = [path for path in Path(directory).glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    for path in sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        if (path / RUN / "run.json").exists() and (path / "trainer_state.json").exists():
            return str(path)
    raise ValueError(f"there is no checkpoint with a private run in {directory!r}; begin with trainer.train().")
