"""When the record is a person: sample users, and bound how many examples each one brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.ledger.events import Sampling
from tacit.randomness import Integers, Source
from tacit.sampling.samplers import Drawable, Sampler


@dataclass(frozen=True, kw_only=True)
class UserLot:
    """The users of one lot and the examples chosen of each."""

    users: Integers
    examples: tuple[Integers, ...]

    @property
    def indices(self) -> Integers:
        """All chosen examples, user after user."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self.examples])

    @property
    def owners(self) -> Integers:
        """For each of `indices`, the position of its user in `users`."""
        return np.repeat(np.arange(len(self.users)), [len(chosen) for chosen in self.examples])


class UserSampler:
    """Samples users with ``sampler`` and takes at most ``most`` examples of each, chosen at random every time.

    ``owners`` gives the user of each example, as numbers 0, 1, ..., users - 1. The record is the user: ``sampler``
    counts users and says so in its unit. Proof obligation: all that a user contributes to a step goes through one
    clipped vector (add up or average a user's gradients, then clip), or, if each example is clipped alone, the
    recorded clip norm is ``most`` times the clip norm of one (`tacit.mechanisms.Repeated`).
    """

    def __init__(self, owners: npt.ArrayLike, sampler: Sampler, *, most: int, source: Source) -> None:
        array = np.asarray(owners)
        if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
            raise ValueError(f"owners is {array.dtype} of shape {array.shape}; it must be a list of user numbers.")
        if array.size and array.max() >= sampler.records:
            raise ValueError(
                f"owners has user {array.max()} but the sampler has {sampler.records} records; make it a sampler of "
                "users, one record for each."
            )
        if sampler.event().unit == "example":
            raise ValueError("the sampler's unit is 'example'; make it with unit='user'.")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"most is {most!r}; it must be a whole number, at least 1.")
        self._sampler, self._most, self._source = sampler, most, source
        self._order = np.argsort(array, kind="stable").astype(np.int64)
        self._starts = np.searchsorted(array[self._order], np.arange(sampler.records + 1))

    @property
    def records(self) -> int:
        return self._sampler.records

    @property
    def expected(self) -> float:
        return self._sampler.expected

    @property
    def base(self) -> Sampler:
        """Return what draws the users."""
        return self._sampler

    @property
    def most(self) -> int:
        return self._most

    def event(self) -> Sampling:
        return self._sampler.event()

    def draw(self, receipt: Drawable) -> UserLot:
        users = self._sampler.draw(receipt)
        return UserLot(users=users, examples=tuple(self._examples(user) for user in users))

    def _examples(self, user: int) -> Integers:
        own = self._order[self._starts[user] : self._starts[user + 1]]
        if own.size <= self._most:
            return own
        return np.sort(own[self._source.choice(own.size, self._most)])

    def state(self) -> dict[str, Any]:
        return self._sampler.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._sampler.restore(state)
