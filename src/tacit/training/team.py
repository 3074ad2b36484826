"""Several processes training one private model: one ledger, one lot, one noise (`torch.distributed` underneath).

The processes trust each other; the guarantee is about values that leave them. The first process keeps the ledger and
draws every lot. Process p mod W reads and clips the record at place p of the lot's random order, so one record more or
fewer changes two places. The noise is added *before* the sums of the processes are put together, by the first of them
alone or by each a W-th of the variance: no process ever holds the whole sum without noise, though parts of it travel.

Where the parameters are cut into shards (`tacit.training.shards`), the sums are all-reduced shard by shard, each in the
process that holds the shard; this one then adds the noise of it, all of it.

The processes must have the same records in the same order, and the same settings: what can be compared is compared
before the first step, and parameters, clip norms and the step's number at every one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from tacit.ledger import Ledger, Receipt, Step
from tacit.randomness import Integers, SecureSource, SeededSource, Source

T = TypeVar("T")
Drawn = tuple[Integers, Integers]
"""The examples of a lot, and the process of each."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Train one model with all processes of a group (by default all that `torchrun` started).

    ``noise``: ``"first"``, the first process adds it all (of a sharded parameter, the one that holds the shard); or
    ``"split"``, each of W processes adds a W-th of the variance, with a key of its own. A process that reveals its
    noise then takes away a W-th of the protection, not all of it.
    """

    noise: str = "first"
    group: Any = None

    def __post_init__(self) -> None:
        if self.noise not in ("first", "split"):
            raise ValueError(f"noise is {self.noise!r}; choose 'first' or 'split'.")


class Team(Protocol):
    """The processes of a run, seen from one of them."""

    rank: int
    size: int

    def source(self, seed: int | None) -> Source:
        """The noise source of this process, which also all-reduces the sums."""

    def own_source(self, seed: int | None) -> Source:
        """The noise source for values that only this process holds: a stream that no other process has."""

    def ledger(self, make: Callable[[], Ledger]) -> Ledger:
        """The ledger that ``make`` opens in the first process, or a copy of it in memory."""

    def record(self, ledger: Ledger, step: Step, state: Callable[[], str]) -> Receipt:
        """Record the step in the one ledger; all processes must have the same ``state``, or none goes on."""

    def share(self, draw: Callable[[], Drawn]) -> Integers:
        """Draw the lot once, and return this process's examples."""

    def most(self, count: int) -> int:
        """Return the largest ``count`` of all processes."""

    def scatter(self, several: Sequence[Tensor]) -> list[Tensor]:
        """Return this process's rows (`rows_of`) of the sum of each tensor over all processes. All have one dtype."""

    def agree(self, what: str, facts: Callable[[], str]) -> None:
        """Refuse, in every process, to go on with different ideas of ``what``."""

    def begin_alike(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""

    def first_does(self, work: Callable[[], None]) -> None:
        """Let the first process run a function while the others wait."""


class Alone:
    """A team of one."""

    rank, size = 0, 1

    def source(self, seed: int | None) -> Source:
        return SecureSource() if seed is None else SeededSource(seed)

    def own_source(self, seed: int | None) -> Source:
        return own_source(seed, self.rank)

    def ledger(self, make: Callable[[], Ledger]) -> Ledger:
        return make()

    def record(self, ledger: Ledger, step: Step, state: Callable[[], str]) -> Receipt:
        return ledger.record(step)

    def share(self, draw: Callable[[], Drawn]) -> Integers:
        return draw()[0]

    def most(self, count: int) -> int:
        return count

    def scatter(self, several: Sequence[Tensor]) -> list[Tensor]:
        return list(several)

    def agree(self, what: str, facts: Callable[[], str]) -> None:
        """Do nothing: there is one process."""

    def begin_alike(self, model: nn.Module) -> None:
        """Do nothing: there is one process."""

    def first_does(self, work: Callable[[], None]) -> None:
        work()


def own_source(seed: int | None, rank: int) -> Source:
    """Another stream than that of `Team.source`, because lots and noise must not share random words."""
    if seed is None:
        return SecureSource()
    source = SeededSource(seed)
    source.branch(f"shards of process {rank}")
    return source
